"""`gpu-ami facts`: each question, its JSON, and questions that the tables cannot answer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli
from gpu_ami.progress import Progress
from gpu_ami.recipes import load_facts
from gpu_ami.recipes.facts import fact_queries
from tests.json_documents import valid


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert cli.main(["facts", *words, "--json"]) == 0
    answered: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answered


@pytest.mark.parametrize(
    ("words", "key", "value"),
    [
        (["g5.12xlarge"], "family", "g5"),
        (["p5"], "model", "H100"),
        (["--driver", "580"], "branch", "580"),
        (["--driver", "580.95.05"], "branch", "580"),
        (["--cuda", "13.0"], "minimum_driver", "580.95.05"),
        (["--efa", "1.49.0"], "efa_installer", "1.49.0"),
        (["--os", "al2023"], "ssh_user", "ec2-user"),
    ],
)
def test_each_question_is_answered_with_its_sources(
    words: list[str], key: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answered = answer(capsys, *words)
    assert answered[key] == value
    assert answered["sources"] and all(source["source"] and source["date"] for source in answered["sources"])


def test_text_names_units_and_unverified_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["facts", "p6e-gb200.36xlarge"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "EFA interfaces: 17" in lines
    assert any(line.startswith("source: ") and line.endswith("not verified)") for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["p99"], "no instance type or family 'p99' in the facts"),
        ([], "ask for one thing"),
        (["g5.12xlarge", "--os", "al2023"], "ask for one thing"),
        (["--driver", "580", "--cuda", "13.0"], "not allowed with argument --driver"),
    ],
)
def test_invalid_questions_end_with_2(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["facts", *words]) == 2
    output = capsys.readouterr()
    assert message in output.err and output.out == ""


def test_rows_that_age_are_listed_oldest_first(capsys: pytest.CaptureFixture[str]) -> None:
    answered = answer(capsys, "--stale", "0")
    dates = [row["date"] for row in answered["rows"]]
    assert dates and dates == sorted(dates) and all(row["days"] > 0 and row["source"] for row in answered["rows"])
    assert answer(capsys, "--stale", "99999")["rows"] == []
    assert cli.main(["facts", "--stale", "99999"]) == 0
    assert capsys.readouterr().out == "0 rows are older than 99999 days\n"


def test_refresh_names_sources_that_do_not_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from gpu_ami.sources import http
    from gpu_ami.sources.http import Unreachable

    def ask(_self: object, _method: str, url: str, *_: object) -> None:
        raise Unreachable(f"{url}: not in a test")

    monkeypatch.setattr(http.Client, "ask", ask)
    assert cli.main(["facts", "refresh", "ubuntu2204-compute", "--json", "-q"]) == 4
    data = json.loads(capsys.readouterr().out)
    assert data["diff"] == "" and not data["written"] and all("not in a test" in error for error in data["errors"])


@pytest.mark.parametrize("failed", [[], ["FAILED tests/recipes/test_resolver.py::test_x"]])
def test_rows_are_kept_where_the_tests_of_the_rules_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, failed: list[str]
) -> None:
    """--apply plans the recipes with the new rows, then runs the tests; what the site had stays in either case."""
    from gpu_ami.commands import facts
    from gpu_ami.sources import http
    from gpu_ami.sources.http import NotThere

    changelog = """# AMI Release v20991231
<table><tr><th>AMI Type</th><th>Source AMI Name (K8s 1.33 - 1.39)</th></tr>
<tr><td>AL2023_x86_64_STANDARD</td><td>al2023-ami-minimal-2023-kernel-6.18-x86_64</td></tr></table>"""

    def ask(_self: object, _method: str, url: str, *_: object) -> http.Answer:
        if url.endswith("amazon-eks-ami/main/CHANGELOG.md"):
            return http.Answer(url, 200, changelog.encode(), {})
        raise NotThere(f"{url}: HTTP 404")

    monkeypatch.setattr(http.Client, "ask", ask)
    monkeypatch.setattr(facts, "run_rule_tests", lambda _progress: failed)
    (tmp_path / "facts").mkdir()
    own = tmp_path / "facts" / "efa.yml"
    own.write_text("releases: {}\n")
    command = ["facts", "refresh", "eks-1.33-al2023-gpu", "--apply", "--site", str(tmp_path), "--json", "-q"]
    assert cli.main(command) == (1 if failed else 4)
    data = json.loads(capsys.readouterr().out)
    assert (data["written"], data["failed"]) == (not failed, failed)
    table = tmp_path / "facts" / "node_families.yml"
    assert table.exists() is not bool(failed) and own.read_text() == "releases: {}\n"
    assert failed or '"1.39"' in table.read_text().replace("'", '"')


def test_rows_with_which_recipes_have_no_plan_are_not_kept(tmp_path: Path) -> None:
    from gpu_ami.commands import facts
    from gpu_ami.sources import Refreshed

    folder = tmp_path / "facts"
    folder.mkdir()
    (folder / "cuda.yml").write_text("releases: {}\n")
    before = "releases: {}\n"
    found = Refreshed(texts={"cuda": "releases: {'13.0': {}}\n"}, before={"cuda": before})
    recipe = tmp_path / "image.yml"
    recipe.write_text("flag: x\n")
    failed = facts.apply_rows(found, folder, None, [recipe], Progress(stream=io.StringIO()))
    assert len(failed) == 1 and failed[0].startswith("image: ")
    assert (folder / "cuda.yml").read_text() == before


def test_words_of_refresh_belong_to_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["facts", "p5", "--write"]) == 2
    assert "belong to `gpu-ami facts refresh`" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["instance_types", "families", "driver", "cuda", "efa", "os"])
def test_all_facts_are_as_the_schema_says(kind: str) -> None:
    """Every row of every table: the types are in facts_results.py."""
    facts = load_facts()
    answers = {
        "instance_types": [fact_queries.about_instance_type(facts, n) for n in facts.instance_types["instance_types"]],
        "families": [fact_queries.about_instance_type(facts, name) for name in facts.instance_types["families"]],
        "driver": [fact_queries.about_driver(facts, branch) for branch in facts.nvidia_drivers["branches"]],
        "cuda": [fact_queries.about_cuda(facts, release) for release in facts.cuda["releases"]],
        "efa": [fact_queries.about_efa(facts, release) for release in facts.efa["releases"]],
        "os": [fact_queries.about_os(facts, name) for name in facts.operating_systems],
    }
    for answer in answers[kind]:
        valid(json.loads(json.dumps(answer, default=str)), "facts")
