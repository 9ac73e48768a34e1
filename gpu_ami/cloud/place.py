"""Where a plan is carried out: AWS, as a `--where FILE` says, or the local region.

Nothing past this module asks which of the two it is. A `--where` file has flat keys; `Place` groups them in parts:
api, network, login, capacity, clusters, machines.

A profile that asks for an MFA code is asked once a run, and every child process gets its credentials:
Packer and the validators would each open the profile again, with a closed stdin, and fail.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from gpu_ami.cloud import aws_errors, runs
from gpu_ami.errors import UsageError, counted
from gpu_ami.files import lines_of, located, read_yaml
from validator.schema import Choice, Integer, Keys, ListOf, MapOf, Mistake, Number, Text, did_you_mean


def with_session_credentials(place: Place) -> Place:
    """The place with the credentials of one session where its profile has `mfa_serial`; else as it is.

    The prompt is botocore's, on the terminal. The credentials last as long as the profile's `duration_seconds` says
    (an hour by default) and are not renewed: the preflight says how long. UsageError: no such profile, no credentials.
    """
    if place.api.endpoint or place.api.credentials:
        return place
    from botocore.session import Session

    name = place.api.profile or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE") or "default"
    with aws_errors.translated(f"opening a session of profile {name}"):
        session = Session(profile=place.api.profile)
        if "mfa_serial" not in session.get_scoped_config():
            return place
        found = session.get_credentials()
        if found is None:
            return place
        keys = found.get_frozen_credentials()
    own = Credentials(keys.access_key or "", keys.secret_key or "", keys.token or "")
    return replace(place, api=replace(place.api, profile=None, credentials=own))


# What Packer's amazon-ebs takes for `ssh_interface`.
SESSION_MANAGER = "session_manager"
SSH_INTERFACES = ("public_ip", "private_ip", "public_dns", "private_dns", SESSION_MANAGER)
JUMP_HOST_PATTERN = r"(?P<user>[\w.][\w.-]*)@(?P<host>[\w][\w.-]*)(:(?P<port>\d{1,5}))?"
WAY_PATTERN = r"on-demand|spot|(reservation|capacity-block):cr-[0-9a-f]{8,17}"
# Names of ECS and EKS clusters (API references of both, CreateCluster).
CLUSTER_PATTERN = r"[A-Za-z0-9][A-Za-z0-9_-]{0,254}"
LOG_GROUPS = ("proof", "production")
_MAX_TAGS = 40  # EC2 allows 50 on a resource; ours (run id, recipe, digest, expiry, …) need room


@dataclass(frozen=True)
class Mirror:
    """A signed mirror of the vendors' hosts: `https://HOST/PATH` is found at `{url}/HOST/PATH`.

    `key_fingerprint`: 40 upper-case hex digits of the OpenPGP key that signed everything in it. `commit`: of a git
    repository's URL and tag, where its repositories are not the vendors' own; None: the vendor's commit is there.
    `digest`: SHA-256 of the file at a vendor's URL, of that version, where it is not the vendor's own; None: it is.
    `archives`: where `https://HOST/PATH` of an operating system's own archive is found, with its own signatures.
    `distributions`: whose archives are beside the vendors' packages, for what roles of a site install; the first is for
    other systems of its kind.
    """

    url: str
    key_fingerprint: str
    commit: Callable[[str, str], str | None] = field(default=lambda _url, _tag: None, repr=False, compare=False)
    digest: Callable[[str, str], str | None] = field(default=lambda _url, _version: None, repr=False, compare=False)
    archives: str = ""
    distributions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Credentials:
    """Keys of an endpoint that is not AWS, or of one session with MFA; else boto3 finds them (profile, role, …)."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


@dataclass(frozen=True)
class ApiAccess:
    """How AWS's API is reached.

    endpoint: URL where *we* reach it; None: AWS itself. guest_endpoint: where an *instance* reaches it.
    consistent_seconds: how long AWS may not know what has just been created, and leave it out of lists. is_account: an
    endpoint has the settings of an account, and answers about them as AWS does.
    """

    profile: str | None = None
    endpoint: str | None = None
    credentials: Credentials | None = None
    guest_endpoint: str | None = None
    is_account: bool = False
    consistent_seconds: float = 120.0  # EC2 API reference, "Eventual consistency", read 2026-11-22: retry for minutes

    def keys(self) -> dict[str, str]:
        """The place's own keys, for the environment of a program with an AWS SDK; {} where that finds its own."""
        own = self.credentials
        if own is None:
            return {}
        keys = {"AWS_ACCESS_KEY_ID": own.access_key_id, "AWS_SECRET_ACCESS_KEY": own.secret_access_key}
        return keys | {"AWS_SESSION_TOKEN": own.session_token}  # "" takes the caller's own away

    def environment(self) -> dict[str, str]:
        """Its own endpoint and keys, for a program that is given no other access to it."""
        found = {"AWS_ENDPOINT_URL": self.endpoint} if self.endpoint else {}
        return found | ({"AWS_PROFILE": ""} if self.credentials else {}) | self.keys()


