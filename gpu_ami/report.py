"""What a proof found: one host's checks, all hosts together, and the verdict that follows from them.

Verdicts: PASS, FAIL, FLAKY (passed only at a later attempt), UNAVAILABLE (no capacity), UNPROVEN (not run, named).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpu_ami.errors import UsageError
from validator.tiers import TIERS

SCHEMA = "gpu-ami/report/1"
PASS, FAIL, FLAKY, UNAVAILABLE, UNPROVEN = "PASS", "FAIL", "FLAKY", "UNAVAILABLE", "UNPROVEN"
# The worst first: a report is as good as its worst host.
ORDER = (FAIL, FLAKY, "ERROR", UNAVAILABLE, UNPROVEN, PASS)
EXIT_CODES = {PASS: 0, FAIL: 1, FLAKY: 1, UNPROVEN: 1, "ERROR": 4, UNAVAILABLE: 5}
# A host is proven when each of these promises has a check that passed on it; without one of them it is UNPROVEN.
CORE = ("boot", "nvidia_driver", "cloudwatch_agent", "event_parser", "metrics", "logs", "xid")

# The check that a machine comes back from a restart, with the restart's name behind it: …@reboot, …@stop-start.
COMES_BACK = "boot::test_machine_comes_back"


@dataclass
class HostReport:
    """One machine: what it was, how it booted, what each check found. error: why there are no checks.

    restarts: those without which this machine is not proven; a check that ran again after one has its name in `after`.
    offline: this is no machine, but the image's files, of which nothing was booted (tier T0).
    """

    instance_type: str
    instance_id: str = ""
    host: str = ""
    boot: dict[str, float] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    replicas: list[dict[str, Any]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    waivers: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    error_verdict: str = ""
    restarts: list[str] = field(default_factory=list)
    offline: bool = False

    def add(self, found: HostReport) -> None:
        """Takes over what a validator found after a restart; a waiver that one of its runs needed was needed."""
        self.checks += found.checks
        used = [one for one in found.waivers if one["state"] == "used"]
        alike = [{**one, "state": ""} for one in used]
        self.waivers = [one for one in self.waivers if {**one, "state": ""} not in alike] + used

    def core_roles(self, roles: Sequence[str]) -> list[str]:
        """The promises that this image makes: roles of the plan, and the loop that every plan closes."""
        if self.offline:
            return []
        always = [role for role in CORE if role not in ("nvidia_driver", "cloudwatch_agent", "event_parser")]
        return [*(role for role in CORE if role in roles or role in always)]

    def unproven_roles(self, roles: Sequence[str], after: str = "") -> list[str]:
        passed = {
            check["role"]
            for check in self.checks
            if (check["verdict"] == PASS or check.get("waived")) and check.get("after", "") == after
        }
        return [role for role in self.core_roles(roles) if role not in passed]

    def unproven_restarts(self, roles: Sequence[str]) -> list[str]:
        """The restarts that this machine needed and that did not prove everything, in words."""
        found = []
        for restart in self.restarts:
            back = next((one for one in self.checks if one["id"] == f"{COMES_BACK}@{restart}"), None)
            if back is None:
                found.append(f"{restart}: not tried")
            elif back["verdict"] != PASS and not back.get("waived"):
                found.append(f"{restart}: {back['verdict']}: {str(back['message']).partition(chr(10))[0]}")
            else:
                found += [
                    f"{role} after {restart}: no check of it passed" for role in self.unproven_roles(roles, restart)
                ]
        return found

    @staticmethod
    def _passed(checks: Sequence[Mapping[str, Any]]) -> bool:
        return any(check["verdict"] == PASS for check in checks)

    @property
    def name(self) -> str:
        return self.instance_type or self.host

    def of_tier(self, name: str) -> list[dict[str, Any]]:
        """Its checks of a tier. What files alone decide says of a booted machine what T1 says of it."""
        mine = {name} if self.offline or name != "T1" else {"T0", "T1"}
        return [check for check in self.checks if check["tier"] in mine]

    def tier_verdict(self, name: str, roles: Sequence[str]) -> str:
        """The worst of its checks of a tier; UNPROVEN where none passed, or where a restart was not proven."""
        checks = self.of_tier(name)
        found = {check["verdict"] for check in checks if not check.get("waived")} & {FAIL, FLAKY, UNAVAILABLE}
        if self.error_verdict:
            found.add(self.error_verdict)
        if not self._passed(checks) or (name == "T1" and self.unproven_restarts(roles)):
            found.add(UNPROVEN)
        return next((verdict for verdict in ORDER if verdict in found), PASS)

    def verdict(self, roles: Sequence[str]) -> str:
        """This host's verdict: its worst check that nobody has waived, or what kept it from being checked."""
        found = {check["verdict"] for check in self.checks if not check.get("waived")} & {FAIL, FLAKY, UNAVAILABLE}
        if self.error_verdict:
            found.add(self.error_verdict)
        elif self.unproven_roles(roles) or self.unproven_restarts(roles) or not self._passed(self.checks):
            found.add(UNPROVEN)
        return next((verdict for verdict in ORDER if verdict in found), PASS)


