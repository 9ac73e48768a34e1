"""A planned component's packages: which version of each is installed, and whether an upgrade could move it."""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import Any

from validator.observe import Observe, unproven
from validator.plan_document import PlanDocument, section

MISSING = "missing"
_RPM_VERIFY = (
    "rpm --verify --nodeps --noscripts --nouser --nogroup --nomode --nomtime --nolinkto --nordev --nocaps --noconfig"
)
_VERIFY_ROW = re.compile(r"(\S+)\s+(?:([cdglr])\s+)?(/.*)")
_VERIFY_SECONDS = 900.0  # every file is read, on a new volume for the first time
# What minimal images leave out by their package manager's own settings (dpkg.cfg path-exclude, rpm --nodocs).
_MAY_BE_GONE = ("/usr/share/doc/", "/usr/share/man/", "/usr/share/locale/", "/usr/share/info/", "/usr/share/lintian/")


def planned(plan: PlanDocument, component: str) -> dict[str, str]:
    """Package name → full version of a planned component. UNPROVEN where the base AMI brings the component along."""
    if component not in plan:
        unproven(f"the plan has no {component}")
    row = section(plan, component)
    if "provided_by" in row:
        unproven(f"{component} is the base AMI's ({row['provided_by']}): the plan names no packages of it")
    package = {row["package"]: row.get("package_version", row["version"])} if "package" in row else {}
    packages = row.get("packages", {})
    versions = package | (packages if isinstance(packages, dict) else {})
    return {str(name): str(version) for name, version in versions.items()}


def check_installed(host: Any, plan: PlanDocument, component: str, observe: Observe) -> None:
    """Fails unless exactly the planned versions are installed."""
    __tracebackhide__ = True
    wanted = planned(plan, component)
    found = installed(host, wanted, plan["os"]["family"])
    # A version that ends with * is planned without the build number that the vendor puts behind it.
    expected = {name: found[name] if fnmatchcase(found[name], version) else version for name, version in wanted.items()}
    observe.same(found, expected, f"packages of {component}")


def check_held(host: Any, plan: PlanDocument, component: str, observe: Observe) -> None:
    """Fails unless each planned package is held at its planned version."""
    __tracebackhide__ = True
    wanted = planned(plan, component)
    there = held(host, wanted, plan["os"]["family"])
    observe(sorted(there), sorted(wanted))
    free = sorted(set(wanted) - there)
    if free:
        observe.fail(f"not held, so an upgrade would move them: {', '.join(free)}")


def check_unchanged(host: Any, plan: PlanDocument, component: str, programs: list[str], observe: Observe) -> None:
    """Fails if a file of a component's packages, or of those that brought `programs`, is gone or has other content.

    Configuration may have. UNPROVEN where neither is known to the package manager.
    """
    __tracebackhide__ = True
    family = plan["os"]["family"]
    wanted = {} if "provided_by" in section(plan, component) else planned(plan, component)
    there = {
        name for name, version in (installed(host, wanted, family) if wanted else {}).items() if version != MISSING
    }
    names = sorted(there | _owners(host, programs, family))
    if not names:
        unproven(f"{component} came by no package")
    verify = "dpkg --verify" if family == "debian" else _RPM_VERIFY
    done = host.run(f"{verify} {' '.join(['%s'] * len(names))}", *names, timeout=_VERIFY_SECONDS)
    changed = _changed(done.stdout)
    observe(changed or ", ".join(names), "every file as its package has it")
    if changed:
        more = f" and {len(changed) - 10} more" if len(changed) > 10 else ""
        observe.fail(f"not as the packages of {component} have them: {'; '.join(changed[:10])}{more}")
    if done.rc != 0 and not done.stdout.strip():
        unproven(f"{verify.split()[0]} cannot say whether files are unchanged: {done.stderr.strip()[-300:]}")


