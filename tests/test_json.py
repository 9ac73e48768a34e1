"""--json for machines: every command's output by its schema in docs/schemas/, errors on the same stream."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from gpu_ami import cli, commands
from gpu_ami.build.ansible import Converged
from gpu_ami.build.image import Build
from gpu_ami.cloud.sweep import Swept
from gpu_ami.errors import BuildError, counted
from gpu_ami.events import catalogue
from gpu_ami.events.reader import parser_folder
from gpu_ami.faults.catalogue import MISSED, CleanProof, Record, Trial
from gpu_ami.json_schemas import commands_schema
from gpu_ami.progress import Progress
from gpu_ami.region import provider
from gpu_ami.report import writer
from tests.json_documents import valid
from tests.report.examples import everything

COMMANDS: Any = commands_schema()["$defs"]
XID = "[1.0] NVRM: Xid (PCI:0000:00:1e): 79, pid=123, name=x, GPU has fallen off the bus.\n"
CONVERGED = Converged(3, ("Install",), (("Install", 2.0),), 4.0)
TEMPLATE = {"variables": {"flag": "x"}, "builders": [{"type": "amazon-ebs", "region": "eu-central-1"}]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    """A user's folder with what the commands below read."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aws.yml").write_text("region: eu-central-1\n")
    (tmp_path / "dmesg").write_text(XID)
    (tmp_path / "agent.json").write_text(json.dumps({"logs": {"logs_collected": {}}, "unknown": 1}))
    (tmp_path / "old.json").write_text(json.dumps(TEMPLATE))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["plan", "debian12-gpu", "--where", "aws.yml"],
        ["plan", "debian12-gpu", "--explain"],
        ["plan", "debian12-gpu", "--diff"],
        ["init", "mine"],
        ["recipes", "debian12"],
        ["facts", "p5.48xlarge"],
        ["facts", "p5"],
        ["facts", "trn1.32xlarge"],
        ["facts", "--driver", "580"],
        ["facts", "--cuda", "13.0"],
        ["facts", "--efa", "1.49.0"],
        ["facts", "--os", "al2023"],
        ["facts", "--stale", "0"],
        ["bump", "al2023-neuron", "--dry-run"],
        ["doctor"],
        ["xid", "79"],
        ["events", "dmesg"],
        ["xid", "12028", "48", "149"],
        ["launch-template", "ami-0123456789abcdef0", "--instance-type", "g5.xlarge", "--where", "aws.yml"],
        ["runbook"],
        ["runbook", "79"],
        ["runbook", "43"],
        ["runbook", "agent-silent"],
        ["runbook", "gpu-reset", "--pattern"],
        ["lint-agent", "agent.json"],
        ["plan", "debian12-gpu", "--explain", "--set", "cuda.version=12.4"],
        ["plan", "al2023-compute", "ubuntu2204-compute", "--diff"],
        ["checks", "--role", "hygiene"],
        ["import", "old.json"],
        ["region", "status"],
        ["region", "down"],
        ["sweep"],
        ["faults", "--list"],
    ],
    ids=" ".join,
)
def test_output_is_as_its_schema_says(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    code = cli.main([*words, "--json", "-q"])
    out = capsys.readouterr().out
    assert code in (0, 1, 2) and out
    data = json.loads(out)
    assert "error" not in data, data
    valid(data, words[0])


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("build", asdict(Build("ami-1", ("snap-1",), "sha256:1", "sha256:2", "aws", "eu-central-1", "r", "now"))),
        ("build", asdict(Build("ami-1", (), "s", "s", "aws", "r", "r", "now", asdict(CONVERGED), "ami-2"))),
        ("attach", asdict(CONVERGED)),
        ("sweep", [asdict(Swept("instance", "i-1", "r", "expired", "removed"))]),
        ("sweep", [asdict(Swept("instance", "i-1", "r", "expired", "not removed", "UnauthorizedOperation"))]),
        ("faults", Record("ami-1", "g5.xlarge", {"x": Trial("x", MISSED)}, [CleanProof("now", 3, 1.0)]).to_json()),
    ],
)
def test_results_that_need_a_machine_are_as_their_schema_says(name: str, data: Any) -> None:
    valid(json.loads(json.dumps(data)), name)


def test_every_code_is_explained_as_the_schema_says() -> None:
    data = parser_folder() / "hwevents" / "data"
    codes = []
    for kind in ("xid", "sxid"):
        with (data / f"{kind}.csv").open(encoding="utf-8", newline="") as file:
            codes += [row[kind] for row in csv.DictReader(file)]
    assert len(codes) > 500
    valid(json.loads(json.dumps([asdict(catalogue.explain(code)) for code in codes])), "xid")


