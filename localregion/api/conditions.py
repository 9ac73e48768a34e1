"""Conditions: how the local region differs from a region in which every call succeeds at once.

`load(NAME)` reads `localregion/conditions/NAME.yml`; docs/conditions.md describes the keys. `layer.py` applies them
to calls, the reconciler to launches and stops, the backends to what arrives late. NAME may end in `:SEED`: the n-th
call of an action is decided by the seed, the rule and n alone, so a run can be repeated whatever its threads do.
"""

from __future__ import annotations

import ipaddress
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError, counted
from gpu_ami.files import parse_yaml
from localregion.api.account import AccountSettings
from localregion.api.protocol import ErrorAnswer, ServiceCall
from localregion.backends import Delays, ec2_groups
from validator.inputs import read_text
from validator.schema import Choice, Flag, Integer, Keys, ListOf, Mistake, Number, Text

_FOLDER = Path(__file__).parents[1] / "conditions"
# error → protocol → code and HTTP status. Sources: EC2 API reference, "Error codes for the Amazon EC2 API";
# CloudWatch Logs, SSM and STS API references, "Common Errors"; that InsufficientInstanceCapacity is a 500 and
# UnauthorizedOperation a 403 was seen in logs of others (sourcegraph-public-snapshot#46617). Read 2026-11-22.
_CODES: Mapping[str, Mapping[str, tuple[str, int]]] = {
    "throttling": {
        "ec2": ("RequestLimitExceeded", 503), "query": ("Throttling", 400), "json": ("ThrottlingException", 400),
        "rest-json": ("ThrottlingException", 429),
    },
    "access-denied": {
        "ec2": ("UnauthorizedOperation", 403), "query": ("AccessDenied", 403), "json": ("AccessDeniedException", 400),
        "rest-json": ("AccessDeniedException", 403),
    },
    "expired-credentials": {
        "ec2": ("RequestExpired", 400), "query": ("ExpiredToken", 403), "json": ("ExpiredTokenException", 400),
        "rest-json": ("ExpiredTokenException", 403),
    },
    "insufficient-capacity": {"ec2": ("InsufficientInstanceCapacity", 500)},
    "vcpu-limit": {"ec2": ("VcpuLimitExceeded", 400)},
    "spot-limit": {"ec2": ("MaxSpotInstanceCountExceeded", 400)},
    "unsupported-in-zone": {"ec2": ("Unsupported", 400)},
}  # fmt: skip
_MESSAGES = {
    "RequestLimitExceeded": "Request limit exceeded.",
    "Throttling": "Rate exceeded",
    "ThrottlingException": "Rate exceeded",
    "UnauthorizedOperation": "You are not authorized to perform this operation. User: {user} is not authorized to "
    "perform: {action} on resource: * because no identity-based policy allows the {action} action",
    "AccessDenied": "User: {user} is not authorized to perform: {action}",
    "AccessDeniedException": "User: {user} is not authorized to perform: {action}",
    "RequestExpired": "Request has expired.",
    "ExpiredToken": "The security token included in the request is expired",
    "ExpiredTokenException": "The security token included in the request is expired",
    "InsufficientInstanceCapacity": "We currently do not have sufficient {instance_type} capacity in the Availability "
    "Zone you requested ({zone}). Our system will be working on provisioning additional capacity.",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of 0 allows for the "
    "instance bucket that the specified instance type belongs to.",
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "Unsupported": "Your requested instance type ({instance_type}) is not supported in your requested Availability "
    "Zone ({zone}). Please retry your request by not specifying an Availability Zone.",
}
_USER = "arn:aws:iam::000000000000:user/gpu-ami-local"


@dataclass(frozen=True)
class ErrorRule:
    """Calls that get an error. actions: patterns of `service:Action`; probability: of each call; times: at most so
    many errors, then none; after_seconds: since the region came up; instance_types, zones: only launches of these."""

    error: str
    actions: tuple[str, ...]
    probability: float = 1.0
    times: int | None = None
    after_seconds: float = 0.0
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()

    def matches(self, call: ServiceCall, zone: str) -> bool:
        if call.protocol not in _CODES[self.error] or not any(
            fnmatchcase(call.name, pattern) for pattern in self.actions
        ):
            return False
        if self.instance_types and call.parameters.get("InstanceType") not in self.instance_types:
            return False
        return not self.zones or zone in self.zones

    def answer(self, call: ServiceCall, zone: str) -> ErrorAnswer:
        code, status = _CODES[self.error][call.protocol]
        kind = call.parameters.get("InstanceType", "")
        message = _MESSAGES[code].format(user=_USER, action=call.name, instance_type=kind, zone=zone)
        return ErrorAnswer(code, message, status)


@dataclass(frozen=True)
class LaunchFailure:
    """Instances that go from pending to terminated. code: of the StateReason; times: the first so many launches."""

    code: str
    message: str
    times: int | None = None
    instance_types: tuple[str, ...] = ()


@dataclass(frozen=True)
class Consistency:
    """For how long (seconds, between `least` and `most`) a created resource is unknown to other calls.

    known_at_once: actions of EC2 whose new resources every call knows.
    """

    least: float = 0.0
    most: float = 0.0
    known_at_once: tuple[str, ...] = ()


