"""`gpu-ami events`: the table, JSON lines, gzipped logs, a host's log, and what it says when it cannot read."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import events
from gpu_ami.cli import main
from gpu_ami.errors import MachineError, UsageError

LOG = """\
Jul 20 16:33:30 gpu kernel: NVRM: GPU at PCI:0000:00:1e: GPU-12345678-1234-1234-1234-123456789abc
Jul 20 16:33:31 gpu kernel: NVRM: Xid (PCI:0000:00:1e): 63, pid=7, name=evil\x1b[2J, Row Remapper: New row marked
Jul 20 16:33:32 gpu kernel: NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.
Jul 20 16:33:33 gpu NVRM: Xid (PCI:0000:00:1d): 79, GPU has fallen off the bus.
"""


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(list(words))
    told = capsys.readouterr()
    return code, told.out, told.err


def test_table_names_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    code, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert code == 0
    header, remap, loss, drill, _, *summary = out.splitlines()
    assert header.split() == ["TIME", "GPU", "EVENT", "SEVERITY", "WHAT", "DO", "BY"]
    assert remap.split("  ")[0] == "Jul 20 16:33:31" and "Xid 63" in remap and remap.endswith("[7]")
    assert "stop_start" in loss and "fatal" in loss
    assert drill.endswith("(drill: written by a process, not by the kernel)")
    assert summary == [
        "0000:00:1e.0 (GPU-12345678-1234-1234-1234-123456789abc): Stop and start the instance so that EC2 moves it to "
        "another host; a reboot stays on the broken one. Because of Xid 79, GPU has fallen off the bus."
    ]


def test_nothing_in_a_log_speaks_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("4,1,2,-;NVRM: Xid (PCI:0000:00:1e): 31, pid=7, name=a\x07b\u202ec, Ch 1\n")
    _, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert "a\ufffdb\ufffdc[7]" in out


def test_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    _, out, _ = run(capsys, "events", str(tmp_path / "log"), "--json")
    assert [(one["line"], one["code"], one["origin"]) for one in map(json.loads, out.splitlines())] == [
        (2, 63, "kernel"), (3, 79, "kernel"), (4, 79, "userland"),
    ]  # fmt: skip


def test_gzipped_log_and_standard_input(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "log.gz").write_bytes(gzip.compress(LOG.encode()))
    _, packed, _ = run(capsys, "events", str(tmp_path / "log.gz"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(LOG.encode())))
    _, piped, _ = run(capsys, "events", "-")
    assert packed == piped and packed.count("Xid") >= 3


def test_a_log_without_events_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text("nothing\n")
    code, out, _ = run(capsys, "events", str(tmp_path / "log"))
    assert code == 0 and "No Xid, no SXid, no lost GPU in this log." in out


def test_policy_changes_the_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log").write_text(LOG)
    (tmp_path / "policy.json").write_text(
        '{"xid": {"63": {"severity": "fatal", "action": "RESET_GPU", "note": "ours"}}}'
    )
    _, out, _ = run(capsys, "events", str(tmp_path / "log"), "--json", "--policy", str(tmp_path / "policy.json"))
    first = json.loads(out.splitlines()[0])
    assert (first["severity"], first["ec2_action"], first["decided_by"]) == ("fatal", "reset_gpu", "policy")


@pytest.mark.parametrize(
    ("policy", "complaint"),
    [
        ("{", "not JSON"),
        ("[]", "an object was expected, found list"),
        ('{"xids": {}}', 'xids: expected "xid", "sxid" or "gpu_lost"'),
        ('{"xid": {"63": 5}}', "xid.63: an object was expected"),
        ('{"xid": {"abc": {"severity": "info"}}}', "xid.abc: a code is a number"),
        ('{"xid": {"63": {"severity": "bad"}}}', "xid.63.severity: 'bad' is none of info, app, warning"),
        ('{"xid": {"63": {"action": "EXPLODE"}}}', "xid.63.action: 'EXPLODE' is none of CHECK_APP/CUDA"),
        ('{"xid": {"63": {"colour": "red"}}}', "xid.63: unknown key colour"),
    ],
)
def test_wrong_policy_names_the_mistake(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], policy: str, complaint: str
) -> None:
    (tmp_path / "log").write_text(LOG)
    (tmp_path / "policy.json").write_text(policy)
    code, _, err = run(capsys, "events", str(tmp_path / "log"), "--policy", str(tmp_path / "policy.json"))
    assert code == 2 and complaint in err


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "name a log FILE (or -), or a host"),
        (["x", "--host", "ssh://a@b"], "one of them"),
        (["x", "--follow"], "--follow needs --host"),
        (["/nonexistent/log"], "/nonexistent/log: No such file or directory"),
        (["/"], "/: Is a directory"),
        (["--host", "http://x"], "is not ssh://user@address:port"),
    ],
)
def test_usage_errors(capsys: pytest.CaptureFixture[str], words: list[str], complaint: str) -> None:
    code, _, err = run(capsys, "events", *words)
    assert code == 2 and complaint in err


class _Host:
    """An SSH connection that answers with a log."""

    def __init__(self, lines: list[bytes]) -> None:
        self.lines = lines
        self.commands: list[str] = []

    def stream(self, command: str) -> Iterator[bytes]:
        self.commands.append(command)
        yield from self.lines

    def __enter__(self) -> _Host:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def test_a_host_is_read_through_the_validators_door(monkeypatch: pytest.MonkeyPatch) -> None:
    from validator import ssh

    host = _Host(LOG.encode().splitlines())
    targets: list[Any] = []
    monkeypatch.setattr(ssh, "connect", lambda target: targets.append(target) or host)
    with events.open_host("ssh://admin@127.0.0.1:2222", key_file=Path("/k")) as stream:
        assert [one["code"] for one in events.read_events(stream)] == [63, 79, 79]
    assert (targets[0].user, targets[0].address, targets[0].port, targets[0].key_file) == (
        "admin",
        "127.0.0.1",
        2222,
        Path("/k"),
    )
    assert "/var/log/gpuevent.jsonl" in host.commands[0]


def test_a_silent_host_is_a_machine_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from validator import ssh

    def refuse(_target: object) -> None:
        raise ssh.SshError("nobody there")

    monkeypatch.setattr(ssh, "connect", refuse)
    with pytest.raises(MachineError, match="nobody there"), events.open_host("ssh://a@b"):
        pass


def test_parser_is_found_in_the_checkout_and_missed_with_a_hint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert (events.parser_folder() / "hwevents" / "textlog.py").is_file()
    monkeypatch.setattr(events, "_PACKAGE", "not_there")
    with pytest.raises(UsageError, match="event parser's code is not there"):
        events.parser_folder()


def test_overlong_lines_are_read_in_bounded_memory() -> None:
    text = (
        b"x" * 300000
        + b"\n[1.0] NVRM: Xid (PCI:0000:00:1e): 31, "
        + b"y" * 300000
        + b"\n[2.0] NVRM: Xid (PCI:0000:00:1e): 13, z"
    )
    found = list(events.read_events(io.BytesIO(text)))
    assert [(one["line"], one["code"]) for one in found] == [(2, 31), (3, 13)]
    assert len(found[0]["message"]) == 4096 and found[0]["truncated"] is True


def test_command_needs_no_heavy_import(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main(["events", "--help"])
    assert "jq .code" in capsys.readouterr().out
