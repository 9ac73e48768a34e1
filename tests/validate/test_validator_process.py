"""The validator as a process: command line, results, and what is kept of one that is cut."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from gpu_ami.cloud import ApiAccess, Credentials, Place
from gpu_ami.errors import MachineError
from gpu_ami.validate import validator_process
from gpu_ami.validate.validator_process import ChecksIncomplete, Target, command_line, run_checks
from tests.report.examples import a_check
from validator.results import CheckRecord, HostResults

TARGET = Target("ssh://admin@10.0.0.7:22", "g5.12xlarge", "i-1", Path("key"), Path("known"))


def test_command_line_names_everything(tmp_path: Path) -> None:
    place = Place("aws", "us-east-1", api=ApiAccess(profile="p"), deadlines={"arrival_seconds": 1200})
    command = command_line(TARGET, tmp_path, Path("plan.json"), place, ["-k", "boot"], checks=[Path("mine")])
    words = [str(word) for word in command]
    for word in (
        "--hosts=ssh://admin@10.0.0.7:22", f"--results={tmp_path}/checks.json", "--plan=plan.json", "--instance-id=i-1",
        "--ssh-identity-file=key", "--known-hosts=known", "--aws-region=us-east-1", "--aws-profile=p", "-k",
        "--arrival-seconds=1200",
    ):  # fmt: skip
        assert word in words
    assert words[-1] == str(Path("mine").absolute()) and words[-2].endswith("validator/checks")
    assert not any(word.startswith("--aws-endpoint") for word in words)


def test_credentials_of_a_place_are_in_the_environment_only() -> None:
    place = Place("x", "r", api=ApiAccess(endpoint="http://x", credentials=Credentials("AKIDEXAMPLE", "s", "")))
    assert validator_process.environment(place)["AWS_ACCESS_KEY_ID"] == "AKIDEXAMPLE"
    assert "AKIDEXAMPLE" not in " ".join(map(str, command_line(TARGET, Path("x"), None, place)))
    assert "AWS_ACCESS_KEY_ID" not in validator_process.environment(None)


def run(folder: Path, program: str) -> HostResults:
    return run_checks([sys.executable, "-c", program, str(folder)], {}, TARGET, folder)


JUDGED = json.dumps(a_check("boot").to_json())


def test_results_are_read(tmp_path: Path) -> None:
    results = HostResults("h", (a_check("boot"),))
    text = json.dumps(results.to_json())
    write = f"import pathlib, sys; (pathlib.Path(sys.argv[1]) / 'checks.json').write_text({text!r}); print('done')"
    assert run(tmp_path, write) == results
    assert (tmp_path / "validator.log").read_text() == "done\n"


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("sys.exit(3)", "the validator did not run all checks on ssh://admin@10.0.0.7:22"),
        ("os.kill(os.getpid(), 15)", "the validator did not run all checks"),
        ("sys.exit(0)", "the validator left no results"),
        ("(folder / 'checks.json').write_text('{')", "the validator left no results"),
        ("(folder / 'checks.json').write_text('{\"schema\": \"gpu-ami/checks/1\"}')", "the validator left no results"),
        ("print(flush=True); time.sleep(60)", "did not complete within"),
    ],
)
def test_validator_that_is_cut_leaves_what_it_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    monkeypatch.setattr(validator_process, "HOST_SECONDS", 3.0 if "sleep" in program else 120.0)
    begin = "import os, pathlib, sys, time; folder = pathlib.Path(sys.argv[1]); "
    journal = f"(folder / 'checks.jsonl').write_text({JUDGED!r} + chr(10) + '{{\"id\": \"cut'); "
    with pytest.raises(ChecksIncomplete, match=message) as caught:
        run(tmp_path, begin + journal + program)
    assert caught.value.results.checks == (a_check("boot"),)
    assert "validator.log" in caught.value.hint


def test_results_of_an_earlier_run_are_never_judged(tmp_path: Path) -> None:
    HostResults("h", (a_check("boot"),)).write(tmp_path / "checks.json")
    (tmp_path / "checks.jsonl").write_text(JUDGED)
    with pytest.raises(ChecksIncomplete) as caught:
        run(tmp_path, "")
    assert caught.value.results.checks == ()


def test_no_check_at_all_is_an_error(tmp_path: Path) -> None:
    text = json.dumps(HostResults("h").to_json())
    with pytest.raises(MachineError, match="no check ran"):
        run(tmp_path, f"import pathlib, sys; (pathlib.Path(sys.argv[1]) / 'checks.json').write_text({text!r})")


def test_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "validator.log").symlink_to("/dev/full")
    with pytest.raises(ChecksIncomplete, match="No space left on device"):
        run(tmp_path, "print('x' * 100)")


CRASHES = {
    "os._exit(9)": "exit status 9",
    "ctypes.string_at(0)": "Segmentation fault",
    "os.abort()": "Aborted",
    "os.kill(os.getpid(), 7)": "Bus error",
}


_OF_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root may enter an image")


@pytest.mark.slow
@pytest.mark.parametrize("host", ["", pytest.param("host", marks=_OF_ROOT)])
@pytest.mark.parametrize("crash", CRASHES)
def test_a_check_that_ends_the_validator_is_named(crash: str, host: str, tmp_path: Path) -> None:
    """The real one, on this machine's own files: what had ended keeps its result, and what crashed is an error."""
    text = f"import ctypes, os\ndef test_a({host}): pass\ndef test_b({host}): {crash}\ndef test_c({host}): pass\n"
    (tmp_path / "test_mine.py").write_text(text)
    command = [
        *validator_process.PYTEST,
        f"--results={tmp_path}/checks.json",
        *(["--hosts=image://%2F"] if host else []),
    ]
    with pytest.raises(ChecksIncomplete) as caught:
        run_checks([*command, str(tmp_path / "test_mine.py")], validator_process.environment(None), TARGET, tmp_path)
    first, crashed = caught.value.results.checks
    assert isinstance(first, CheckRecord) and (first.id, first.verdict) == ("test_mine::test_a", "PASS")
    assert (crashed.id, crashed.verdict) == ("test_mine::test_b", "ERROR")
    assert crashed.message == f"the check ended the validator's process ({CRASHES[crash]})"
    assert caught.value.message.startswith("test_mine::test_b ended the validator's process on ssh://")
    assert "leave it out (-k)" in caught.value.hint and not (tmp_path / "checks.running").exists()


@pytest.mark.slow
def test_a_check_that_crashes_without_a_host_is_named_without_the_engine(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text("import os\ndef test_a(): pass\ndef test_b(): os._exit(9)\n")
    command = [
        *validator_process.PYTEST,
        "--serial",
        f"--results={tmp_path}/checks.json",
        str(tmp_path / "test_mine.py"),
    ]
    with pytest.raises(ChecksIncomplete, match=r"test_mine::test_b ended") as caught:
        run_checks(command, validator_process.environment(None), TARGET, tmp_path)
    assert [record.verdict for record in caught.value.results.checks] == ["PASS", "ERROR"]


def test_a_host_behind_a_program_is_checked_through_it(tmp_path: Path) -> None:
    command = "aws ssm start-session --target i-1 --parameters portNumber=%p"
    target = Target("ssh://admin@i-1:22", proxy_command=command)
    assert f"--proxy-command={command}" in validator_process.command_line(target, tmp_path, None, None)
