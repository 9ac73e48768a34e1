"""`gpu-ami rehearse`: which recipes, with what options, one table, the worst exit code."""

from __future__ import annotations

import contextlib
import json
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli, pipeline
from gpu_ami.recipes import all_recipes
from gpu_ami.region import SessionRequest
from localregion import architectures
from localregion.rehearsal import Candidate, Options, Rehearsal, candidates, rehearse
from tests.json_documents import valid


@dataclass
class Run:
    """A run without a region. known: images whose result is known before; results: of the others, else PASS."""

    known: dict[str, Rehearsal] = field(default_factory=dict)
    results: dict[str, tuple[str, int]] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    prepared: dict[str, tuple[bool, bool]] = field(default_factory=dict)
    rehearsed: list[str] = field(default_factory=list)
    options: Options | None = None
    jobs: int = 0

    def find(self, recipes: Sequence[Path], out: Path, place: Any) -> list[Candidate]:
        self.found = {"recipes": list(recipes), "out": out, "sandbox": place.machines.sandbox_builder}
        rows = [
            Rehearsal(path.stem, str(path), "arm64" if "arm64" in path.stem else "x86_64", "", 0, "debian12")
            for path in recipes
        ]
        pairs = [(row, self.known.get(row.image)) for row in rows]
        return [
            Candidate(Path(row.recipe), out / row.image, known or row, is_settled=known is not None)
            for row, known in pairs
        ]

    def prepare(self, candidate: Candidate, _place: Any, *, boot: bool, fresh: bool) -> Candidate:
        self.prepared[candidate.image] = (boot, fresh)
        return replace(candidate, row=replace(candidate.row, instance_type="g5.12xlarge" if boot else ""))

    @contextlib.contextmanager
    def open_session(self, request: SessionRequest, _progress: Any) -> Iterator[str]:
        assert request == SessionRequest(builder="sandbox")
        yield "session"

    def run(self, waiting: Sequence[Candidate], _session: str, options: Options, jobs: int) -> list[Rehearsal]:
        self.options, self.jobs = options, jobs
        self.rehearsed = [candidate.image for candidate in waiting]
        outcome = {image: self.results.get(image, ("PASS", 0)) for image in self.rehearsed}
        return [replace(one.row, result=outcome[one.image][0], exit_code=outcome[one.image][1]) for one in waiting]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    monkeypatch.setattr(architectures, "is_there", lambda _tool: True)
    recorded = Run()
    monkeypatch.setattr(candidates, "find", recorded.find)
    monkeypatch.setattr(candidates, "prepare", recorded.prepare)
    monkeypatch.setattr(pipeline, "open_session", recorded.open_session)
    monkeypatch.setattr(rehearse, "run", recorded.run)
    return recorded


def test_all_recipes_are_rehearsed(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rehearse", "-q"]) == 0
    names = [path.stem for path in all_recipes()]
    assert run.found == {"recipes": all_recipes(), "out": Path("out/rehearsals"), "sandbox": True}
    assert run.rehearsed == names and set(run.prepared.values()) == {(False, False)}
    assert run.options and not run.options.keep
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(names) + 1]] == names
    assert lines[-1] == f"{len(names)} recipes: {len(names)} PASS"


def test_recipes_of_the_users_folder_are_among_them(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "site" / "recipes").mkdir(parents=True)
    (tmp_path / "site" / "recipes" / "ours.yml").write_text("os: debian12\n")
    monkeypatch.chdir(tmp_path)
    cli.main(["rehearse", "-q"])
    assert "ours" in run.rehearsed


def test_options_reach_the_run(run: Run, tmp_path: Path) -> None:
    words = ["--boot", "--keep", "--fresh", "--jobs", "3", "-o", str(tmp_path / "here")]
    assert cli.main(["rehearse", "debian12-gpu", "-q", *words]) == 0
    assert run.rehearsed == ["debian12-gpu"] and run.jobs == 3
    assert run.options and run.options.keep and run.found["out"] == tmp_path / "here"
    assert run.prepared == {"debian12-gpu": (True, True)}