@dataclass(frozen=True)
class Policies:
    """Names of policies in iam/ that are enforced: of whoever calls from outside, and of instances by their profile."""

    caller: tuple[str, ...]
    instance: tuple[str, ...]


@dataclass(frozen=True)
class Conditions:
    """What a file says."""

    name: str = ""
    description: str = ""
    seed: int = 1
    errors: tuple[ErrorRule, ...] = ()
    launch_failures: tuple[LaunchFailure, ...] = ()
    consistency: Consistency = field(default_factory=Consistency)
    delays: Delays = field(default_factory=Delays)
    policies: Policies | None = None
    account: AccountSettings = field(default_factory=AccountSettings)
    security_groups: ec2_groups.GroupRules | None = None

    @property
    def label(self) -> str:
        """`NAME:SEED`, which repeats them; "" for none."""
        return f"{self.name.partition(':')[0]}:{self.seed}" if self.name else ""

    @property
    def has_account(self) -> bool:
        """Whether they say what account the region is."""
        return self.account != AccountSettings()


def names() -> list[str]:
    return sorted(path.stem for path in _FOLDER.glob("*.yml"))


NONE = Conditions()
_DIRECTIONS = ("ingress", "egress")
_PORTS = Text("8000-8080", rf"{ec2_groups.SSH}|{ec2_groups.ALL}|\d+(-\d+)?", "ssh, all, a port or a range")
_CIDR = Text("127.0.0.0/8", r"\S+", "`members` or a network")
_SECONDS, _TIMES = Number(), Integer(0, 1_000_000)
_NAMES, _OWNERS = ListOf(Text("ec2:RunInstances", r"\S+")), ("caller", "instance")
_RULES = ListOf(Keys({"ports": _PORTS, "cidr": _CIDR}, needed=("ports",)), may_be_empty=True)
_GRAMMAR = Keys(
    {
        "description": Text("what AWS does", r"[\s\S]+"),
        "include": ListOf(Choice(names())),
        "seed": Integer(0, 2**63),
        "errors": ListOf(
            Keys(
                {
                    "error": Choice(tuple(_CODES)), "actions": _NAMES, "probability": Number(1), "times": _TIMES,
                    "after_seconds": _SECONDS, "instance_types": _NAMES, "zones": _NAMES,
                },
                needed=("error", "actions"),
            )
        ),
        "launch_failures": ListOf(
            Keys(
                {
                    "code": Text("Server.InternalError", r"\S+"), "message": Text("Server.InternalError: …"),
                    "times": _TIMES, "instance_types": _NAMES,
                },
                needed=("code", "message"),
            )
        ),
        "consistency": Keys({"least": _SECONDS, "most": _SECONDS, "known_at_once": _NAMES}),
        "delays": Keys({entry.name: _SECONDS for entry in fields(Delays)}),
        "policies": Keys(dict.fromkeys(_OWNERS, _NAMES), needed=_OWNERS),
        "account": Keys(
            {
                "caller": Text("arn:aws:sts::000000000000:assumed-role/ROLE/SESSION", r"arn:aws:\S+"),
                "ebs_key": Choice(("enabled", "disabled")),
                **dict.fromkeys(("demands_imds_v2", "has_spot_role", "images_may_be_public"), Flag()),
            }
        ),
        "security_groups": Keys(dict.fromkeys(_DIRECTIONS, _RULES)),
    },
)  # fmt: skip


def access_denied(protocol: str, message: str) -> ErrorAnswer:
    """The refusal of a call without permission, as the call's service answers it."""
    code, status = _CODES["access-denied"][protocol]
    prefix = "You are not authorized to perform this operation. " if protocol == "ec2" else ""
    return ErrorAnswer(code, prefix + message, status)


def load(name: str) -> Conditions:
    """The conditions of a name, `NAME` or `NAME:SEED`; "" is none. UsageError: no such file, or mistakes in it."""
    if not name:
        return NONE
    stem, _, seed = name.partition(":")
    path = _FOLDER / f"{stem}.yml"
    if stem not in names():
        raise UsageError(f"no conditions {stem!r}", hint=f"there are: {', '.join(names())}")
    if seed and not seed.isdigit():
        raise UsageError(f"--conditions {name}: expected a whole number as seed, got {seed!r}")
    conditions = replace(read(path), name=name)
    return replace(conditions, seed=int(seed)) if seed else conditions


def read(path: Path) -> Conditions:
    """A file's conditions, and those of the files that it includes. UsageError names the file and all its mistakes."""
    document = parse_yaml(read_text(path), str(path))
    if mistakes := list(_mistakes(document)):
        details = [f"{mistake.path}: {mistake.message}" for mistake in mistakes]
        hint = "docs/conditions.md describes the keys"
        raise UsageError(f"{path}: {counted(len(mistakes), 'mistake')}", details=details, hint=hint)
    included = [read(path.with_name(f"{name}.yml")) for name in document.pop("include", [])]
    own = _made(document)
    for other in included:
        own = replace(
            own,
            errors=(*own.errors, *other.errors),
            launch_failures=(*own.launch_failures, *other.launch_failures),
            consistency=own.consistency if own.consistency != Consistency() else other.consistency,
            delays=_either(own.delays, other.delays),
            policies=own.policies or other.policies,
            account=own.account if own.account != AccountSettings() else other.account,
            security_groups=own.security_groups or other.security_groups,
        )
    return own