@dataclass(frozen=True)
class Network:
    """Where instances are launched. subnet_ids: the next is tried where one has no capacity; (): the default VPC's."""

    subnet_ids: tuple[str, ...] = ()
    security_group_ids: tuple[str, ...] = ()

    @property
    def subnet_id(self) -> str | None:
        """The first subnet; None for one of the default VPC."""
        return self.subnet_ids[0] if self.subnet_ids else None

    @property
    def subnets(self) -> tuple[str, ...]:
        """The subnets to launch in, in order; one empty name for a subnet of the default VPC."""
        return self.subnet_ids or ("",)


@dataclass(frozen=True)
class Login:
    """SSH logins to instances (login.py). ssh_interface: as in Packer's amazon-ebs. ssh_port: of every instance.

    jump_host, proxy_command, instance_connect_endpoint: what an SSH connection goes through; at most one of them.
    """

    ssh_interface: str = "public_ip"
    ssh_port: int = 22
    jump_host: str | None = None
    jump_key: str | None = None
    proxy_command: str | None = None
    instance_connect_endpoint: str | None = None


@dataclass(frozen=True)
class Capacity:
    """How capacity is bought. ways: pattern of instance types → ways (capacity.py), in order.

    minutes: for how long they are tried again. start_minutes: for how long a stopped instance is started again at
    least: EC2 often has capacity minutes after a stop. no_stop_start: patterns of instance types whose machines are not
    stopped and started, which the proof then leaves out. builder_types: architecture → instance types on which an image
    is built where the plan's has no capacity, in order.
    """

    ways: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    minutes: int = 0
    start_minutes: int = 5
    no_stop_start: tuple[str, ...] = ()
    builder_types: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def stops(self, instance_type: str) -> bool:
        """Whether a proof stops and starts machines of an instance type."""
        return not any(fnmatch.fnmatchcase(instance_type, pattern) for pattern in self.no_stop_start)


@dataclass(frozen=True)
class Clusters:
    """Clusters that nodes join. name: the one that `--join` without a name means, of ECS or EKS; None: a proof's own.

    versions: Kubernetes versions of which the place starts an EKS cluster at once. guest_endpoint: at which its
    instances reach that cluster, where the caller's address is another one.
    """

    name: str | None = None
    versions: tuple[str, ...] = ()
    guest_endpoint: str | None = None


@dataclass(frozen=True)
class MachineTraits:
    """What the machines of a place are.

    simulated: their hardware is simulated, which reports say. billed: they cost money. slow_python: they are emulated,
    and Python starts slowly on them. kernel: series of the kernel that each boots, whatever its AMI's own would be.
    kernels: system (`debian 13`) → its series, where that is another.
    hypervisor: name and version of what runs them, where the place knows it; reports say it. sandbox_builder: roles run
    in a sandbox of this host, not on a booted builder (docs/local-region.md).
    """

    simulated: bool = False
    billed: bool = True
    slow_python: bool = False
    kernel: str | None = None
    kernels: Mapping[str, str] = field(default_factory=dict)
    hypervisor: str | None = None
    sandbox_builder: bool = False


