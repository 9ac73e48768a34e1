"""testinfra's backend over one link a host: what is sent, what it costs, and what a lost connection does."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest import logging as log_capture

from tests.validator.conftest import Breakable, Sshd, free_port
from validator.transport import backend
from validator.transport.budget import TOTAL_BYTES
from validator.transport.errors import BudgetSpent, CommandExpired, ConnectionDropped, HostGivenUp, HostRefused
from validator.transport.shell import Command
from validator.transport.ssh import Target


@pytest.fixture(autouse=True)
def links() -> Iterator[None]:
    yield
    backend.close_all()


def host_of(sshd: Sshd, **options: object) -> backend.BatchBackend:
    spec = f"{sshd.target().user}@127.0.0.1:{sshd.port}"
    return backend.BatchBackend(spec, ssh_identity_file=str(sshd.key), **options)  # type: ignore[arg-type]


def test_command_and_its_answer(sshd: Sshd) -> None:
    host = host_of(sshd)
    answer = host.run("echo %s; echo bad >&2; exit 3", "two  words")
    assert (answer.rc, answer.stdout, answer.stderr) == (3, "two  words\n", "bad\n")
    assert host.link.cost == {"connections": 1, "executions": 1, "round_trips": 1, "commands": 1}
    host.link.execute([Command("true"), Command("false")], root=False)
    assert host.link.cost == {"connections": 1, "executions": 1, "round_trips": 2, "commands": 3}


def test_invalid_utf_8_is_replaced(sshd: Sshd) -> None:
    assert host_of(sshd).run("printf 'a\\377b'").stdout == "a\ufffdb"


def test_deadline_of_one_command(sshd: Sshd) -> None:
    with pytest.raises(
        CommandExpired, match=r"did not complete within 0\.3 s: echo begun; sleep 30\nlast output: begun"
    ):
        host_of(sshd).run("echo begun; sleep 30", timeout=0.3)


def test_early_connection_is_used(sshd: Sshd) -> None:
    link = backend.HostLink(sshd.target())
    link.connect_early(root=False)
    assert link.known(root=False) is None  # it does not wait
    link.execute([], root=False)
    assert link.known(root=False)  # what is always asked has been answered
    assert link.execute([Command("echo here")], root=False)[0][0].stdout == b"here\n"
    assert link.cost == {"connections": 1, "executions": 1, "round_trips": 3, "commands": 1}
    link.close()


def test_batch_is_resent_after_a_reconnect(sshd: Sshd, breakable: Breakable) -> None:
    link = backend.HostLink(sshd.target(port=breakable.port))
    assert link.execute([Command("true")], root=False)[1] == 1
    breakable.cut()
    answers, attempts = link.execute([Command("echo again")], root=False)
    assert (answers[0].stdout, attempts, link.reconnects, breakable.connections) == (b"again\n", 2, 1, 2)
    link.close()


def test_changing_batch_is_not_resent(sshd: Sshd, breakable: Breakable) -> None:
    link = backend.HostLink(sshd.target(port=breakable.port))
    link.execute([Command("true")], root=False)
    breakable.cut()
    with pytest.raises(ConnectionDropped):
        link.execute([Command("true")], root=False, resend=False)
    assert link.execute([Command("echo next")], root=False)[0][0].stdout == b"next\n"  # the link itself is whole again
    link.close()


def test_unreachable_host_is_tried_once() -> None:
    link = backend.HostLink(Target("127.0.0.1", port=free_port()))
    with pytest.raises(HostRefused) as first:
        link.execute([Command("true")], root=False)
    with pytest.raises(HostRefused) as second:
        link.execute([Command("true")], root=False)
    assert first.value is second.value is link.fault


def test_a_host_whose_budget_is_spent_is_asked_nothing_more(sshd: Sshd) -> None:
    """The check that spent it has a finding about the host; for the others there is no host, as if it were lost."""
    link = backend.HostLink(sshd.target())
    link.budget.bytes = 200_000
    with pytest.raises(BudgetSpent, match="sent more than"):
        link.execute([Command("head -c 300000 /dev/zero")], root=False)
    with pytest.raises(HostGivenUp, match="sent more than"):
        link.execute([Command("true")], root=False)
    assert link.connections == 1
    link.close()


def test_a_new_connection_has_what_the_host_has_left(sshd: Sshd, breakable: Breakable) -> None:
    link = backend.HostLink(sshd.target(port=breakable.port))
    link.execute([Command("head -c 100000 /dev/zero")], root=False)
    breakable.cut()
    link.execute([Command("true")], root=False)
    assert link.reconnects == 1 and link.budget.bytes < TOTAL_BYTES - 100_000
    link.close()


def test_one_link_per_host(sshd: Sshd) -> None:
    assert host_of(sshd).link is host_of(sshd).link is backend.link_to(host_of(sshd).link.target)
    before = host_of(sshd).link
    backend.close_all()
    assert host_of(sshd).link is not before


def test_root_backend_shares_the_link() -> None:
    host = backend.BatchBackend("admin@h", sudo=True, sudo_user="nobody")
    root = host.as_root()
    assert root.link is host.link
    assert (root.sudo, root.sudo_user, host.sudo_user) == (True, None, "nobody")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "cat 'a b'"),
        ({"sudo": True}, "cat 'a b'"),  # the root shell takes it
        ({"sudo": True, "sudo_user": "x y"}, "sudo -n -u 'x y' /bin/sh -c 'cat '\"'\"'a b'\"'\"''"),
    ],
)
def test_command_as_it_is_sent(options: dict[str, object], text: str) -> None:
    assert backend.BatchBackend("admin@h", **options).get_command("cat %s", "a b") == text  # type: ignore[arg-type]


def test_deadline_and_user_of_a_request(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[backend.Request] = []

    def run(request: backend.Request) -> tuple[backend.Answer, int]:
        requests.append(request)
        return backend.Answer(0, b"", b"", 0.0), 1

    monkeypatch.setattr(backend, "runner", run)
    host = backend.BatchBackend("admin@h")
    host.run("true")
    host.as_root().run("true", timeout=5, pure=True)
    backend.BatchBackend("admin@h", sudo=True, sudo_user="nobody").run("true")
    assert [(request.command.deadline, request.root, request.pure) for request in requests] == [
        (backend.DEFAULTS.command_deadline, False, False),
        (5.0, True, True),
        (backend.DEFAULTS.command_deadline, False, False),
    ]


def test_ids_in_the_report(tmp_path: Path) -> None:
    assert backend.BatchBackend("admin@h").get_pytest_id() == "ssh://h"
    assert backend.BatchBackend("admin@h:2222").get_pytest_id() == "ssh://h:2222"
    image = backend.ImageBackend("%2Ftmp%2Fan%20image.raw")
    assert image.get_pytest_id() == "image:///tmp/an image.raw"
    assert image.link.target.user == "root"


def test_background_work_returns_its_result_or_error() -> None:
    caller = threading.get_ident()
    assert backend.in_background(lambda number: (number, threading.get_ident() == caller), 7).result(10) == (7, False)
    with pytest.raises(ZeroDivisionError):
        backend.in_background(lambda: 1 / 0).result(10)


def test_a_thread_makes_a_logger_while_pytest_attaches_its_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest iterates over all loggers; this one lets the thread go on meanwhile, whose libraries make another."""
    manager = logging.Logger.manager
    monkeypatch.setattr(manager, "loggerDict", dict(manager.loggerDict))
    go_on = threading.Event()

    def loads_libraries() -> logging.Logger:
        assert go_on.wait(10)
        return logging.getLogger("made.meanwhile")

    class Meddling(logging.Logger):
        @property
        def propagate(self) -> bool:
            if not go_on.is_set():
                go_on.set()
                made.result(10)
            return True

        @propagate.setter
        def propagate(self, _: bool) -> None: ...

    meddling = Meddling("first")
    manager.loggerDict |= {"first": meddling, "second": meddling}
    made = backend.in_background(loads_libraries)
    with log_capture.catching_logs(logging.NullHandler()):
        pass
    assert made.result(10).name in manager.loggerDict
