"""`gpu-ami prove`: the order of its stages, what each receives, and its exit code."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import cli, pipeline
from gpu_ami.build import layering
from gpu_ami.errors import BuildError
from gpu_ami.plan import cost
from gpu_ami.region import SessionRequest
from gpu_ami.report.document import Report
from gpu_ami.validate import ProofOptions
from tests.report.examples import a_host, a_report

RECIPE = Path(__file__).parents[2] / "variables" / "recipes" / "debian12-gpu.yml"


@dataclass
class Stages:
    """Stages of the pipeline without a cloud: the calls, in order, and the report that validation returns."""

    report: Report
    build_error: BuildError | None = None
    calls: list[str] = field(default_factory=list)
    received: dict[str, Any] = field(default_factory=dict)

    @contextlib.contextmanager
    def open_session(self, request: SessionRequest, _progress: Any) -> Iterator[str]:
        self.received["session"] = request
        self.received["layered"] = request.layering
        self.calls.append("open")
        try:
            yield "session"
        finally:
            self.calls.append("close")

    def plan(self, recipe: Path, overrides: list[str], out: Path, _session: str) -> str:
        self.calls.append("plan")
        self.received["plan"] = (recipe, overrides, out)
        out.mkdir(parents=True, exist_ok=True)
        return "the plan"

    def build(
        self, plan: str, _out: Path, _session: str, *, fresh: bool, source_check: bool, layered: layering.Layering
    ) -> SimpleNamespace:
        self.calls.append("build")
        self.received["build"] = (plan, fresh, layered)
        if self.build_error:
            raise self.build_error
        return SimpleNamespace(ami="ami-1")

    def validate(self, plan: str, ami: str, _out: Path, _session: str, decided: SimpleNamespace) -> Report:
        self.calls.append("validate")
        self.received["validate"] = (plan, ami, decided.options)
        return self.report


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Stages:
    recorded = Stages(a_report(a_host()))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline, "open_session", recorded.open_session)
    monkeypatch.setattr(pipeline, "plan_stage", recorded.plan)
    monkeypatch.setattr(pipeline, "build_stage", recorded.build)
    monkeypatch.setattr(pipeline, "decide", lambda _plan, options, *_: SimpleNamespace(options=options))
    monkeypatch.setattr(pipeline, "require_rest", lambda *_: None)
    monkeypatch.setattr(pipeline, "validate_stage", recorded.validate)
    return recorded


def test_stages_run_in_order_and_write_the_certificate(stages: Stages, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prove", str(RECIPE), "--json"]) == 0
    assert stages.calls == ["open", "plan", "build", "validate", "close"]
    assert stages.received["plan"] == (RECIPE, [], Path("out/debian12-gpu"))
    assert stages.received["build"] == ("the plan", False, layering.FROM_NOTHING)
    assert stages.received["layered"] is None  # the AMI of an earlier run may be proven again
    assert stages.received["validate"][:2] == ("the plan", "ami-1")
    certificate = json.loads(Path("out/debian12-gpu/certificate.json").read_text())
    assert certificate["level"] == "certified" and certificate == json.loads(capsys.readouterr().out)


def test_options_reach_their_stages(stages: Stages, tmp_path: Path) -> None:
    words = ["--set", "telemetry.profile=graphics", "--fresh", "--instance-type", "g5.12xlarge", "--restarts", "reboot"]
    further = [
        "--where",
        "aws.yml",
        "--conditions",
        "throttling:7",
        "--provoke-xid",
        "-o",
        str(tmp_path / "here"),
        "--max-cost",
        "25",
        "--deadline",
        "boot=1500",
    ]
    assert cli.main(["prove", str(RECIPE), "-q", *words, *further]) == 0
    assert stages.received["plan"][1:] == (["telemetry.profile=graphics"], tmp_path / "here")
    assert stages.received["build"][1] is True and stages.received["layered"] == layering.FROM_NOTHING
    asked = stages.received["validate"][2]
    assert asked == ProofOptions(["g5.12xlarge"], [], ["--provoke-xid"], ("reboot",), 25.0)
    request = stages.received["session"]
    assert request == SessionRequest(
        Path("aws.yml"), conditions="throttling:7", deadlines={"boot_seconds": 1500}, layering=layering.FROM_NOTHING
    )


@pytest.mark.parametrize(("words", "nodes"), [(["--nodes", "3"], 3), ([], 1)])
def test_several_machines_reach_the_proof(stages: Stages, words: list[str], nodes: int) -> None:
    assert cli.main(["prove", str(RECIPE), "-q", *words]) == 0
    assert stages.received["validate"][2].nodes == nodes


@pytest.mark.parametrize("number", ["1", "0", "-2", "two", "65", ""])
def test_numbers_of_machines_that_are_refused(stages: Stages, capsys: pytest.CaptureFixture[str], number: str) -> None:
    assert cli.main(["prove", str(RECIPE), f"--nodes={number}"]) == 2 and stages.calls == []
    assert f"--nodes: expected a number from 2 to 64, got {number!r}" in capsys.readouterr().err


def test_nodes_and_a_selection_exclude_each_other(stages: Stages, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prove", str(RECIPE), "--nodes", "2", "-k", "efa"]) == 2
    assert stages.calls == [] and "--nodes and -k exclude each other" in capsys.readouterr().err


def test_failed_check_ends_with_1_and_no_certificate(stages: Stages, capsys: pytest.CaptureFixture[str]) -> None:
    stages.report = a_report(a_host(gpu="PASS", xid="FAIL"))
    assert cli.main(["prove", str(RECIPE), "-o", "here"]) == 1
    assert capsys.readouterr().out.endswith("FAIL, no certificate: ami-1 → here/\n")
    assert not Path("here/certificate.json").exists() and Path("here/report.html").exists()


def test_failed_build_closes_the_session_and_boots_nothing(stages: Stages, capsys: pytest.CaptureFixture[str]) -> None:
    stages.build_error = BuildError("packer failed")
    assert cli.main(["prove", str(RECIPE), "-q"]) == 3
    assert stages.calls == ["open", "plan", "build", "close"]
    assert "packer failed" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no-such-recipe.yml"], "no-such-recipe.yml"),
        ([str(RECIPE), "--set", "telemetry.profile=unknown"], "telemetry.profile"),
        ([str(RECIPE), "--restarts", "sometimes"], "expected reboot,stop-start, one of them, or none"),
        ([str(RECIPE), "--waivers", "absent.yml"], "absent.yml: no such file or folder"),
    ],
)
def test_mistakes_are_reported_before_anything_starts(
    words: list[str], message: str, stages: Stages, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["prove", "-q", *words]) == 2
    assert message in capsys.readouterr().err
    assert stages.calls == []


def test_a_dry_run_says_what_would_be_proven_and_starts_nothing(
    stages: Stages, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decided = pipeline.ProofPlan("x", ProofOptions(nodes=2), ("g5.xlarge",), cost.Estimate(1.0, {}), False)
    monkeypatch.setattr(pipeline, "propose", lambda *_: decided)
    assert cli.main(["prove", str(RECIPE), "--dry-run"]) == 0
    assert "machines        2 of each: g5.xlarge\n" in capsys.readouterr().out
    assert cli.main(["prove", str(RECIPE), "--dry-run", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["nodes"] == 2 and stages.calls == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "selects_some"),
    [
        ([str(RECIPE), "-k", "sgemm"], False),  # no check has such a name
        ([str(RECIPE), "-k", "neuron_monitor"], False),  # checks of a role that the plan does not have
        ([str(RECIPE), "-k", "nvidia_driver"], True),
        ([str(RECIPE), "-k", "image.py"], True),  # of an image's files alone, which the local region has
        ([str(RECIPE), "-k", "image.py", "--where", "aws.yml"], False),
        (["site.yml", "-k", "monitoring"], True),  # a site's own
        (["site.yml", "-k", "sgemm"], False),
        (["--ami", "ami-1", "-k", "sgemm"], False),
        (["--ami", "ami-1", "-k", "neuron_monitor"], True),  # what it has is observed later
    ],
)
def test_a_selection_of_no_check_is_refused_before_anything_starts(
    words: list[str], selects_some: bool, stages: Stages, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    Path("aws.yml").write_text("region: eu-central-1\n")
    Path("site.yml").write_text(RECIPE.read_text())
    Path("site/checks").mkdir(parents=True)
    Path("site/checks/test_monitoring.py").write_text("def test_port(host):\n    assert host\n")
    monkeypatch.setattr(pipeline, "prove_observed", lambda *_, **__: (_ for _ in ()).throw(BuildError("began")))
    code = cli.main(["prove", "-q", *words])
    said = capsys.readouterr().err
    if selects_some:
        assert code != 2 and "selects no check" not in said
    else:
        assert (code, stages.calls) == (2, [])
        assert f"-k {words[words.index('-k') + 1]!r} selects no check" in said and "gpu-ami checks" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expression", "lines"),
    [
        ("image.py", ["machines        none: -k 'image.py' selects none of their checks", "image files     checked"]),
        (
            "metrics.py",
            [
                "machines        1 of each: g5.xlarge",
                "image files     not checked: -k 'metrics.py' selects none of their",
            ],
        ),
    ],
)
def test_what_a_selection_leaves_without_checks_is_left_out(
    expression: str, lines: list[str], stages: Stages, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A machine that boots for no check, or files of which no check ran, made the proof end with an error."""

    def propose(_recipe: Path, _overrides: Any, _opened: Any, proof: ProofOptions, _building: Any) -> Any:
        return pipeline.ProofPlan("x", proof, ("g5.xlarge",), cost.Estimate(1.0, {}), not proof.no_files)

    monkeypatch.setattr(pipeline, "propose", propose)
    assert cli.main(["prove", str(RECIPE), "-k", expression, "--dry-run"]) == 0
    printed = capsys.readouterr().out
    assert all(line in printed for line in lines) and stages.calls == []