def changed_files(host: Any, family: str) -> list[tuple[str, bool, bool]] | None:
    """Files that differ from their package, of all packages: path, whether it is missing, whether it is configuration.

    None if the package manager does not own the system's programs. Reads every packaged file.
    """
    if not _owners(host, ["dpkg" if family == "debian" else "rpm"], family):
        return None
    verify = "dpkg --verify" if family == "debian" else _RPM_VERIFY.replace(" --noconfig", " -a")
    done = host.run(verify, timeout=_VERIFY_SECONDS)
    rows = [_VERIFY_ROW.fullmatch(line.strip()) for line in done.stdout.splitlines()]
    return [
        (row[3], row[1] == "missing", row[2] == "c")
        for row in rows
        if row and (row[1] == "missing" or "5" in row[1]) and row[2] in (None, "c")
    ]


def _owners(host: Any, programs: list[str], family: str) -> set[str]:
    """The packages that brought these programs, as far as they are there and came by one."""
    ask = "dpkg-query -S" if family == "debian" else "rpm -qf --qf '%%{NAME}: \\n'"
    each = " ".join(["%s"] * len(programs))
    found = host.run(f'for p in {each}; do p=$(command -v "$p") && {ask} "$(readlink -f "$p")"; done', *programs).stdout
    return {match[1] for match in re.finditer(r"^([a-z0-9A-Z][\w.+-]+)(?::\w+)?:\s", found, re.MULTILINE)}


def _changed(shown: str) -> list[str]:
    """Both managers write alike: nine marks, of which 5 is the digest (or "missing"), c for configuration, the path."""
    rows = [_VERIFY_ROW.fullmatch(line.strip()) for line in shown.splitlines()]
    found = [row.groups() for row in rows if row]
    return [
        f"{path}{' (missing)' if marks == 'missing' else ''}"
        for marks, kind, path in found
        if (marks == "missing" or "5" in marks) and kind is None and not path.startswith(_MAY_BE_GONE)
    ]


def installed(host: Any, wanted: dict[str, str], family: str) -> dict[str, str]:
    """Package → installed version ("missing" where none is), written with an epoch where `wanted` writes one."""
    if family == "debian":
        found = _dpkg(host, sorted(wanted))
    else:
        found = {
            name: _as_written(version, wanted[name])
            for name, version in _rpm(host, sorted(wanted)).items()
            if name in wanted
        }
    return {name: found.get(name, MISSING) for name in wanted}


def _dpkg(host: Any, names: list[str]) -> dict[str, str]:
    shown = host.run(
        f"dpkg-query -W -f %s {' '.join(['%s'] * len(names))}", "${Package} ${db:Status-Status} ${Version}\\n", *names
    ).stdout
    rows = [line.split() for line in shown.splitlines()]
    return {row[0]: row[2] for row in rows if len(row) == 3 and row[1] == "installed"}


def _rpm(host: Any, names: list[str]) -> dict[str, str]:
    form = "%{NAME} %{EPOCHNUM}:%{VERSION}-%{RELEASE}\\n"
    shown = host.run(f"rpm -q --qf %s {' '.join(['%s'] * len(names))}", form, *names).stdout
    rows = [line.split() for line in shown.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 2}  # "package … is not installed" has more words


def _as_written(version: str, like: str) -> str:
    return version if re.match(r"\d+:", like) else re.sub(r"^\d+:", "", version)


def held(host: Any, wanted: dict[str, str], family: str) -> set[str]:
    """Those of `wanted` that no upgrade moves: on hold (apt), or locked to their planned version (dnf)."""
    if family == "debian":
        return set(wanted) & set(host.run("apt-mark showhold").stdout.split())
    locks = host.run("cat /etc/dnf/plugins/versionlock.list /etc/yum/pluginconf.d/versionlock.list").stdout
    return {name for name, version in wanted.items() if _locked(name, version, locks)}


def _locked(name: str, version: str, locks: str) -> bool:
    bare = re.escape(re.sub(r"^\d+:", "", version)).replace(r"\*", ".*")
    # As dnf 4 writes them (name-epoch:version-release.arch) and as yum does (epoch:name-version-release.arch).
    pattern = rf"^(\d+:)?{re.escape(name)}-(\d+:)?{bare}(\.|$)"
    return re.search(pattern, locks, re.MULTILINE) is not None