@dataclass
class Report:
    """A whole proof. `plan` is the plan's content; `image` the AMI, or "" for a host that came by address.

    no_files: why tier T0 was not tried.
    """

    plan: Mapping[str, Any]
    image: str
    place: str
    region: str
    simulated: bool
    run: str
    started: str
    finished: str
    hosts: list[HostReport] = field(default_factory=list)
    stages: list[dict[str, Any]] = field(default_factory=list)
    unproven_instance_types: list[str] = field(default_factory=list)
    no_files: str = ""

    @property
    def roles(self) -> list[str]:
        return list(self.plan.get("roles", []))

    @property
    def verdict(self) -> str:
        found = {host.verdict(self.roles) for host in self.hosts}
        if self.unproven_instance_types or not found:
            found.add(UNPROVEN)
        return next(verdict for verdict in ORDER if verdict in found)

    @property
    def tiers(self) -> list[dict[str, Any]]:
        """Of each tier: its verdict over all machines, why it is no PASS, and what it does not prove even then."""
        return [asdict(tier) | self._tier(tier.name) for tier in TIERS]

    def _tier(self, name: str) -> dict[str, Any]:
        hosts = [host for host in self.hosts if host.offline is (name == "T0")]
        found = {host.tier_verdict(name, self.roles) for host in hosts}
        absent = [] if name == "T0" else self.unproven_instance_types
        if absent or not hosts:
            found.add(UNPROVEN)
        verdict = next(one for one in ORDER if one in found)
        where = [host.name for host in hosts if host.tier_verdict(name, self.roles) == verdict]
        where += absent if verdict == UNPROVEN else []
        if verdict == PASS:
            reason = ""
        elif name == "T4":
            reason = "no check of this suite reaches it yet"
        elif not hosts:
            reason = (
                self.no_files or "the image's files were not looked at" if name == "T0" else "no machine was checked"
            )
        else:
            reason = f"on {', '.join(where)}"
        return {"verdict": verdict, "reason": reason, "checks": sum(len(host.of_tier(name)) for host in hosts)}

    def failures(self) -> list[tuple[HostReport, dict[str, Any]]]:
        red = (FAIL, FLAKY)
        return [
            (host, one) for host in self.hosts for one in host.checks if one["verdict"] in red and not one.get("waived")
        ]

    def to_json(self) -> dict[str, Any]:
        hosts = [asdict(host) | {"verdict": host.verdict(self.roles)} for host in self.hosts]
        head = {"schema": SCHEMA, "verdict": self.verdict, "tiers": self.tiers}
        return head | {key: value for key, value in asdict(self).items() if key != "hosts"} | {"hosts": hosts}

    def write(self, folder: Path) -> Path:
        """Writes report.json and junit.xml; returns the former's path."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "report.json"
        write_text(path, json.dumps(self.to_json(), ensure_ascii=False, indent=1, default=str) + "\n")
        write_text(folder / "junit.xml", self.junit())
        return path

    def junit(self) -> str:
        """JUnit XML: a suite a host, a case a check. UNPROVEN is skipped with its reason; never an empty pass."""
        root = ElementTree.Element("testsuites", name=f"gpu-ami {self.plan.get('image', '')}")
        for host in self.hosts:
            name = f"{host.instance_type} {host.instance_id}".strip()
            suite = ElementTree.SubElement(root, "testsuite", name=name, tests=str(max(1, len(host.checks))))
            for check in host.checks:
                _junit_case(suite, check)
            if host.error:
                case = ElementTree.SubElement(suite, "testcase", classname="boot", name="the machine can be checked")
                ElementTree.SubElement(case, "error", message=host.error.splitlines()[0]).text = host.error
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _junit_case(suite: ElementTree.Element, check: Mapping[str, Any]) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=str(check["role"]),
        name=str(check["id"]).rpartition("::")[2],
        time=str(check.get("seconds", 0)),
    )
    message = str(check.get("message", ""))
    first = message.splitlines()[0] if message else check["verdict"]
    if check.get("waived"):
        waived = check["waived"]
        reason = f"{check['verdict']}, waived by {waived['owner']} until {waived['expires']}: {waived['reason']}"
        ElementTree.SubElement(case, "skipped", message=reason)
    elif check["verdict"] in (FAIL, FLAKY):
        ElementTree.SubElement(case, "failure", message=first, type=str(check["verdict"])).text = message
    elif check["verdict"] != PASS:
        ElementTree.SubElement(case, "skipped", message=f"{check['verdict']}: {first}")


def write_text(path: Path, text: str) -> None:
    """Whole or not at all: a reader, or a run that was cut off, never sees half a file."""
    part = path.with_name(path.name + ".part")
    # A host may print what is no UTF-8: one odd byte must not cost a run its report.
    part.write_text(text, encoding="utf-8", errors="backslashreplace")
    part.replace(path)


def read_json(path: Path, schema: str, made_by: str) -> dict[str, Any]:
    """A stage's file. UsageError: not there, not JSON, or another file than this stage reads."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint=f"`gpu-ami {made_by}` writes it") from error
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}", hint=f"`gpu-ami {made_by}` writes it anew") from error
    found = data.get("schema") if isinstance(data, dict) else None
    if found != schema:
        raise UsageError(
            f"{path}: schema is {found!r}, expected {schema!r}", hint=f"`gpu-ami {made_by}` writes it anew"
        )
    return dict(data)


def load(path: Path) -> Report:
    """Reads report.json."""
    data = read_json(path, SCHEMA, "validate")
    hosts = [
        HostReport(**{key: value for key, value in host.items() if key != "verdict"}) for host in data.pop("hosts")
    ]
    kept = {key: value for key, value in data.items() if key not in ("schema", "verdict", "tiers")}
    try:
        return Report(**kept, hosts=hosts)
    except TypeError as error:
        raise UsageError(f"{path}: {error}", hint="`gpu-ami validate` writes it anew") from error
