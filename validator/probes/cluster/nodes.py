"""Several machines of one proof that work together (tier T4): who they are, and how they log in to each other.

The nodes are in a file (`--nodes`), the machine under test first. A folder of the proof's own on each node has a key
that was made there, and the host keys that this machine has seen; `leave` removes both and the line in authorized_keys.
"""

from __future__ import annotations

import concurrent.futures
import ipaddress
import json
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from validator.inputs import parse_json, read_text
from validator.transport import ssh

if TYPE_CHECKING:
    import paramiko

SCHEMA = "gpu-ami/nodes/1"
_COMMENT = "gpu-ami-nodes"
_PROXY_SECONDS = 45.0  # until a tunnel stands and the banner comes through it
_Result = TypeVar("_Result")
# $SSH_CONNECTION: client address and port, address and port of sshd. `ip`: index, name, family, address/prefix, …
_ENTER = """\
umask 077 && mkdir -p ~/.ssh && mkdir {folder} && ssh-keygen -q -t ed25519 -N '' -C {comment} -f {folder}/key || exit 1
printf 'port %s\\n' "${{SSH_CONNECTION##* }}"
printf 'home %s\\n' "$HOME"
printf 'key %s\\n' "$(cat {folder}/key.pub)"
printf 'boot %s\\n' "$(cat /proc/sys/kernel/random/boot_id)"
ip -4 -o addr show up | sed 's/^/ip /'
"""
_LEAVE = "sed -i '/ {comment}$/d' ~/.ssh/authorized_keys; rm -rf -- {folder}"
_IP = re.compile(r"\d+: (?P<name>\S+) +inet (?P<address>[\d.]+/\d+) ")


class NodeFailed(Exception):
    """A node could not be reached, or a step on it failed; the message names node and step."""


@dataclass(frozen=True)
class Floor:
    """The least bus bandwidth in GB/s, in place, for a size in bytes on so many nodes, with its source."""

    gbps: float
    nodes: int
    size: int
    source: str
    algorithm: str = ""
    protocol: str = ""

    @property
    def text(self) -> str:
        return f"at least {self.gbps:g} GB/s at {self.size} bytes on {self.nodes} nodes ({self.source})"


@dataclass(frozen=True)
class Node:
    """One machine. private_address: as EC2 has it; "" where it is not known."""

    name: str
    url: str
    private_address: str = ""
    key_file: str = ""
    known_hosts: str = ""
    proxy_command: str = ""

    def target(self) -> ssh.Target:
        proxy: dict[str, object] = {"proxy_command": self.proxy_command, "banner_timeout": _PROXY_SECONDS}
        rest = proxy if self.proxy_command else {}
        rest |= {
            name: Path(value)
            for name, value in (("key_file", self.key_file), ("known_hosts", self.known_hosts))
            if value
        }
        return ssh.parse_url(self.url, **rest)


@dataclass(frozen=True)
class Group:
    """The machines of one proof, the one under test first, and what is known of their type.

    gpu_direct: NCCL's log names GPUDirect RDMA in its channels between nodes. gpu_direct_unknown: why its absence in
    the log proves nothing, "" where it does. floor: of the bus bandwidth; None: nobody states one. no_floor: why.
    """

    nodes: tuple[Node, ...]
    gpu_direct: bool = False
    floor: Floor | None = None
    gpu_direct_unknown: str = ""
    no_floor: str = ""


def write(path: Path, group: Group) -> None:
    """The file of `--nodes`."""
    content = {"schema": SCHEMA, "gpu_direct": group.gpu_direct, "floor": group.floor and vars(group.floor)}
    content |= {"gpu_direct_unknown": group.gpu_direct_unknown, "no_floor": group.no_floor}
    rows = [vars(node) for node in group.nodes]
    path.write_text(json.dumps(content | {"nodes": rows}, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Group:
    """ValueError: not such a file, or fewer than two nodes."""
    document = parse_json(read_text(path))
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"{path}: expected schema {SCHEMA}")
    try:
        nodes = tuple(Node(**row) for row in document["nodes"])
        floor = Floor(**document["floor"]) if document.get("floor") else None
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path}: {error}") from error
    if len(nodes) < 2:
        raise ValueError(f"{path}: expected at least two nodes, got {len(nodes)}")
    reasons = {name: str(document.get(name) or "") for name in ("gpu_direct_unknown", "no_floor")}
    return Group(nodes, bool(document.get("gpu_direct")), floor, **reasons)


@dataclass
class Member:
    """A node while it works with the others. address: at which the others reach it; network: its subnet, as a CIDR."""

    node: Node
    connection: ssh.Connection
    port: int = 22
    home: str = ""
    key: str = ""
    boot_id: str = ""
    interfaces: tuple[tuple[str, ipaddress.IPv4Interface], ...] = ()
    address: str = ""
    network: str = ""
    interface: str = ""

    @property
    def name(self) -> str:
        return f"{self.node.name} ({self.address or self.node.url})"

    def run(self, command: str, timeout: float = 60.0, input: bytes | None = None) -> ssh.Finished:
        """As the login user. NodeFailed: the node does not answer, or the command took longer."""
        try:
            return self.connection.run(command, timeout, input)
        except ssh.CommandExpired as error:
            raise NodeFailed(f"{self.name}: {error}") from error
        except ssh.SshError as error:
            raise NodeFailed(f"{self.name} does not answer: {error}") from error

    def start(self, command: str, seconds: float) -> paramiko.Channel:
        """Starts a command that serves others, for at most so long; close what it returns. NodeFailed."""
        try:
            return self.connection.open(ssh.bounded(command, seconds))
        except ssh.SshError as error:
            raise NodeFailed(f"{self.name} does not answer: {error}") from error