def _either(own: Delays, included: Delays) -> Delays:
    """Each delay of `own`, or where that has none, of `included`."""
    names = [entry.name for entry in fields(Delays)]
    return Delays(**{name: getattr(own, name) or getattr(included, name) for name in names})


def _mistakes(document: Any) -> Iterator[Mistake]:
    wrong = [*_GRAMMAR.check(document, ""), *_GRAMMAR.missing(document)]
    yield from wrong
    if wrong:
        return
    groups = document.get("security_groups", {})
    for direction in _DIRECTIONS:
        for index, rule in enumerate(groups.get(direction, [])):
            yield from _wrong_rule(rule, f"security_groups.{direction}[{index}]")


def _wrong_rule(rule: Mapping[str, str], where: str) -> Iterator[Mistake]:
    try:
        ports = ec2_groups.range_of(rule["ports"], 22) or (0, 0)
        if not ports[0] <= ports[1] <= 65535:
            raise ValueError
    except ValueError:
        yield Mistake(f"{where}.ports", f"expected {_PORTS.expected}, got {rule['ports']!r}")
    cidr = rule.get("cidr", ec2_groups.MEMBERS)
    try:
        if cidr != ec2_groups.MEMBERS:
            ipaddress.ip_network(cidr)
    except ValueError as error:
        yield Mistake(f"{where}.cidr", f"expected {_CIDR.expected}, got {cidr!r} ({error})")


_KINDS: Mapping[str, type[Any]] = {
    "errors": ErrorRule, "launch_failures": LaunchFailure, "consistency": Consistency, "delays": Delays,
    "policies": Policies, "account": AccountSettings,
}  # fmt: skip


def _made(document: Mapping[str, Any]) -> Conditions:
    """Of a file without mistakes."""
    values = dict(document)
    for key, kind in _KINDS.items():
        value = values.get(key)
        if isinstance(value, list):
            values[key] = tuple(kind(**_frozen(row)) for row in value)
        elif value is not None:
            values[key] = kind(**_frozen(value))
    if "security_groups" in values:
        rules = {key: tuple(ec2_groups.Rule(**row) for row in rows) for key, rows in values["security_groups"].items()}
        values["security_groups"] = ec2_groups.GroupRules(**rules)
    return Conditions(**values)


def _frozen(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}


class Decisions:
    """What happens to each call and launch under conditions. Thread-safe; the same for the same order of one action."""

    def __init__(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self._lock = threading.Lock()
        self._calls: Counter[tuple[int, str]] = Counter()  # by rule and action
        self._errors: Counter[int] = Counter()  # by rule
        self._failures: Counter[int] = Counter()  # by rule
        self._created: Counter[str] = Counter()  # by the action that created it
        self._refused: Counter[str] = Counter()  # by the code of the answer

    def count(self, code: str) -> None:
        """Counts a call that was answered with an error under the conditions."""
        with self._lock:
            self._refused[code] += 1

    def refused(self) -> dict[str, int]:
        """How many calls got which error so far, those for what is not known yet included."""
        with self._lock:
            return dict(self._refused)

    def error(self, call: ServiceCall, zone: str, uptime: float) -> ErrorAnswer | None:
        """The error for this call, if one is due. zone: of the launch; uptime: seconds since the region came up."""
        for index, rule in enumerate(self.conditions.errors):
            if uptime >= rule.after_seconds and rule.matches(call, zone) and self._is_due(index, rule, call):
                return rule.answer(call, zone)
        return None

    def _is_due(self, index: int, rule: ErrorRule, call: ServiceCall) -> bool:
        with self._lock:
            number = self._calls[index, call.name] = self._calls[index, call.name] + 1
            if rule.times is not None and self._errors[index] >= rule.times:
                return False
            due = self._draw(f"error {index} {call.name} {number}") < rule.probability
            self._errors[index] += due
            return due

    def launch_failure(self, instance_type: str) -> tuple[str, str] | None:
        """Code and message of the StateReason of an instance that fails asynchronously; None if it runs."""
        for index, rule in enumerate(self.conditions.launch_failures):
            if rule.instance_types and instance_type not in rule.instance_types:
                continue
            with self._lock:
                self._failures[index] += 1
                if rule.times is None or self._failures[index] <= rule.times:
                    return rule.code, rule.message
        return None

    def unknown_seconds(self, action: str) -> float:
        """For how long what this call of `action` created is unknown to others."""
        window = self.conditions.consistency
        if action in window.known_at_once:
            return 0.0
        with self._lock:
            number = self._created[action] = self._created[action] + 1
        return window.least + (window.most - window.least) * self._draw(f"consistency {action} {number}")

    def _draw(self, what: str) -> float:
        # Not for secrets: a decision that can be repeated.
        return random.Random(f"{self.conditions.seed} {what}").random()