@dataclass(frozen=True)
class Place:
    """A region and what to use in it.

    instance_profile: name of the profile that instances run with. source_ami: id that overrides the plan's.
    conditions: name and seed of a rehearsal's conditions (docs/conditions.md), "" for none. dead_man_role: ARN of the
    role in which EventBridge Scheduler terminates an instance at its expiry; None: the guest alone does.
    log_groups: where a proof's machines send their logs: `proof` (groups of its own, removed afterwards) or
    `production` (the plan's). deadlines: seconds that override variables/facts/deadlines.yml: boot_seconds,
    stop_seconds, arrival_seconds. expect_launch: callback(source_ami), called when Packer starts.
    image_days: an AMI that is built there expires after so many days unless it is published; 0: never.
    prices: US dollars an hour by instance type, before those of the facts. file: that it was read from, if it was.
    """

    name: str
    region: str
    api: ApiAccess = field(default_factory=ApiAccess)
    network: Network = field(default_factory=Network)
    login: Login = field(default_factory=Login)
    capacity: Capacity = field(default_factory=Capacity)
    clusters: Clusters = field(default_factory=Clusters)
    machines: MachineTraits = field(default_factory=MachineTraits)
    tags: Mapping[str, str] = field(default_factory=dict)
    kms_key_id: str | None = None
    instance_profile: str | None = None
    dead_man_role: str | None = None
    source_ami: str | None = None
    mirror: Mirror | None = None
    log_groups: str = "proof"
    deadlines: Mapping[str, int] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    image_days: int = 0
    conditions: str = ""
    file: runs.PlaceFile | None = field(default=None, compare=False)
    expect_launch: Callable[[str], object] = field(default=lambda _image_id: None, repr=False, compare=False)

    def in_region(self, region: str) -> Place:
        """The same account and endpoint in a region, whose default network is used."""
        return replace(self, region=region, network=Network())

    @property
    def answers_preflight(self) -> bool:
        """Whether it answers what a preflight asks, as AWS does; not an endpoint of its own, such as a test's."""
        return self.api.endpoint is None or self.api.is_account


def _own_names(part: type) -> Mapping[str, str]:
    return {one.name: one.name for one in fields(part)}


# Parts of Place: flat key → field.
_PARTS: Mapping[str, Mapping[str, str]] = {
    "api": _own_names(ApiAccess),
    "network": _own_names(Network),
    "login": _own_names(Login),
    "capacity": {
        "capacity": "ways",
        "capacity_minutes": "minutes",
        "builder_types": "builder_types",
        "no_stop_start": "no_stop_start",
    },
    "clusters": {"cluster": "name", "cluster_versions": "versions"},
}


def place_of(values: Mapping[str, Any]) -> Place:
    """Builds a place from flat keys, as a `--where` file has them, checked and of the types of the fields."""
    return with_keys(Place(values["name"], values["region"]), values)


def with_keys(place: Place, values: Mapping[str, Any]) -> Place:
    """Replaces fields of a place and of its parts by flat keys, as of `place_of`."""
    parts = {
        name: replace(getattr(place, name), **{names[key]: values[key] for key in names.keys() & values.keys()})
        for name, names in _PARTS.items()
    }
    in_parts = {key for keys in _PARTS.values() for key in keys}
    return replace(place, **{key: value for key, value in values.items() if key not in in_parts}, **parts)


def _like(pattern: str, example: str) -> Text:
    return Text(example, pattern)


# Regions of every partition: eu-central-1, us-gov-west-1, us-isob-east-1, eusc-de-east-1. A Region that is newer than
# botocore is one all the same, a misspelt direction is not.
_DIRECTIONS = "(?:north|south)?(?:east|west)|north|south|central"
REGION_PATTERN = rf"[a-z]{{2,4}}(?:-[a-z]+)?-(?:{_DIRECTIONS})-\d{{1,2}}"


@functools.cache
def _known_regions() -> tuple[str, ...]:
    from botocore.session import Session

    session = Session()
    of = session.get_available_regions
    return tuple(name for partition in session.get_available_partitions() for name in of("ec2", partition))


def unknown_region(place: Place) -> str:
    """A note where botocore does not know the place's Region: a newer one, or a typing error; "" else."""
    if place.api.endpoint or place.mirror or place.region in _known_regions():
        return ""
    near = did_you_mean(place.region, _known_regions())
    return f"Region {place.region} is none that botocore knows: is it newer, or misspelt{near or '?'}"