def test_events_are_as_their_schema_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transcripts = Path(__file__).parent / "transcripts"
    lines = [case["text"] for case in yaml.safe_load((transcripts / "xids.yml").read_text())]
    (tmp_path / "kern.log").write_text("".join(f"[1.0] {line}\n" for line in lines))
    assert cli.main(["events", str(tmp_path / "kern.log"), "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(events) >= len(lines) * 0.8
    for event in events:
        valid(event, "events")


def test_what_was_left_out_of_a_log_is_as_its_schema_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kern.log").write_text("app[7]: NVRM: Xid (PCI:0000:3b:00): 79, lost\n[2.5] NVRM: Xid (PCI:0000:3b")
    assert cli.main(["events", str(tmp_path / "kern.log"), "--json"]) == 0
    [left_out] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {line["why"] for line in left_out["lines"]} == {"by_program", "cut"}
    valid(left_out, "events")


def test_report_and_certificate_are_as_their_schemas_say(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`validate` and `record` print the report, `certify` and `prove` the certificate; both from their own records."""
    report = everything()
    writer.write(report, folder)
    assert cli.main(["certify", str(folder), "--json", "-q"]) == report.exit_code
    data = json.loads(capsys.readouterr().out)
    for command in ("certify", "prove"):
        valid(data, command)
    for command in ("validate", "record"):
        valid(report.to_json(), command)
        with pytest.raises(jsonschema.ValidationError):
            valid(report.to_json() | {"unknown": 1}, command)
        with pytest.raises(jsonschema.ValidationError):
            valid({"schema": "gpu-ami/report/2", "verdict": "PASS", "hosts": []}, command)


def test_a_region_that_is_up_is_as_its_schema_says() -> None:
    instance = {
        "id": "i-1", "state": "running", "type": "g5.xlarge", "image": "ami-1", "address": "127.20.0.4",
        "tags": {"Name": "x"}, "problem": "",
    }  # fmt: skip
    status = {
        "up": True, "home": "/x", "process": {"pid": 1, "started": "s"}, "endpoint": "http://127.0.0.1:1",
        "guest_endpoint": "http://169.254.169.251", "mirror": None, "region": "us-east-1", "network": "127.20.0.0/16",
        "subnet_id": "subnet-1", "security_group_ids": ["sg-1"], "instance_profile": "gpu-ami-local", "ssh_port": 2222,
        "conditions": "", "hypervisor": "QEMU 10.0.2",
        "persistent": True, "holds": [], "refused": {"RequestLimitExceeded": 2},
        "instances": [instance], "images": [], "acceleration": None,
        "space": {"base-image": {"count": 2, "bytes": 10}},
    }  # fmt: skip
    valid(status, "region")
    with pytest.raises(jsonschema.ValidationError):
        valid(status | {"instances": [instance | {"state": "broken"}]}, "region")


def loose(schema: Any, path: str = "") -> Iterator[str]:
    """Objects of a schema that let keys pass which it does not name."""
    if isinstance(schema, dict):
        if schema.get("type") == "object" and schema.get("additionalProperties", {}) == {}:
            yield path
        for key, below in schema.items():
            yield from loose(below, f"{path}/{key}")
    elif isinstance(schema, list):
        for index, below in enumerate(schema):
            yield from loose(below, f"{path}/{index}")


def test_schemas_name_every_key() -> None:
    """Open are only what another document describes: a recipe, EC2's launch template, two members of an event."""
    event = "/events/anyOf/0/properties"
    described = {
        "/import/properties/recipe", "/launch-template/items/properties/data", f"{event}/_aws", f"{event}/details",
    }  # fmt: skip
    assert set(loose(COMMANDS)) == described


def test_every_command_has_a_schema() -> None:
    names = {name.rstrip("_").replace("_", "-") for name in commands.NAMES}
    assert (names | set(provider().commands)) - set(COMMANDS) == set()


def test_schemas_refuse_what_they_do_not_describe() -> None:
    for name, data in (("facts", {"memory gib": 1, "sources": []}), ("attach", {"ok": "3"}), ("error", {"error": "x"})):
        with pytest.raises((jsonschema.ValidationError, AssertionError)):
            valid(data, name)


@pytest.mark.parametrize(
    "words",
    [
        ["plan", "no-such-image"],
        ["plan", "debian12-gpu", "--set", "nonsense"],
        ["certify", "nowhere"],
        ["plan", "--nonsense"],
        ["bild"],
        [],
    ],
    ids=" ".join,
)
def test_errors_come_as_json_on_stdout(folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    assert cli.main([*words, "--json"]) == 2
    captured = capsys.readouterr()
    data = json.loads(captured.out)
    valid(data, "error")
    assert data["exit_code"] == 2 and data["error"] and "error" not in captured.err


def test_interruption_is_an_error_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupt(*_: Any) -> commands.Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr("gpu_ami.commands.doctor.execute", interrupt)
    assert cli.main(["doctor", "--json"]) == 130
    data = json.loads(capsys.readouterr().out)
    valid(data, "error")
    assert data["exit_code"] == 130


def test_details_and_hint_are_kept(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: Any) -> commands.Outcome:
        raise BuildError("failed", details=["a", "b"], hint="do this")

    monkeypatch.setattr("gpu_ami.commands.doctor.execute", fail)
    assert cli.main(["doctor", "--json"]) == 3
    data = json.loads(capsys.readouterr().out)
    assert data == {"error": "failed", "details": ["a", "b"], "hint": "do this", "exit_code": 3}


def test_progress_lines_are_as_their_schema_says(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress("json")
    with progress.stage("build"):
        progress.note("news")
    for line in capsys.readouterr().err.splitlines():
        valid(json.loads(line), "progress")


@pytest.mark.parametrize(("number", "text"), [(0, "0 mistakes"), (1, "1 mistake"), (2, "2 mistakes")])
def test_nouns_are_counted(number: int, text: str) -> None:
    assert counted(number, "mistake") == text
