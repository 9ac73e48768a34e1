"""Packages: versions of a planned component's, whether an upgrade of the system can change them, paths of no package.

Where the package manager's database cannot be read, no package is missing: nothing is known of them (`trouble`).
dpkg-query ends with status 2 and `error: parsing file …` for a damaged /var/lib/dpkg/status, and finds no package in
one that is empty; rpm says `cannot open Packages database`, or that rpm itself is not installed. Observed with
dpkg 1.21 and rpm 4.18 (2026-11-25).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from validator.observe import SCAN_SECONDS, Observe, unproven
from validator.plan import OBSERVED
from validator.plan_document import PlanDocument, section
from validator.probes import base_driver, since_image

MISSING = "missing"
_MISSING = " (missing)"  # after the path of a packaged file that is not there
_RPM_VERIFY = (
    "rpm --verify --nodeps --noscripts --nouser --nogroup --nomode --nomtime --nolinkto --nordev --nocaps --noconfig"
)
_VERIFY_ROW = re.compile(r"(\S+)\s+(?:([cdglr])\s+)?(/.*)")
_VERIFY_SECONDS = 900.0  # reads every packaged file; the first read of a new EBS volume is slow
# Files that minimal images exclude by settings of the package manager (dpkg.cfg path-exclude, rpm --nodocs).
_MAY_BE_MISSING = (
    "/usr/share/doc/",
    "/usr/share/man/",
    "/usr/share/locale/",
    "/usr/share/info/",
    "/usr/share/lintian/",
)
UNREADABLE = "the package database cannot be read"
CHECK = "system::test_package_database_can_be_read"
QUERIES = {"debian": "dpkg-query -W -f '${db:Status-Status}' dpkg", "redhat": "rpm -q rpm"}
_PATHS = {"debian": "/var/lib/dpkg/status", "redhat": "/var/lib/rpm"}


def planned(plan: PlanDocument, component: str) -> dict[str, str]:
    """Package name → full version of a planned component. UNPROVEN if the base AMI or an installer provides it."""
    if component not in plan:
        unproven(f"the plan has no {component}")
    row = section(plan, component)
    if "provided_by" in row:
        unproven(f"{component} is the base AMI's ({row['provided_by']}): the plan names no packages of it")
    package = {row["package"]: row.get("package_version", row["version"])} if "package" in row else {}
    packages = row.get("packages", {})
    if not package and not packages and "url" in row:
        unproven(f"{component} is installed by {str(row['url']).rpartition('/')[2]}, not from packages")
    versions = package | (packages if isinstance(packages, dict) else {})
    if not versions and plan.get("origin") == OBSERVED:
        unproven(f"{component} is of no package of this image: no package database can say whether its files are whole")
    if not versions:
        unproven(f"the plan names no packages of {component}")
    return {str(name): str(version) for name, version in versions.items()}


def check_installed(host: Any, plan: PlanDocument, component: str, observe: Observe) -> None:
    """Fails unless exactly the planned versions are installed."""
    __tracebackhide__ = True
    versions = planned(plan, component)
    present = installed(host, versions, plan["os"]["family"])
    # A planned version that ends in * matches any build number of the vendor.
    expected = {
        name: present[name] if fnmatchcase(present[name], version) else version for name, version in versions.items()
    }
    observe.same(present, expected, f"packages of {component}")


def check_held(host: Any, plan: PlanDocument, component: str, observe: Observe) -> None:
    """Fails unless each planned package is held at its planned version."""
    __tracebackhide__ = True
    versions = planned(plan, component)
    held_packages = held(host, versions, plan["os"]["family"])
    observe(sorted(held_packages), sorted(versions))
    not_held = sorted(set(versions) - held_packages)
    if not_held:
        observe.fail(f"not held, so an upgrade would change them: {', '.join(not_held)}")


def check_unchanged(host: Any, plan: PlanDocument, component: str, programs: list[str], observe: Observe) -> None:
    """Fails if a file of the component's packages, or of the packages of `programs`, is missing or changed.

    Configuration files may be changed. UNPROVEN if the package manager knows none of the packages.
    """
    __tracebackhide__ = True
    family = plan["os"]["family"]
    versions = {} if "provided_by" in section(plan, component) else planned(plan, component)
    present = {
        name for name, version in (installed(host, versions, family) if versions else {}).items() if version != MISSING
    }
    names = sorted(present | _owners(host, programs, family))
    if not names:
        unproven(f"{component} was not installed from a package")
    verify = "dpkg --verify" if family == "debian" else _RPM_VERIFY
    done = host.run(f"{verify} {' '.join(['%s'] * len(names))}", *names, timeout=_VERIFY_SECONDS)
    changed = _changed(done.stdout)
    if any(path.endswith(_MISSING) for path in changed):
        registered = {f"{path}{_MISSING}" for path in base_driver.registered_files(host, plan)}
        changed = [path for path in changed if path not in registered]
    observe(changed or ", ".join(names), "no changed file")
    if changed:
        more = f" and {len(changed) - 10} more" if len(changed) > 10 else ""
        observe.fail(f"files that differ from the packages of {component}: {'; '.join(changed[:10])}{more}")
    if done.rc != 0 and not done.stdout.strip():
        unproven(f"{verify.split()[0]} cannot verify the files: {done.stderr.strip()[-300:]}")


def changed_files(host: Any, family: str, unchanged: Sequence[str] = ()) -> list[tuple[str, bool, bool]] | None:
    """Files that differ from their package, of all packages: path, whether it is missing, whether it is configuration.

    None if the package manager does not own the system's programs. unchanged: directories whose files need not be read
    (dpkg alone). Otherwise reads every packaged file.
    """
    if not _owners(host, ["dpkg" if family == "debian" else "rpm"], family):
        return None
    whole = "dpkg --verify" if family == "debian" else _RPM_VERIFY.replace(" --noconfig", " -a")
    verify = since_image.verify_partly(unchanged) if unchanged and family == "debian" else whole
    done = host.run(verify, timeout=_VERIFY_SECONDS)
    rows = [_VERIFY_ROW.fullmatch(line.strip()) for line in done.stdout.splitlines()]
    return [
        (row[3], row[1] == "missing", row[2] == "c")
        for row in rows
        if row and (row[1] == "missing" or "5" in row[1]) and row[2] in (None, "c")
    ]


def _owners(host: Any, programs: list[str], family: str) -> set[str]:
    """The packages that own these programs; programs that are missing or not packaged are ignored."""
    query = "dpkg-query -S" if family == "debian" else "rpm -qf --qf '%%{NAME}: \\n'"
    each = " ".join(["%s"] * len(programs))
    owners = host.run(
        f'for p in {each}; do p=$(command -v "$p") && {query} "$(readlink -f "$p")"; done', *programs
    ).stdout
    return {match[1] for match in re.finditer(r"^([a-z0-9A-Z][\w.+-]+)(?::\w+)?:\s", owners, re.MULTILINE)}


def _changed(shown: str) -> list[str]:
    """Changed files in the output of dpkg or rpm: nine flags (5: digest) or "missing", c for configuration, path."""
    rows = [_VERIFY_ROW.fullmatch(line.strip()) for line in shown.splitlines()]
    changes = [row.groups() for row in rows if row]
    return [
        f"{path}{_MISSING if marks == 'missing' else ''}"
        for marks, kind, path in changes
        if (marks == "missing" or "5" in marks) and kind is None and not path.startswith(_MAY_BE_MISSING)
    ]


def installed(host: Any, planned: dict[str, str], family: str) -> dict[str, str]:
    """Package → installed version (MISSING if not installed), with an epoch if its planned version has one."""
    if family == "debian":
        versions = _dpkg(host, sorted(planned))
    else:
        versions = {
            name: _with_epoch_as(planned[name], version)
            for name, version in _rpm(host, sorted(planned)).items()
            if name in planned
        }
    if planned and not versions:  # nothing is installed, or nothing can be read
        require_readable(host, family)
    return {name: versions.get(name, MISSING) for name in planned}


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


def _with_epoch_as(planned: str, version: str) -> str:
    return version if re.match(r"\d+:", planned) else re.sub(r"^\d+:", "", version)


def held(host: Any, planned: dict[str, str], family: str) -> set[str]:
    """The packages that no upgrade changes: on hold (apt), or locked to their planned version (dnf)."""
    if family == "debian":
        on_hold = host.run("apt-mark showhold").stdout.split()
        if planned and not on_hold:
            require_readable(host, family)
        return set(planned) & set(on_hold)
    locks = host.run("cat /etc/dnf/plugins/versionlock.list /etc/yum/pluginconf.d/versionlock.list").stdout
    return {name for name, version in planned.items() if _locked(name, version, locks)}


def _locked(name: str, version: str, locks: str) -> bool:
    bare = re.escape(re.sub(r"^\d+:", "", version)).replace(r"\*", ".*")
    # dnf 4 writes name-epoch:version-release.arch, yum writes epoch:name-version-release.arch.
    pattern = rf"^(\d+:)?{re.escape(name)}-(\d+:)?{bare}(\.|$)"
    return re.search(pattern, locks, re.MULTILINE) is not None


def trouble(host: Any, family: str) -> str:
    """What keeps the database from being read; "" where it lists the package manager itself."""
    done = host.run(QUERIES["debian" if family == "debian" else "redhat"])
    if done.rc == 0:
        return ""
    lines = [line.strip() for line in f"{done.stderr}\n{done.stdout}".splitlines() if line.strip()]
    said = "; ".join(lines[:3]) or f"exit status {done.rc} without output"
    path = _PATHS["debian" if family == "debian" else "redhat"]
    return f"{UNREADABLE}: {path}: {said}"


def require_readable(host: Any, family: str) -> None:
    """UNPROVEN where the database cannot be read, so a query found nothing: it is a finding of one check alone."""
    said = trouble(host, family)
    if said:
        unproven(f"{said} ({CHECK})")


def of_no_package(host: Any, paths: Sequence[str]) -> list[str]:
    """Those of the paths that no package owns."""
    asked = host.run(ask_owners(paths), timeout=SCAN_SECONDS).stdout if paths else ""
    return [line.removeprefix(_OF_NONE) for line in asked.splitlines() if line.startswith(_OF_NONE)]


_OF_NONE = "of no package: "  # before each path that `ask_owners` prints


def ask_owners(paths: Sequence[str]) -> str:
    """Prints "of no package: PATH" for each path of no package. dpkg is asked once: it reads its database each time.

    Where /bin is a link to /usr/bin, dpkg knows the path that the package has.
    """
    names = shlex.join([*paths, *(path.removeprefix("/usr") for path in paths if path.startswith("/usr/"))])
    return (
        f"owner=$([ ! -e /var/lib/dpkg/status ] || dpkg-query -S {names} 2>/dev/null | sed 's/.*: //')\n"
        f"for f in {shlex.join(paths)}; do\n"
        """if [ ! -e /var/lib/dpkg/status ]; then
owner=; { rpm -qf "$f" || rpm -qf "${f#/usr}"; } >/dev/null 2>&1 && owner=$f
fi
case "
$owner
" in *"
$f
"* | *"
${f#/usr}
"*) ;; *) echo "of no package: $f" ;; esac
done"""
    )
