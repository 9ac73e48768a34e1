"""Somebody else's machine: its address as users write it, and how soon a host that cannot be checked is reported.

A host that gpu-ami did not launch: what is checked, and that it is rebooted only on request.
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli, process
from gpu_ami.errors import MachineError, UsageError
from gpu_ami.report import certificate, document
from gpu_ami.report.document import COMES_BACK, HostReport
from gpu_ami.validate import host_proof, hosts
from gpu_ami.validate.machines.restarts import REBOOT
from gpu_ami.validate.validator_process import Target
from tests.validate.conftest import World
from tests.validate.scripted_proof import ROLES, RUN, a_plain_proof, a_proof, a_report, verdicts, wait_for
from tests.validator.conftest import Sshd, free_port, serve, sshd  # noqa: F401  (fixtures)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("ssh://admin@10.0.0.7:22", "ssh://admin@10.0.0.7:22"),
        ("admin@10.0.0.7", "ssh://admin@10.0.0.7"),
        ("admin@10.0.0.7:2222", "ssh://admin@10.0.0.7:2222"),
        ("admin@[fd00::7]:22", "ssh://admin@[fd00::7]:22"),
    ],
)
def test_address_with_and_without_scheme(text: str, url: str) -> None:
    assert hosts.host_url(text) == url


@pytest.mark.parametrize("text", ["", "http://10.0.0.7", "ssh://", "admin@10.0.0.7:port", "ssh://10.0.0.7/path"])
def test_address_that_is_none_is_refused_in_a_line(text: str) -> None:
    with pytest.raises(UsageError, match="not the address of a host") as caught:
        hosts.host_url(text)
    assert "ssh://admin@10.0.0.7" in caught.value.hint


def test_client_configuration_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh" / "config").write_text("Host gpu\n HostName 10.0.0.7\n User admin\n Port 2200\n")
    named = hosts.ssh_target("ssh://gpu", None)
    assert (named.name, named.search_keys) == ("admin@10.0.0.7:2200", True)
    explicit = hosts.ssh_target("ssh://root@gpu:22", tmp_path / "key")
    assert (explicit.name, explicit.search_keys) == ("root@10.0.0.7:22", False)


def test_host_that_takes_the_key_is_reachable(sshd: Sshd) -> None:  # noqa: F811
    hosts.require_reachable(f"ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}", sshd.key)


def test_host_with_another_key_says_so(sshd: Sshd) -> None:  # noqa: F811
    with pytest.raises(MachineError, match="rejects the key") as caught:
        hosts.require_reachable(f"ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}", sshd.other_key)
    assert "the user and the key" in caught.value.hint


def test_silent_host_costs_one_deadline(serve: Callable[[Any], int], monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(hosts, "CONNECT_SECONDS", 1.0)
    started = time.monotonic()
    with pytest.raises(MachineError, match="sent no SSH banner within 1 s"):
        hosts.require_reachable(f"ssh://root@127.0.0.1:{serve(lambda _: time.sleep(60))}", Path("/dev/null"))
    assert time.monotonic() - started < 10


def validate(*arguments: str) -> int:
    return cli.main(["validate", "--host", *arguments])


@pytest.mark.parametrize("kind", ["refused", "silent", "wrong key"])
def test_validate_of_such_a_host_ends_at_once_with_the_reason(
    kind: str, sshd: Sshd, serve: Callable[[Any], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hosts, "CONNECT_SECONDS", 1.0)
    port = {"refused": free_port, "silent": lambda: serve(lambda _: time.sleep(60)), "wrong key": lambda: sshd.port}
    reason = {"refused": "refuses connections", "silent": "sent no SSH banner", "wrong key": "rejects the key"}
    monkeypatch.setattr(process, "run", lambda *_, **__: pytest.fail("a validator was started"))
    exit_code = validate(f"{getpass.getuser()}@127.0.0.1:{port[kind]()}", "-i", str(sshd.other_key))
    assert exit_code == 4 and reason[kind] in capsys.readouterr().out
    report = json.loads((tmp_path / "out" / "host" / "report.json").read_text())
    assert reason[kind] in report["hosts"][0]["error"] and not list(tmp_path.glob("out/host/evidence/*"))


def test_validate_of_no_address_is_a_usage_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.chdir(tmp_path)
    assert validate("http://10.0.0.7") == 2
    assert "Traceback" not in capsys.readouterr().err


def prove_somebody_elses(tmp_path: Path, *restarts: str, **finds: dict[str, str]) -> HostReport:
    target = Target("ssh://admin@192.0.2.1", "g5.12xlarge")
    return host_proof.prove_host(a_proof(tmp_path, restarts, **finds), RUN, target).hosts[0]


def test_host_that_is_not_ours_is_left_running_unless_asked(world: World, tmp_path: Path) -> None:
    host = prove_somebody_elses(tmp_path)
    found = verdicts(host)
    assert world.calls == [] and host.verdict(ROLES) == "PASS"
    assert (found[f"{COMES_BACK}@reboot"], found[f"{COMES_BACK}@stop-start"]) == ("UNPROVEN", "UNPROVEN")
    named = "\n".join(certificate.not_proven(a_report(host), []))
    assert "did not launch this machine (--reboot reboots it)" in named
    assert "does not stop a machine that it did not launch" in named


def test_host_that_is_not_ours_is_rebooted_on_request(world: World, tmp_path: Path) -> None:
    host = prove_somebody_elses(tmp_path, REBOOT, reboot={"logs": "FAIL"})
    found = verdicts(host)
    assert world.calls == ["reboot"] and found[f"{COMES_BACK}@reboot"] == "PASS"
    assert found["logs::test_it@reboot"] == "FAIL" and found[f"{COMES_BACK}@stop-start"] == "UNPROVEN"


def test_ctrl_c_at_a_host_by_address_leaves_what_was_judged(world: World, waiting: None, tmp_path: Path) -> None:
    def press() -> None:
        wait_for(tmp_path / "evidence" / "192.0.2.1" / "checks.jsonl")
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    threading.Thread(target=press, daemon=True).start()
    with contextlib.ExitStack() as undone, pytest.raises(KeyboardInterrupt):
        undone.callback(signal.signal, signal.SIGINT, before)
        host_proof.prove_host(a_plain_proof(tmp_path), RUN, Target("ssh://admin@192.0.2.1"))
    report = document.load(tmp_path / "report.json")
    assert report.incomplete == "the run was interrupted" and report.exit_code == 4
    assert [check.id for check in report.hosts[0].checks] == ["boot::test_it"]