def test_the_worst_recipe_decides_the_exit_code(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.results = {"debian12-gpu": ("FAIL", 1), "al2023-compute": ("NOT BUILT", 3)}
    assert cli.main(["rehearse", "-q"]) == 3
    assert "1 FAIL" in capsys.readouterr().out
    assert cli.main(["rehearse", "debian12-gpu", "debian12-hopper", "-q"]) == 1


def test_what_is_known_opens_no_region(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "open_session", None)
    run.known = {"debian12-gpu": Rehearsal("debian12-gpu", "r.yml", "x86_64", "NO BASE IMAGE", 0)}
    assert cli.main(["rehearse", "debian12-gpu", "-q"]) == 0


@pytest.fixture
def drawn(run: Run, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A sample of two images."""
    monkeypatch.setattr(candidates, "draw", lambda _found, _seed: ["debian12-gpu", "al2023-compute"])
    return run


def test_the_first_of_a_sample_is_booted(drawn: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rehearse", "--sample", "abc", "--boot"]) == 0
    assert drawn.rehearsed == ["debian12-gpu", "al2023-compute"]
    assert [image for image, (boot, _) in drawn.prepared.items() if boot] == ["debian12-gpu"]
    shown = capsys.readouterr()
    assert "sample: debian12-gpu, al2023-compute; booted: debian12-gpu" in shown.err
    lines = shown.out.splitlines()
    assert [line.split()[0] for line in lines[1 : len(all_recipes()) + 1]] == [path.stem for path in all_recipes()]
    assert "LEFT OUT: not in the sample" in shown.out


def test_a_sample_boots_nothing_unless_asked(drawn: Run) -> None:
    assert cli.main(["rehearse", "--sample", "abc", "-q"]) == 0
    assert drawn.rehearsed == ["debian12-gpu", "al2023-compute"]
    assert not any(boot for boot, _ in drawn.prepared.values())


def test_list_builds_nothing(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.known = {"debian12-gpu": Rehearsal("debian12-gpu", "r.yml", "x86_64", "FAIL", 1)}
    assert cli.main(["rehearse", "debian12-gpu", "debian12-hopper", "--list"]) == 1
    assert run.rehearsed == [] and "debian12-hopper: LEFT OUT: not rehearsed yet" in capsys.readouterr().out


@pytest.fixture
def no_compiler(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """An x86_64 host that has all programs for images of arm64 but the compiler."""
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(architectures, "is_there", lambda tool: tool != "aarch64-linux-gnu-gcc")


@pytest.mark.usefixtures("no_compiler")
def test_a_missing_compiler_is_said_before_the_build_and_stops_its_recipes_alone(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["al2023-arm64", "debian12-gpu", "ubuntu2204-arm64"]
    assert cli.main(["rehearse", *names]) == 2
    shown = capsys.readouterr()
    assert run.rehearsed == ["debian12-gpu"]
    assert "3 recipes: 2 ERROR, 1 PASS" in shown.out
    reason = "this host is x86_64, and for images of arm64 these packages are not installed: gcc-aarch64-linux-gnu"
    assert f"al2023-arm64, ubuntu2204-arm64: ERROR: {reason}" in shown.out
    assert f"al2023-arm64, ubuntu2204-arm64: {reason}" in shown.err
    assert "apt-get install --no-install-recommends gcc-aarch64-linux-gnu" in shown.err


@pytest.mark.usefixtures("no_compiler")
def test_recipes_that_are_not_built_need_no_compiler(drawn: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rehearse", "al2023-arm64", "--list"]) == 0
    assert cli.main(["rehearse", "--sample", "abc"]) == 0
    assert "gcc-aarch64-linux-gnu" not in "".join(capsys.readouterr())


def test_json_is_by_its_schema(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.results = {"debian12-gpu": ("FAIL", 1)}
    assert cli.main(["rehearse", "debian12-gpu", "al2023-compute", "-q", "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    valid(data, "rehearse")
    assert [(row["image"], row["result"]) for row in data["recipes"]] == [
        ("debian12-gpu", "FAIL"), ("al2023-compute", "PASS"),
    ]  # fmt: skip


def test_markdown_is_a_table(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["rehearse", "debian12-gpu", "-q", "--format", "markdown"]) == 0
    assert capsys.readouterr().out.startswith("| recipe | base image |")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["debian12-gpu", "debian12-gpu"], "debian12-gpu: more than one recipe of that name"),
        (["no-such-image"], "no image 'no-such-image'"),
        (["--jobs", "0"], "expected a number from 1, got '0'"),
        (["--jobs", "-1"], "expected a number from 1, got '-1'"),
    ],
)
def test_mistakes_are_said_before_anything_is_built(
    run: Run, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert cli.main(["rehearse", *words]) == 2
    assert message in capsys.readouterr().err and run.rehearsed == []
