"""The command line: help that teaches, errors that say what to do, exit codes, JSON for machines."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli, commands
from gpu_ami.errors import BuildError, CapacityError, CloudError, GpuAmiError, ImageFailed, UsageError
from gpu_ami.region import provider


def subcommands() -> dict[str, argparse.ArgumentParser]:
    return cli.verbs_of(cli.make_parser())


def test_every_command_teaches() -> None:
    class Lister(argparse.RawDescriptionHelpFormatter):
        def add_argument(self, action: argparse.Action) -> None:
            assert action.help, f"{self._prog}: {action.dest} is not explained"
            super().add_argument(action)

    for name, parser in subcommands().items():
        parser.formatter_class = Lister
        text = parser.format_help()
        assert parser.epilog, f"gpu-ami {name} --help shows no examples or background"
        assert "--json" in text and "--debug" in text, name


def test_the_line_is_all_there() -> None:
    wanted = {"plan", "build", "validate", "certify", "prove", "sweep", "region", "doctor", "events", "xid"}
    assert wanted <= set(subcommands())


@pytest.mark.parametrize(
    ("error", "exit_code"),
    [
        (ImageFailed("x"), 1), (UsageError("x"), 2), (BuildError("x"), 3), (CloudError("x"), 4),
        (CapacityError("x"), 5),
        (KeyboardInterrupt(), 130),
    ],
)  # fmt: skip
def test_errors_become_a_message_and_an_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, exit_code: int
) -> None:
    def fail(*_: Any) -> commands.Outcome:
        raise error

    monkeypatch.setattr("gpu_ami.commands.doctor.execute", fail)
    assert cli.main(["doctor"]) == exit_code
    said = capsys.readouterr().err
    assert said.startswith("gpu-ami doctor: ") and "Traceback" not in said


@pytest.mark.parametrize(
    ("command", "again"),
    [
        ("prove x.yml", "the same command again"), ("faults", "the same command with --resume"), ("doctor", ""),
        ("build", "with --layers all it goes on after the last layer"), ("rehearse", "the same command goes on"),
        ("validate", "run the command again: it repeats all checks"), ("publish out", "it goes on from there"),
        ("attach --host ssh://a@b", "the same command goes on"), ("fleet attach", "the same command goes on"),
        ("sweep", "goes on with the rest"), ("sources", "the answers that arrived"), ("record", "records the types"),
    ],
)  # fmt: skip
def test_ctrl_c_says_how_to_go_on_where_one_can(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, again: str
) -> None:
    def interrupted(*_: Any) -> commands.Outcome:
        raise KeyboardInterrupt

    name, *words = command.split()
    module = provider().commands.get(name, f"gpu_ami.commands.{name}")
    monkeypatch.setattr(f"{module}.execute", interrupted)
    assert cli.main([name, *words]) == 130
    told = capsys.readouterr().err
    assert f"gpu-ami {name}: interrupted" in told
    assert (again in told) and ("→" in told) == bool(again)


@pytest.mark.parametrize("command", ["attach --host ssh://a@b", "fleet attach", "fleet detach", "sweep"])
def test_ctrl_c_does_not_say_that_all_is_as_before_where_it_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    def interrupted(*_: Any) -> commands.Outcome:
        raise KeyboardInterrupt

    name, *words = command.split()
    monkeypatch.setattr(f"gpu_ami.commands.{name}.execute", interrupted)
    assert cli.main([name, *words]) == 130
    assert "was cleaned up" not in capsys.readouterr().err


@pytest.mark.parametrize(("before", "ends"), [(signal.SIG_IGN, 0), (signal.SIG_DFL, 130)])
def test_hangup_that_nohup_ignores_stays_ignored(
    monkeypatch: pytest.MonkeyPatch, before: signal.Handlers, ends: int
) -> None:
    def execute(*_: Any) -> commands.Outcome:
        os.kill(os.getpid(), signal.SIGHUP)
        return commands.Outcome("")

    monkeypatch.setattr("gpu_ami.commands.doctor.execute", execute)
    own = {signum: signal.getsignal(signum) for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT)}
    try:
        signal.signal(signal.SIGHUP, before)
        assert cli.main(["doctor"]) == ends
    finally:
        for signum, handler in own.items():
            signal.signal(signum, handler)


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> commands.Outcome:
        raise CloudError("x")

    monkeypatch.setattr("gpu_ami.commands.doctor.execute", fail)
    with pytest.raises(GpuAmiError):
        cli.main(["doctor", "--debug"])


def test_output_options_of_a_verb() -> None:
    parse = cli.make_parser().parse_args
    assert parse(["region", "status", "--json", "-q"]).json is True
    before = parse(["region", "--json", "status"])
    assert before.json is True and before.quiet is False


def test_error_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*_: Any) -> commands.Outcome:
        raise UsageError("what", hint="do this", details=["where"])

    monkeypatch.setattr("gpu_ami.commands.doctor.execute", fail)
    assert cli.main(["doctor", "--json"]) == 2
    assert json.loads(capsys.readouterr().out) == {
        "error": "what",
        "details": ["where"],
        "hint": "do this",
        "exit_code": 2,
    }


def test_message_has_what_where_and_what_to_do() -> None:
    assert str(UsageError("what", hint="do this", details=["where: found"])) == "what\n  where: found\n  → do this"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["build", "no-such-folder"], "gpu-ami plan RECIPE"),
        (["build"], "there is no plan under out/"),
        (["validate", "x", "--host", "ssh://a@127.0.0.1:1"], "no plan.json there"),
        (["plan", "x.yml", "--where", "no-such-place.yml"], "no-such-place.yml"),
        (["sweep", "--where", "no-such-place.yml"], "no-such-place.yml"),
    ],
)  # fmt: skip
def test_wrong_input_ends_with_2_and_says_what_to_do(
    argv: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*argv, "-q"]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["certifyy"], "did you mean certify?"),
        (["plan", "x", "--wher", "aws.yml"], "unrecognized arguments: --wher aws.yml; did you mean --where?"),
        (["plan", "x", "-o", ""], "-o: expected a value, got an empty text"),
        (["runbook", "gpu-rest"], "did you mean gpu-reset?"),
        (["-q", "checks"], "-q is an option of other commands, and stands after its command"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_runbook_takes_an_xid_as_logs_write_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = []
    for word in ("79", "Xid 79", "XID 79", "xid79"):
        assert cli.main(["runbook", word]) == 0
        shown.append(capsys.readouterr().out)
    assert len(set(shown)) == 1 and "79" in shown[0]


def test_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["certifyy"]) == 2
    said = capsys.readouterr().err
    assert "invalid choice: 'certifyy'" in said and "usage: gpu-ami " in said


def test_reader_that_closes_early_is_no_error() -> None:
    command = f"{sys.executable} -m gpu_ami xid --json 63 | true"
    assert subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, check=False).returncode == 0


def test_help_groups_every_command_once(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    printed = capsys.readouterr().out
    titles = [line.strip(" :") for line in printed.splitlines() if line.startswith("  ") and line.endswith(":")]
    assert titles == [*commands.GROUPS, "region of this machine"]
    assert len(set(commands.NAMES)) == len(commands.NAMES)
    listed = [line.split()[0] for line in printed.splitlines() if re.match(r"    [a-z]", line)]
    assert [name.rstrip("_").replace("_", "-") for name in commands.NAMES] == listed[: len(commands.NAMES)]


@pytest.mark.parametrize(("exit_code", "expected"), [(0, 0), (1, 1), (None, 128 + signal.SIGPIPE)])
def test_a_closed_pipe_proves_nothing(monkeypatch: pytest.MonkeyPatch, exit_code: int | None, expected: int) -> None:
    """The reader of the output (`| head`) ended: after the command its own exit code counts, before no success."""

    def closed(*_: Any) -> Any:
        raise BrokenPipeError

    def executed(*_: Any) -> commands.Outcome:
        return closed() if exit_code is None else commands.Outcome("done", exit_code=exit_code)

    args = argparse.Namespace(execute=executed, json=False, debug=False, quiet=True, command="prove")
    monkeypatch.setattr(cli, "make_parser", lambda: argparse.Namespace(parse_args=lambda _: args))
    monkeypatch.setattr(cli, "print_outcome", closed)
    for stream in ("stdout", "stderr"):  # which are silenced
        monkeypatch.setattr(sys, stream, getattr(sys, stream))
    assert cli.main(["prove"]) == expected