# Plans, certificates and Packer's files repeat a URL: it has no user and no password.
_URL = _like(r"https?://[^\s/@]+(/\S*)?", "https://host:port (without user and password)")
# AWS keeps aws:… in any case for itself (EC2 user guide, "Tag restrictions", read 2026-11-29), gpu-ami its own.
_TAGS = MapOf(
    r"(?![aA][wW][sS]:|gpu-ami:)[^\x00-\x1f\x7f]{1,128}",
    "team (at most 128 characters, not aws:… or gpu-ami:…)",
    Text('"4711"', r"[^\x00-\x1f\x7f]{0,256}"),
)
# KMS API reference, "KeyId" (read 2026-11-29): key id, key ARN, alias name, alias ARN.
_KEY_ID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}"
_ALIAS = r"alias/[\w/-]{1,250}"
_KMS_KEY = rf"{_KEY_ID}|{_ALIAS}|arn:aws[a-z-]*:kms:(?P<region>[a-z0-9-]+):\d{{12}}:(?:key/(?:{_KEY_ID})|{_ALIAS})"
_SUBNET = _like(r"subnet-[0-9a-f]{8,17}", "subnet-0123456789abcdef0")
_WAY = _like(WAY_PATTERN, "on-demand, spot, reservation:cr-0123456789abcdef0 or capacity-block:cr-0123456789abcdef0")
_GRAMMAR = Keys(
    {
        "name": Text("production"),
        "region": _like(REGION_PATTERN, "eu-central-1"),
        "profile": Text("production"),
        "endpoint": _URL,
        "subnet_id": _SUBNET,
        "subnet_ids": ListOf(_SUBNET),
        "capacity": MapOf(r"[a-z0-9*?.-]+", "p5.48xlarge or p5*", ListOf(_WAY)),
        "prices": MapOf(r"[a-z0-9-]+\.[a-z0-9-]+", "p5e.48xlarge", Number()),
        "capacity_minutes": Integer(0, 7 * 24 * 60),
        "no_stop_start": ListOf(_like(r"[a-z0-9*?.-]+", "p5.48xlarge or p5*")),
        "builder_types": MapOf(
            r"x86_64|arm64", "x86_64 or arm64", ListOf(_like(r"[a-z0-9-]+\.[a-z0-9-]+", "m7i.2xlarge"))
        ),
        "security_group_ids": ListOf(_like(r"sg-[0-9a-f]{8,17}", "sg-0123456789abcdef0")),
        "instance_profile": _like(r"[\w+=,.@-]{1,128}", "a profile's name (not its ARN)"),
        "ssh_interface": Choice(SSH_INTERFACES),
        "ssh_port": Integer(1, 65535),
        "jump_host": _like(JUMP_HOST_PATTERN, "admin@bastion.example or admin@192.0.2.1:2222"),
        "jump_key": Text("~/.ssh/id_bastion"),
        "proxy_command": Text("nc -X connect -x proxy:3128 %h %p"),
        "instance_connect_endpoint": _like(r"any|eice-[0-9a-f]{8,17}", "any or eice-0123456789abcdef0"),
        "kms_key_id": _like(_KMS_KEY, "alias/images, a key's id, or the ARN of either"),
        "cluster": _like(CLUSTER_PATTERN, "gpu-nodes (a name, not an ARN)"),
        "tags": _TAGS,
        "source_ami": _like(r"ami-[0-9a-f]{8,17}", "ami-0123456789abcdef0"),
        "mirror": Keys(
            {"url": _URL, "key_fingerprint": _like(r"[0-9A-Fa-f]{40}", "a fingerprint of 40 hex digits")},
            needed=("url", "key_fingerprint"),
        ),
        "guest_endpoint": _URL,
        "log_groups": Choice(LOG_GROUPS),
        "image_days": Integer(1, 3650, "days"),
        "deadlines": Keys({f"{name}_seconds": Integer(1, 86400, "seconds") for name in ("boot", "stop", "arrival")}),
        "dead_man_role": _like(r"arn:aws[a-z-]*:iam::\d{12}:role/[\w+=,.@/-]{1,512}", "a role's ARN"),
    },
    needed=("region",),
)


def load_place(path: Path) -> Place:
    """Reads a `--where` file (YAML). UsageError names every mistake with its key path."""
    document = read_yaml(path, _hint(path))
    mistakes = list(_mistakes(document))
    if mistakes:
        lines = lines_of(path)
        raise UsageError(
            f"{path}: {counted(len(mistakes), 'mistake')}",
            details=[f"{located(path.name, lines, one.path)}: {one.path}: {_message(one)}" for one in mistakes],
            hint="this is a recipe: --where takes the file of a place (docs/aws.md)"
            if isinstance(document, dict) and {"os", "instance_types"} <= document.keys()
            else f"a place has the keys {', '.join(_GRAMMAR.keys)}",
        )
    values = {"name": path.stem} | document
    if "security_group_ids" in values:
        values["security_group_ids"] = tuple(values["security_group_ids"])
    if "subnet_id" in values:
        values["subnet_ids"] = [values.pop("subnet_id")]
    if "subnet_ids" in values:
        values["subnet_ids"] = tuple(values["subnet_ids"])
    if "capacity" in values:
        values["capacity"] = {like: tuple(ways) for like, ways in values["capacity"].items()}
    if "no_stop_start" in values:
        values["no_stop_start"] = tuple(values["no_stop_start"])
    if "builder_types" in values:
        values["builder_types"] = {name: tuple(types) for name, types in values["builder_types"].items()}
    if "jump_key" in values:
        values["jump_key"] = str(Path(values["jump_key"]).expanduser())
    if "mirror" in values:
        mirror = values["mirror"]
        values["mirror"] = Mirror(mirror["url"].rstrip("/"), mirror["key_fingerprint"].upper())
    api = document.get("profile", ""), document.get("endpoint", "")
    return replace(place_of(values), file=runs.PlaceFile(str(path.resolve()), document["region"], *api))


