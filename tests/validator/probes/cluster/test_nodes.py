"""The file of the nodes, and the addresses at which they reach each other."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scripted_host import Reply, ScriptedConnection
from validator.probes.cluster import nodes
from validator.probes.cluster.nodes import Floor, Group, Member, Node, NodeFailed, Together


def line(answers: Mapping[str, Reply] | None = None, host_key: str = "ssh-ed25519 AAAA") -> Any:
    """A connection: part of a command → its reply, which is on both outputs of a failure. Others print nothing."""
    script: dict[str, Reply] = {}
    for part, reply in (answers or {}).items():
        script[f"*{part}*"] = (*reply, reply[1]) if isinstance(reply, tuple) and reply[0] else reply
    script["*"] = ""
    return ScriptedConnection(script, SimpleNamespace(user="admin"), host_key)


def member(name: str, *addresses: str, private: str = "", **answers: Reply) -> Member:
    rows = tuple((f"eth{index}", ipaddress.IPv4Interface(row)) for index, row in enumerate(addresses))
    return Member(Node(name, f"ssh://admin@{name}:22", private), line(answers), interfaces=rows)


def test_the_file_comes_back_as_it_was_written(tmp_path: Path) -> None:
    group = Group((Node("i-1", "ssh://a@h:22", "10.0.0.4", "/k", "/h"), Node("i-2", "ssh://a@g:22")), True)
    for written in (group, Group(group.nodes, floor=Floor(26.0, 2, 1 << 30, "s", "ring", "simple"))):
        nodes.write(tmp_path / "nodes.json", written)
        assert nodes.read(tmp_path / "nodes.json") == written
    target = group.nodes[0].target()
    assert (target.address, target.key_file, target.known_hosts) == ("h", Path("/k"), Path("/h"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "expected schema gpu-ami/nodes/1"),
        ('{"schema": "gpu-ami/nodes/1", "nodes": [{"name": "i-1", "url": "u"}]}', "at least two nodes, got 1"),
        ('{"schema": "gpu-ami/nodes/1", "nodes": [{"name": "i-1"}, {"where": "i-2"}]}', "missing|unexpected"),
        ('{"schema": "gpu-ami/nodes/1"}', "nodes"),
    ],
)
def test_mistakes_in_the_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "n.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        nodes.read(tmp_path / "n.json")


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        # On AWS: the address that EC2 gives, beside the bridge of Docker.
        (
            {"addresses": ["127.0.0.1/8", "10.0.0.4/20", "172.17.0.1/16"], "private": "10.0.0.4"},
            {"addresses": ["127.0.0.1/8", "10.0.0.5/20", "172.17.0.1/16"], "private": "10.0.0.5"},
            ("10.0.0.4", "10.0.0.5"),
        ),
        # In the local region: EC2's address is the host's, and the first network is the same on every machine.
        (
            {"addresses": ["169.254.2.15/16", "10.20.0.4/16"], "private": "127.20.0.4"},
            {"addresses": ["169.254.2.15/16", "10.20.0.5/16"], "private": "127.20.0.5"},
            ("10.20.0.4", "10.20.0.5"),
        ),
        ({"addresses": ["10.9.0.1/24", "10.20.0.4/16"]}, {"addresses": ["10.20.0.5/16"]}, ("10.20.0.4", "10.20.0.5")),
    ],
)
def test_addresses(first: dict[str, Any], second: dict[str, Any], chosen: tuple[str, str]) -> None:
    members = [
        member(f"i-{index}", *one["addresses"], private=one.get("private", ""))
        for index, one in enumerate((first, second))
    ]
    nodes.choose_addresses(members)
    assert tuple(each.address for each in members) == chosen
    assert ipaddress.ip_address(chosen[0]) in ipaddress.ip_network(members[0].network)


@pytest.mark.parametrize(
    ("addresses", "chosen"),
    [(["127.0.0.1/8", "169.254.2.15/16"], "169.254.2.15"), (["169.254.2.15/16", "10.0.0.4/20"], "10.0.0.4")],
)
def test_node_alone_needs_no_network_with_others(addresses: list[str], chosen: str) -> None:
    alone = member("i-1", *addresses)
    nodes.choose_addresses([alone])
    assert alone.address == chosen


def test_node_alone_needs_an_address_besides_loopback() -> None:
    with pytest.raises(NodeFailed, match="no address in a network"):
        nodes.choose_addresses([member("i-1", "127.0.0.1/8")])


@pytest.mark.parametrize(
    ("first", "second"),
    [(["10.1.0.4/24"], ["10.2.0.5/24"]), (["169.254.2.15/16"], ["169.254.2.15/16"]), ([], ["10.2.0.5/24"])],
)
def test_no_address_in_common(first: list[str], second: list[str]) -> None:
    with pytest.raises(NodeFailed, match=r"i-\d .*no address in a network with the other nodes; its addresses: "):
        nodes.choose_addresses([member("i-1", *first), member("i-2", *second)])


def entered(key: str, address: str, port: int = 22) -> str:
    return (
        f"port {port}\nhome /home/admin\nkey {key}\nboot boot-{key[-1]}\n"
        f"ip 1: lo    inet 127.0.0.1/8 scope host lo\nip 2: ens5    inet {address} brd 10.0.15.255 scope global ens5\n"
    )


def test_keys_are_made_there_exchanged_and_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        line({"ssh-keygen": (0, entered("ssh-ed25519 K1", "10.0.0.4/20", 2200))}, "ssh-ed25519 H1"),
        line({"ssh-keygen": (0, entered("ssh-ed25519 K2", "10.0.0.5/20"))}, "ssh-ed25519 H2"),
    ]
    opened = iter(lines)
    monkeypatch.setattr(nodes.ssh, "connect", lambda _target: next(opened))
    group = [Node("i-1", "ssh://admin@h1:22"), Node("i-2", "ssh://admin@h2:22")]
    with Together(group) as together:
        together.enter()
        assert [each.boot_id for each in together.members] == ["boot-1", "boot-2"]
        written = {command: (data or b"").decode() for command, data in lines[0].asked}
        config = next(text for command, text in written.items() if command.endswith("/config"))
        assert "Host 10.0.0.4\n  Port 2200\n" in config and "StrictHostKeyChecking yes" in config
        known = next(text for command, text in written.items() if command.endswith("/known_hosts"))
        assert known == "[10.0.0.4]:2200 ssh-ed25519 H1\n10.0.0.5 ssh-ed25519 H2\n"
        keys = next(text for command, text in written.items() if command.endswith(">> ~/.ssh/authorized_keys"))
        assert keys == "ssh-ed25519 K1\nssh-ed25519 K2\n"
    for one in lines:
        assert "authorized_keys" in one.asked[-1][0] and f"rm -rf -- {together.folder}" in one.asked[-1][0]
        assert one.closed


def test_a_step_that_fails_names_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = iter(
        [
            line({"ssh-keygen": (0, entered("K1", "10.0.0.4/20"))}),
            line({"ssh-keygen": (127, "ssh-keygen: not found")}),
        ]
    )
    monkeypatch.setattr(nodes.ssh, "connect", lambda _target: next(lines))
    with (
        pytest.raises(NodeFailed, match=r"i-2 .*: no key for the other nodes could be made: ssh-keygen: not found"),
        Together([Node("i-1", "ssh://a@h1:22"), Node("i-2", "ssh://a@h2:22")]) as together,
    ):
        together.enter()


def test_who_does_not_answer_is_named() -> None:
    dead = member("i-2")

    def refuse(*_: Any) -> Any:
        raise nodes.ssh.ConnectionDropped("i-2 closed the connection")

    dead.connection.run = refuse  # type: ignore[method-assign]
    assert Together([], [member("i-1"), dead]).silent() == [dead.name]
