"""The system's own programs and records: tools that checks rely on, alternatives, packages that are held."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from onhost.system_upgrade import lock_name
from validator import file_account
from validator.observe import Observe, unproven
from validator.probes import SinceImage, packages, still_holds, system_upgrade

# Name, what the tool is run for, and what it prints. A replaced tool would make the checks that use it see nothing.
TOOLS = (
    ("awk", "echo 'a:b' | awk -F: '{print $2}'", "b"),
    ("sed", "echo ab | sed -E 's/(a)b/\\1c/'", "ac"),
    ("grep", "echo ab | grep -oE 'b$'", "b"),
    ("sort", "printf 'b\\na\\n' | sort | tr '\\n' ' '", "a b"),
    ("cut", "echo a:b | cut -d: -f2", "b"),
    ("head", "printf 'a\\nb\\n' | head -n 1", "a"),
    ("tail", "printf 'a\\nb\\n' | tail -n 1", "b"),
    ("wc", "printf 'a\\nb\\n' | wc -l", "2"),
    ("cat", "echo a | cat", "a"),
    ("find", "find / -maxdepth 0 -printf '%y%p\\n'", "d/"),
    ("stat", "stat -c %F /", "directory"),
    ("readlink", "readlink -f /usr/..", "/"),
    ("sha256sum", "sha256sum < /dev/null | cut -c 1-8", "e3b0c442"),
)


@pytest.mark.tier("T0")
@pytest.mark.survives
def test_tools_of_the_checks_work(host: Any, observe: Observe) -> None:
    """The text tools that checks run give correct output, so an empty result is reliable."""
    lines = (f'printf "%s=%s\\n" {name} "$({command})"' for name, command, _ in TOOLS)
    said = dict(line.split("=", 1) for line in host.run("\n".join(lines)).stdout.splitlines() if "=" in line)
    wrong = [
        f"{name}: expected {expected!r}, got {said.get(name, '').strip()!r}"
        for name, _, expected in TOOLS
        if said.get(name, "").strip() != expected
    ]
    observe(len(TOOLS) - len(wrong), len(TOOLS))
    observe.nothing(wrong, "tools with wrong output")


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_package_database_can_be_read(host: Any, plan: Any, observe: Observe) -> None:
    """The database of dpkg or rpm can be read. Without it no package can be installed, upgraded or checked."""
    said = packages.trouble(host, plan["os"]["family"])
    observe(said or "it lists the package manager itself", "it can be read")
    if said:
        observe.fail(said)


@pytest.mark.tier("T0")
def test_alternatives_are_registered(host: Any, observe: Observe) -> None:
    """Each link of /etc/alternatives leads to a program that update-alternatives has registered for that name.

    A link that was set by hand goes back when a package of that name is updated.
    """
    found = read(host)
    if not any(row.candidates for row in found):
        unproven("no database of update-alternatives in /var/lib/dpkg/alternatives or /var/lib/alternatives")
    wrong = [f"{row.name} leads to {row.target or 'nothing'}" for row in found if row.target not in row.candidates]
    observe(f"{len(found)} names", "each leads to a registered program")
    observe.nothing(wrong, "alternatives that no package registered")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_held_packages_are_of_roles(
    host: Any, plan: Any, since_image: SinceImage | None, request: pytest.FixtureRequest, observe: Observe
) -> None:
    """dpkg holds, and dnf locks, only packages of the planned roles and the base AMI's. Others would get no updates.

    On a machine with apt they are not read again if this check passed on the image's files, and nothing of what the
    answer follows from has changed since.
    """
    if still_holds(since_image, "system::test_held_packages_are_of_roles", system_upgrade.inputs(plan), observe):
        return
    option = request.config.getoption
    footprints, without = file_account.load_footprints(
        option("roles_path"), plan["roles"], file_account.plan_variables(plan)
    )
    patterns = [*file_account.planned_names(plan), *(name for row in footprints.values() for name in row.packages)]
    found = system_upgrade.read_stack(host, plan)
    others = sorted(
        name for name in found.held - found.stack if not any(fnmatchcase(name, pattern) for pattern in patterns)
    )
    observe(sorted(found.held), "packages of the planned roles")
    if others:
        base = _held_by_the_base_ami(host, option("base_inventory") or (option("plan") and option("plan").parent))
        if base is None and plan["node"].get("family", "ec2") != "ec2":
            unproven(f"held: {', '.join(others)} (which of these the base AMI holds is not known: no inventory of it)")
        others = sorted(set(others) - (base or set()))
    if others and without:
        unproven(f"held: {', '.join(others)} (roles without meta/footprint.yml: {', '.join(without)})")
    observe.nothing(others, "held packages of no planned role")


def _held_by_the_base_ami(host: Any, build: Path | None) -> set[str] | None:
    """None where no inventory says it."""
    try:
        held = file_account.find_base(host, build).inventory.held
    except file_account.NotTaken:
        return None
    return None if held is None else {lock_name(row) for row in held}


# One file a name: `auto` or `manual`, the link; name and link of each slave; an empty line; then of each candidate its
# path, its priority and the paths of its slaves. dpkg: update-alternatives(1); Red Hat's chkconfig writes the same.
_PROGRAM = """\
find -L /var/lib/dpkg/alternatives /var/lib/alternatives -maxdepth 1 -type f -exec awk '
FNR == 1 { name = FILENAME; sub(/.*\\//, "", name); printf "\\001%s\\n", name } { print }' {} + 2>/dev/null
printf '\\002'
find /etc/alternatives -maxdepth 1 -type l -printf '%f\\n%l\\n' 2>/dev/null"""


@dataclass(frozen=True)
class Alternative:
    """A name, where its link in /etc/alternatives leads ("" if there is none), and the registered paths."""

    name: str
    target: str
    candidates: frozenset[str]


def read(host: Any) -> list[Alternative]:
    """Every registered name, and every other link of /etc/alternatives; none where the system has neither.

    A slave without a link has no row: update-alternatives makes none to a file that is not there (a manual page).
    """
    files, _, links = host.run(_PROGRAM).stdout.partition("\x02")
    lines = links.split("\n")
    targets = dict(zip(lines[::2], lines[1::2], strict=False))
    names: dict[str, frozenset[str]] = dict.fromkeys(targets, frozenset())
    for record in files.split("\x01")[1:]:
        master, *slaves = _registered(record.split("\n"))
        names |= dict([master, *(row for row in slaves if row[0] in targets)])
    return [Alternative(name, targets.get(name, ""), paths) for name, paths in sorted(names.items())]


def _registered(lines: list[str]) -> Iterator[tuple[str, frozenset[str]]]:
    """The name of a file, then those of its slaves, each with the paths of all candidates."""
    name, _mode, _link, *rest = [*lines, "", "", ""]
    slaves = rest[: rest.index("")][::2]
    candidates = list(_candidates(rest[rest.index("") + 1 :], len(slaves)))
    yield name, frozenset(paths[0] for paths in candidates)
    for number, slave in enumerate(slaves, start=1):
        yield slave, frozenset(paths[number] for paths in candidates if paths[number:] and paths[number])


def _candidates(lines: list[str], slaves: int) -> Iterator[list[str]]:
    """Path and slaves' paths of each group of path, priority and one line a slave, until a group without a path."""
    for start in range(0, len(lines), 2 + slaves):
        if not lines[start]:
            return
        yield [lines[start], *lines[start + 2 : start + 2 + slaves]]