def _hint(path: Path) -> str:
    """What --where takes, for a file that cannot be read."""
    if re.fullmatch(REGION_PATTERN, str(path)):
        return f"--where takes a YAML file: one with the line `region: {path}`, for example (docs/aws.md)"
    near = (
        []
        if path.exists()
        else difflib.get_close_matches(path.name, [one.name for one in path.parent.glob("*.y*ml")], 1)
    )
    return f"did you mean {path.parent / near[0]}?" if near else "--where takes a YAML file; see docs/aws.md"


def takes(key: str, value: object) -> bool:
    """Whether a `--where` file takes a value for one of its keys."""
    return key in _GRAMMAR.keys and not list(_GRAMMAR.keys[key].check(value, key))


def _mistakes(document: Any) -> Iterator[Mistake]:
    yield from _GRAMMAR.check(document, "")
    yield from _GRAMMAR.missing(document)
    if not isinstance(document, dict):
        return
    if "subnet_id" in document and "subnet_ids" in document:
        yield Mistake("subnet_ids", "expected subnet_id or subnet_ids, got both")
    if document.get("subnet_ids") == []:
        yield Mistake("subnet_ids", "expected at least one subnet, got none")
    for like, ways in document["capacity"].items() if isinstance(document.get("capacity"), dict) else []:
        if ways == []:
            yield Mistake(f"capacity.{like}", "expected at least one way, got none")
    yield from _login_mistakes(document)
    yield from _key_mistakes(document)
    tags = document.get("tags")
    if isinstance(tags, dict) and len(tags) > _MAX_TAGS:
        yield Mistake("tags", f"expected at most {_MAX_TAGS} tags, got {len(tags)}")


def _login_mistakes(document: Mapping[str, Any]) -> Iterator[Mistake]:
    """One way in alone; and a key for a jump host needs the jump host."""
    ways = [key for key in ("jump_host", "proxy_command", "instance_connect_endpoint") if document.get(key)]
    ways += ["ssh_interface: session_manager"] if document.get("ssh_interface") == SESSION_MANAGER else []
    if len(ways) > 1:
        yield Mistake(ways[1].partition(":")[0], f"expected one way to log in, got {' and '.join(ways)}")
    if document.get("jump_key") and not document.get("jump_host"):
        yield Mistake("jump_key", "expected jump_host beside it, got none")
    jump = re.fullmatch(JUMP_HOST_PATTERN, str(document.get("jump_host")))
    if jump and jump["port"] and not 0 < int(jump["port"]) < 65536:
        yield Mistake("jump_host", f"expected a port from 1 to 65535, got {jump['port']}")


def _key_mistakes(document: Mapping[str, Any]) -> Iterator[Mistake]:
    """EC2 takes keys of its own Region alone."""
    key, region = re.fullmatch(_KMS_KEY, str(document.get("kms_key_id"))), document.get("region")
    if key and key["region"] and key["region"] != region:
        yield Mistake("kms_key_id", f"expected a key of {region}, got one of {key['region']}")


def _nearest_region(text: str) -> str:
    import botocore.session

    session = botocore.session.get_session()
    names = [
        name
        for partition in session.get_available_partitions()
        for name in session.get_available_regions("ec2", partition)
    ]
    near = sorted(difflib.get_close_matches(text, names, 2))
    return f"; did you mean {' or '.join(near)}?" if near else ""


_SECRET = re.compile(r"(?i)^[^.]*(access_key|secret|token|password)[^.]*$")


def _message(mistake: Mistake) -> str:
    if re.search(r"got 'https?://[^/ ]*@", mistake.message):
        return "expected a URL without user and password: plans, certificates and Packer's files repeat it"
    if mistake.path == "credentials" or _SECRET.search(mistake.path):
        return "secrets do not belong in this file; name a profile, or let boto3 find them in the environment"
    if mistake.path == "region" and mistake.message == "missing":
        return "missing; expected an AWS region, such as eu-central-1"
    if mistake.path == "region" and "did you mean" not in mistake.message:
        return mistake.message + _nearest_region(mistake.message.rpartition("got ")[2].strip("'"))
    return mistake.message