@dataclass
class Together:
    """The members with keys for each other. Use as a context manager; `leave` never raises."""

    nodes: Sequence[Node]
    members: list[Member] = field(default_factory=list)
    folder: str = field(default_factory=lambda: f"/tmp/{_COMMENT}-{secrets.token_hex(8)}")

    def enter(self) -> None:
        """Makes keys, exchanges them, finds the addresses. NodeFailed names the node and the step; TransportFault."""
        for node in self.nodes:
            self.members.append(Member(node, ssh.connect(node.target())))
        self.each(self._make_key)
        choose_addresses(self.members)
        self.each(self._exchange)

    def each(self, do: Callable[[Member], _Result]) -> list[_Result]:
        """The results of all members, side by side; the first error of one."""
        with concurrent.futures.ThreadPoolExecutor(len(self.members)) as pool:
            return list(pool.map(do, self.members))

    def ssh_command(self) -> str:
        """`ssh` as a member uses it to log in to another one."""
        return f"ssh -F {self.folder}/config"

    def _make_key(self, member: Member) -> None:
        done = member.run(_ENTER.format(folder=self.folder, comment=_COMMENT))
        if done.rc != 0:
            error = done.stderr.decode(errors="replace").strip()
            raise NodeFailed(f"{member.name}: no key for the other nodes could be made: {error or f'rc {done.rc}'}")
        lines = [line.partition(" ")[::2] for line in done.text.splitlines()]
        values = {name: value for name, value in lines if name != "ip"}
        member.port, member.home = int(values["port"]), values["home"]
        member.key, member.boot_id = values["key"], values["boot"]
        matches = [_IP.match(value) for name, value in lines if name == "ip"]
        member.interfaces = tuple((row["name"], ipaddress.IPv4Interface(row["address"])) for row in matches if row)

    def _exchange(self, member: Member) -> None:
        keys = "".join(f"{other.key}\n" for other in self.members)
        known = "".join(f"{_known_name(other)} {other.connection.host_key}\n" for other in self.members)
        config = _config(self.folder, self.members)
        steps = {f"{self.folder}/known_hosts": known, f"{self.folder}/config": config}
        for path, text in steps.items():
            self._require(member, f"umask 077; cat > {path}", text)
        self._require(member, "umask 077; cat >> ~/.ssh/authorized_keys", keys)

    def put(self, name: str, text: str) -> str:
        """Writes a file into the folder on every node; returns its path. NodeFailed."""
        path = f"{self.folder}/{name}"
        self.each(lambda member: self._require(member, f"umask 077; cat > {path}", text))
        return path

    def _require(self, member: Member, command: str, text: str) -> None:
        done = member.run(command, input=text.encode())
        if done.rc != 0:
            raise NodeFailed(f"{member.name}: `{command}`: {done.stderr.decode(errors='replace').strip()}")

    def silent(self, seconds: float = 15.0) -> list[str]:
        """Names of the members that do not answer now."""

        def answers(member: Member) -> bool:
            try:
                return member.run("true", seconds).rc == 0
            except NodeFailed:
                return False

        return [member.name for member, is_there in zip(self.members, self.each(answers), strict=True) if not is_there]

    def leave(self) -> None:
        """Removes keys and folders. What a node that has died still has goes with it."""

        def clean(member: Member) -> None:
            try:
                member.run(_LEAVE.format(folder=self.folder, comment=_COMMENT), 20)
            except NodeFailed:
                pass
            finally:
                member.connection.close()

        if self.members:
            self.each(clean)

    def __enter__(self) -> Together:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def _known_name(member: Member) -> str:
    return member.address if member.port == 22 else f"[{member.address}]:{member.port}"


def _config(folder: str, members: Sequence[Member]) -> str:
    rows = [
        f"Host {member.address}\n  Port {member.port}\n  User {member.connection.target.user}\n" for member in members
    ]
    shared = {
        "IdentityFile": f"{folder}/key",
        "IdentitiesOnly": "yes",
        "UserKnownHostsFile": f"{folder}/known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "BatchMode": "yes",
        "ConnectTimeout": "30",
        "LogLevel": "ERROR",
    }
    return "".join([*rows, "Host *\n", *(f"  {name} {value}\n" for name, value in shared.items())])


def choose_addresses(members: Iterable[Member]) -> None:
    """Sets each member's address, network and interface.

    The private address that EC2 gives, where the machine has it; else an address of its own that no other node has
    (every machine has the bridge of Docker), in a network of all nodes. NodeFailed: there is none.
    """
    members = list(members)
    usable = {id(member): _usable(member, members) for member in members}
    shared = [
        network
        for network in dict.fromkeys(row.network for _, row in usable[id(members[0])])
        if all(any(row.network == network for _, row in usable[id(member)]) for member in members)
    ]
    for member in members:
        rows = usable[id(member)]
        own = [row for row in rows if str(row[1].ip) == member.node.private_address]
        common = [row for row in rows if row[1].network in shared]
        chosen = next(iter(own or common), None)
        if chosen is None:
            shown = ", ".join(f"{name} {row}" for name, row in member.interfaces) or "none"
            raise NodeFailed(f"{member.name}: no address in a network with the other nodes; its addresses: {shown}")
        member.interface, member.address, member.network = chosen[0], str(chosen[1].ip), str(chosen[1].network)


def _usable(member: Member, members: Sequence[Member]) -> list[tuple[str, ipaddress.IPv4Interface]]:
    others = {row.ip for other in members if other is not member for _, row in other.interfaces}
    rows = [row for row in member.interfaces if not (row[1].is_loopback or row[1].ip in others)]
    routed = [row for row in rows if not row[1].is_link_local]
    # A node alone reaches itself at any address. Without --nodes, machines of the local region have a link-local one.
    return routed or (rows if len(members) == 1 else [])
