"""What an upgrade of the whole system would do: with newer versions of the stack on offer, or with what the system's
own repositories have (onhost/system_upgrade.py)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onhost import system_upgrade as program
from validator import file_account
from validator.observe import unproven
from validator.plan_document import PlanDocument, section
from validator.probes import packages, since_image

_PROGRAM = Path(program.__file__)
_SECONDS = 900.0  # an emulated machine reads the indexes of all repositories
# dnf's module is where the interpreter in its first line finds it.
_INTERPRETER = "p=$(sed -n '1s/^#! *\\([^ ]*\\).*/\\1/p' /usr/bin/dnf 2>/dev/null)"
# Packages of components whose section names none: they are installed from a file.
_FROM_FILES = {"cloudwatch_agent": "amazon-cloudwatch-agent"}
# Programs, configuration and database of apt and dpkg: no repository is asked for newer versions that are made up.
_APT_INPUTS = ("/usr", since_image.APT, since_image.DPKG)
# Files in which an installer records the packages that it has installed.
_RECORDS = {"efa": "/opt/amazon/efa_installed_packages"}


@dataclass(frozen=True)
class Change:
    """A package that the upgrade would install, replace or remove. before, after: "" if it is not installed."""

    name: str
    before: str
    after: str
    source: str

    def __str__(self) -> str:
        if not self.after:
            return f"{self.name} {self.before} (removed)"
        before = f"{self.before} → " if self.before else "(new) "
        return f"{self.name} {before}{self.after}{f' from {self.source}' if self.source else ''}"


@dataclass(frozen=True)
class Upgrade:
    """What one program has read.

    stack: planned packages, what is bound to their version or came with them, DKMS and the kernel. to_hold: those of it
    that roles hold. held: packages that no upgrade changes. problem: why the upgrade is refused, in the package
    manager's words; "" if it is not.
    """

    stack: frozenset[str]
    to_hold: frozenset[str]
    held: frozenset[str]
    changes: tuple[Change, ...]
    problem: str


def simulate(host: Any, plan: PlanDocument, *, repositories: bool = False) -> Upgrade:
    """UNPROVEN where it cannot be simulated. repositories: asks the system's own; else newer versions are on offer."""
    return _ask(host, plan, program.REPOSITORIES if repositories else program.NEWER_STACK)


def read_stack(host: Any, plan: PlanDocument) -> Upgrade:
    """What is the stack and what is held, whether or not an upgrade can be simulated.

    By the command of `simulate`, which then runs once for both: on an emulated machine it takes seconds.
    """
    return _ask(host, plan, program.NEWER_STACK, simulated=False)


def inputs(plan: PlanDocument) -> list[str]:
    """Directories from which stack, holds and the upgrade to newer versions follow.

    None on systems with rpm, whose database changes when it is read.
    """
    if plan["os"]["family"] != "debian":
        return []
    return [*_APT_INPUTS, *("/opt/amazon" for component in _RECORDS if component in _own(plan))]


def _ask(host: Any, plan: PlanDocument, offer: str, *, simulated: bool = True) -> Upgrade:
    packages.require_readable(host, plan["os"]["family"])
    asked = {
        "planned": sorted(planned(plan)),
        "records": [path for component, path in _RECORDS.items() if component in _own(plan)],
        "kernel": kernel(plan),
        "files": file_account.plan_variables(plan)["source"],
        "offer": offer,
    }
    text = _PROGRAM.read_text(encoding="utf-8")
    command = f"{_INTERPRETER}; ${{p:-python3}} -I - %s <<'END_OF_PROGRAM'\n{text.replace('%', '%%')}END_OF_PROGRAM"
    done = host.run(command, json.dumps(asked), timeout=_SECONDS, pure=True)
    if done.rc != 0:
        said = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.rc} without output"]
        unproven(f"packages and their upgrade: the program did not complete: {said[0]}")
    result = json.loads(done.stdout)
    if result["unable"] and (simulated or "stack" not in result):
        unproven(f"packages and their upgrade: {result['unable']}")
    changes = tuple(Change(row["name"], row["from"], row["to"], row["source"]) for row in result["changes"])
    stack, to_hold, held = (frozenset(result[key]) for key in ("stack", "to_hold", "held"))
    return Upgrade(stack, to_hold, held, changes, result["problem"])


def planned(plan: PlanDocument) -> set[str]:
    """Names of the packages that the plan's roles install; those of the base AMI are its own."""
    names: set[str] = set()
    for component in _own(plan) - {"kernel"}:
        row = section(plan, component)
        packages = row.get("packages", {})
        names |= {str(name) for name in packages} if isinstance(packages, dict) else set()
        names |= {str(row["package"])} if "package" in row else set()
        names |= {_FROM_FILES[component]} if component in _FROM_FILES else set()
    return names


def _own(plan: PlanDocument) -> set[str]:
    """Planned components that roles install."""
    return {name for name in plan["roles"] if name in plan and "provided_by" not in section(plan, name)}


def kernel(plan: PlanDocument) -> list[str]:
    """Names of the packages of the kernel that a role installs."""
    row = plan.get("kernel")
    return sorted({row["package"], *row.get("hold", [])}) if row and "kernel" in plan["roles"] else []
