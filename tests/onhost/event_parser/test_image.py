"""What is installed on the image: standard library only, Python 3.7, a complete catalogue, a hardened unit."""

from __future__ import annotations

import ast
import configparser
import csv
import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from gpu_ami import process
from gpu_ami.events.reader import parser_folder, parser_module

FILES = parser_folder()
MODULES = sorted((FILES / "hwevents").glob("*.py"))
PROGRAM = FILES / "aws-hwaccel-event-parser.py"
UNIT = Path(__file__).parents[3] / "roles/event_parser/files/aws-hw-monitor.service"
TOOLS = Path(sys.executable).parent


def imports(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            modules |= {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            modules.add(node.module.partition(".")[0])
    return modules


@pytest.mark.parametrize("path", [PROGRAM, *MODULES], ids=lambda path: path.name)
def test_standard_library_only(path: Path) -> None:
    assert imports(path) <= set(sys.stdlib_module_names) | {"hwevents"}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_modules_are_small(path: Path) -> None:
    # readings.py is one file, since gpu-ami-diagnose carries a copy of it.
    most = 480 if path.name == "readings.py" else 400
    assert len(path.read_text(encoding="utf-8").splitlines()) <= most


def test_runs_on_python_3_7() -> None:
    """vermin finds what Python 3.7 lacks; annotations and type comments are not evaluated."""
    done = process.run(
        [TOOLS / "vermin", "--no-tips", "--violations", "--no-eval-annotations", "-t=3.7-", *MODULES, PROGRAM],
        timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_vermin_check_can_fail(tmp_path: Path) -> None:
    (tmp_path / "new.py").write_text("if (size := 3) > 2:\n    print(size)\n")
    done = process.run([TOOLS / "vermin", "--violations", "-t=3.7-", tmp_path / "new.py"], timeout=60, check=False)
    assert done.returncode != 0


def test_types_are_correct() -> None:
    command = [TOOLS / "mypy", "--strict", "--no-error-summary", "--cache-dir", os.devnull, "-p", "hwevents"]
    done = process.run(command, timeout=120, check=False, cwd=FILES, env={"MYPYPATH": str(FILES)})
    assert done.returncode == 0, done.stdout


def test_program_parses_without_site_packages(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("noise\n[1.0] NVRM: Xid (PCI:0000:00:1e): 79, pid=4, name=a b, GPU has fallen off the bus.\n")
    done = process.run([sys.executable, "-sSE", PROGRAM, "parse", log], timeout=30)
    [event] = [json.loads(line) for line in done.stdout.splitlines()]
    assert {key: event[key] for key in ("line", "kind", "code", "pci", "pid", "process", "origin")} == {
        "line": 2, "kind": "xid", "code": 79, "pci": "0000:00:1e.0", "pid": 4, "process": "a b", "origin": "unknown",
    }  # fmt: skip


def test_program_reports_why_it_cannot_start(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    done = process.run(
        [sys.executable, "-sSE", PROGRAM, "run", "--source", tmp_path / "kmsg", "--state-dir", tmp_path / "state"],
        timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "cannot start" in done.stderr and "kmsg: No such file or directory" in done.stderr


def rows(name: str) -> list[dict[str, str]]:
    with (FILES / "hwevents" / "data" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_catalogue_is_complete() -> None:
    assert [int(row["xid"]) for row in rows("xid.csv")] == list(range(1, 183))
    assert len(rows("sxid.csv")) == 420
    assert len(rows("nvlink5.csv")) == 95
    tables = ("xid.csv", "sxid.csv", "branches.csv", "sxid_branches.csv")
    assert all(row["source"] for name in tables for row in rows(name))


def test_every_action_has_a_meaning_on_ec2() -> None:
    known = {row["action"] for row in rows("actions.csv")}
    used = {row["action"] for name in ("xid.csv", "nvlink5.csv", "branches.csv") for row in rows(name)}
    used |= {row["action"] for row in rows("sxid.csv")} - {""}
    details, catalogue = parser_module("details"), parser_module("catalogue")
    used |= {action for _, _, action in details.RECOVERY_ACTIONS.values()}
    used |= {action for _, action in catalogue.SXID_WORDS.values()}
    assert used <= known
    assert all(row["source"] and int(row["rank"]) >= 0 for row in rows("actions.csv"))


def test_every_code_resolves_to_a_severity() -> None:
    catalogue = parser_module("catalogue").Catalogue(policy_path=None)
    for code in range(1, 300):
        severity = catalogue.xid(code).severity
        assert (
            severity in catalogue_severities()
            or (severity == "decode" and code in range(144, 151))
            or code in (45, 154)
        )


def catalogue_severities() -> tuple[str, ...]:
    severities: tuple[str, ...] = parser_module("catalogue").SEVERITIES
    return severities


def unit() -> configparser.RawConfigParser:
    parsed = configparser.RawConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(UNIT)
    return parsed


def test_unit_is_supervised_and_before_the_agent() -> None:
    service = unit()["Service"]
    assert (service["Type"], service["Restart"]) == ("notify", "always")
    assert int(service["WatchdogSec"]) >= 3 * parser_module("service").Options.heartbeat_s
    assert unit()["Unit"]["Before"] == "amazon-cloudwatch-agent.service"
    assert unit()["Unit"]["StartLimitIntervalSec"] == "0"
    assert "/opt/aws/cloudwatch/nvidia/aws-hwaccel-event-parser.py run" in service["ExecStart"]


def test_unit_is_hardened() -> None:
    """`systemd-analyze security` rates the unit at 2.0 or better."""
    if shutil.which("systemd-analyze") is None:
        pytest.fail("systemd-analyze is not installed: apt-get install systemd")
    done = process.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", UNIT], timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_hardening_check_can_fail(tmp_path: Path) -> None:
    loose = tmp_path / "loose.service"
    loose.write_text("[Service]\nExecStart=/bin/true\n")
    done = process.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", loose],
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
