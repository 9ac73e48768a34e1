"""Simulates an upgrade of the whole system, and says what it would change (probes/system_upgrade.py).

Runs on the system as root with Python 3.6 or newer; dnf needs the interpreter that has its module. Argument: JSON, see
`main`. Prints JSON. Nothing of the system is changed: indexes and caches are in a folder of its own, which is removed.

The offer NEWER_STACK is made here: of every package of the stack a newer version, whose relations to the others of the
stack are those of the installed ones, and a newer kernel. No repository is asked, so it also runs on an image's files.
The offer REPOSITORIES is what the system's own repositories have today.
"""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple
from xml.sax.saxutils import quoteattr

try:
    import dnf  # type: ignore[import-not-found]
    import dnf.exceptions  # type: ignore[import-not-found]
except ImportError:
    dnf = None

# Of a relation: name, comparison ("" for none), version.
Relation = Tuple[str, str, str]
Record = Dict[str, Any]

NEWER_STACK, REPOSITORIES = "newer-stack", "repositories"
SECONDS = 400.0
NEWER = "9999"
RPM_FORM = (
    "P\\t%{NAME}\\t%{EPOCHNUM}:%{VERSION}-%{RELEASE}\\t%{ARCH}\\t%{VENDOR}\\n"
    "[R\\t%{REQUIRENAME}\\t%{REQUIREFLAGS:depflags}\\t%{REQUIREVERSION}\\n]"
    "[O\\t%{PROVIDENAME}\\t%{PROVIDEFLAGS:depflags}\\t%{PROVIDEVERSION}\\n]"
)
# Package managers: their publishers are the system's, whose packages no component brings along.
SYSTEM = {"deb": ("dpkg", "apt", "libc6", "bash"), "rpm": ("rpm", "dnf", "glibc", "bash")}
# Builds the modules again for another kernel; the stack's, whoever published it.
BUILDER = "dkms"
# The kernel's further modules, which are of exactly its version, whether or not they say so.
MODULES = re.compile(r"(kernel[\d.]*|linux)-modules-extra-?.*")
LOCKS = ("/etc/dnf/plugins/versionlock.list", "/etc/yum/pluginconf.d/versionlock.list")


class Unable(Exception):
    """The simulation cannot run here; the message says why."""


class Package:
    """An installed package. requires: alternatives of each requirement; publisher: maintainer or vendor."""

    def __init__(self, name: str, version: str, architecture: str, publisher: str) -> None:
        self.name, self.version, self.architecture, self.publisher = name, version, architecture, publisher
        self.requires = []  # type: List[List[Relation]]
        self.provides = [(name, "=", version)]  # type: List[Relation]


def output(command: Sequence[str], environment: Optional[Dict[str, str]] = None) -> Tuple[int, str, str]:
    """Exit status, standard output and standard error."""
    own = {"LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
            timeout=SECONDS, env=dict(own, **(environment or {})), check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Unable("%s: %s" % (command[0], error))
    return done.returncode, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")


def dpkg_packages() -> Iterator[Package]:
    with open("/var/lib/dpkg/status", encoding="utf-8", errors="replace") as file:
        blocks = file.read().split("\n\n")
    for block in blocks:
        fields = dict(re.findall(r"(?m)^([A-Z][\w-]*): (.*)$", block))
        if fields.get("Status", "").split()[-1:] != ["installed"]:
            continue
        package = Package(fields["Package"], fields["Version"], fields["Architecture"], fields.get("Maintainer", ""))
        for key in ("Pre-Depends", "Depends"):
            for group in filter(None, (part.strip() for part in fields.get(key, "").split(","))):
                package.requires.append([relation(choice) for choice in group.split("|")])
        package.provides += [relation(part) for part in fields.get("Provides", "").split(",") if part.strip()]
        yield package


def relation(text: str) -> Relation:
    """`name:any (>= 1)` → (name, >=, 1)."""
    match = re.match(r"\s*([^\s:(]+)(?::\w+)?\s*(?:\(([<>=]+)\s*([^)]+)\))?", text)
    return (match.group(1), match.group(2) or "", (match.group(3) or "").strip()) if match else ("", "", "")


def rpm_packages() -> Iterator[Package]:
    code, listed, said = output(["rpm", "-qa", "--qf", RPM_FORM])
    if code != 0:
        raise Unable("rpm -qa: %s" % said.strip())
    package = None  # type: Optional[Package]
    for line in listed.splitlines():
        row = line.split("\t")
        if row[0] == "P" and len(row) == 5:
            if package is not None and package.name != "gpg-pubkey":
                yield package
            package = Package(row[1], row[2], row[3], "" if row[4] == "(none)" else row[4])
        elif package is not None and len(row) == 4:
            item = (row[1], row[2].strip(), row[3])
            if row[0] == "R" and not row[1].startswith("rpmlib("):
                package.requires.append([item])
            elif row[0] == "O":
                package.provides.append(item)
    if package is not None and package.name != "gpg-pubkey":
        yield package


def held(kind: str) -> List[str]:
    """Names that dpkg holds; names of version locks."""
    if kind == "deb":
        code, listed, said = output(["dpkg-query", "-W", "-f", "${db:Status-Want} ${Package}\\n"])
        if code != 0:
            raise Unable("dpkg-query: %s" % said.strip())
        return sorted(line[5:] for line in listed.splitlines() if line.startswith("hold "))
    names = set()
    for path in LOCKS:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                rows = [line.strip() for line in file]
        except OSError:
            continue
        names |= {lock_name(row) for row in rows if row[:1] not in ("", "#", "!")}
    return sorted(names)


def lock_name(row: str) -> str:
    """The package of name-epoch:version-release.arch or epoch:name-version-release.arch (yum). A name is its own."""
    return re.sub(r"-(\d+:)?[^-]+-[^-]+$", "", re.sub(r"^\d+:", "", row)) if ":" in row else row


def repositories_of(kind: str, work: str) -> Dict[str, str]:
    """Package → id of the repository that dnf took it from. dpkg does not record it."""
    if kind == "deb" or dnf is None:
        return {}
    shutil.copytree("/var/lib/dnf", work + "/history")  # a database in which dnf writes whenever it opens it
    base = dnf_base(work, work + "/history")
    try:
        base.fill_sack(load_system_repo=True, load_available_repos=False)
        return {package.name: package.from_repo for package in base.sack.query().installed()}
    except (OSError, dnf.exceptions.Error):
        return {}
    finally:
        base.close()


def dnf_base(work: str, history: str) -> Any:
    base = dnf.Base()
    base.conf.read()
    base.conf.cachedir, base.conf.logdir, base.conf.persistdir = work + "/cache", work, history
    base.conf.substitutions.update_from_etc("/")
    return base


def recorded_names(kind: str, paths: Sequence[str]) -> Set[str]:
    """Packages in an installer's record of itself: comments, then file names without their suffix."""
    names = set()
    for path in paths:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                words = [word for line in file if not line.startswith("#") for word in line.split()]
        except OSError:
            continue
        names |= {re.sub(r"_.*$" if kind == "deb" else r"-[^-]+-[^-]+$", "", word) for word in words}
    return names


class Stack:
    """The packages that were planned, and those that stand or fall with them."""

    def __init__(self, kind: str, packages: Iterable[Package], sources: Dict[str, str], asked: Record) -> None:
        self.packages = {}  # type: Dict[str, List[Package]]
        for package in packages:
            self.packages.setdefault(package.name, []).append(package)
        self.kind, self.sources = kind, sources
        self.kernel = set(asked["kernel"]) & set(self.packages)
        further = {name for name in self.packages if self.kernel and MODULES.fullmatch(name)}
        kernels = os.listdir("/lib/modules") if os.path.isdir("/lib/modules") else []
        asked_for = {name.replace("{release}", kernel) for name in asked["planned"] for kernel in kernels or [""]}
        named = asked_for | recorded_names(kind, asked["records"])
        roots = (named | {BUILDER}) & set(self.packages)
        kernel = self.kernel | further
        self.providers = {}  # type: Dict[str, List[Tuple[Package, str]]]
        for package in self._all():
            for name, _, version in package.provides:
                self.providers.setdefault(name, []).append((package, version))
        system = {package.publisher for name in SYSTEM[kind] for package in self.packages.get(name, ())}
        planned = asked_for & set(self.packages) - {BUILDER}
        self.files = set(asked["files"])
        # Where the package manager has recorded what came from a planned repository, its publisher says no more.
        recorded = self.files & set(sources.values())
        publishers = {each.publisher for name in planned for each in self.packages[name]} - system - {""}
        self.publishers = set() if recorded else publishers
        # Of what is bound to the kernel's own packages the package manager takes no other version without them.
        self.to_hold = self._closure(roots) | kernel
        self.names = self._closure(roots | kernel)

    def _all(self) -> Iterator[Package]:
        return (package for versions in self.packages.values() for package in versions)

    def _closure(self, roots: Set[str]) -> Set[str]:
        reached = roots | {name for name, source in self.sources.items() if source in self.files}
        reached &= set(self.packages)
        while True:
            before = set(reached)
            for package in self._all():
                # What DKMS runs with, a compiler and make, is the system's, whoever published it.
                publishers = self.publishers if package.name != BUILDER else set()
                for provider, exact in self._required(package):
                    if package.name in reached and (exact or provider.publisher in publishers):
                        reached.add(provider.name)
                    elif provider.name in reached and exact:
                        reached.add(package.name)
            if reached == before:
                return reached

    def _required(self, package: Package) -> Iterator[Tuple[Package, bool]]:
        """Installed packages that meet a requirement, and whether no other version would."""
        for group in package.requires:
            for name, comparison, version in group:
                for provider, provided in self.providers.get(name, ()):
                    if provider is not package:
                        yield provider, comparison == "=" and same(version, provided)

    def newer(self) -> List[Package]:
        """A newer version of each, bound to the others as the installed one is, and a newer kernel."""
        offered = []
        for name in sorted(self.names):
            package = self.packages[name][-1]
            copy = Package(name, newer(self.kind, package.version), package.architecture, package.publisher)
            copy.provides = [self._moved(package, item) for item in package.provides]
            copy.requires = [moved for moved in map(self._group, package.requires) if moved]
            offered.append(copy)
            if self.kind == "deb" and name in self.kernel:  # a new kernel of Debian and Ubuntu has a name of its own
                fresh = Package("%s-%s" % (name, NEWER), copy.version, package.architecture, package.publisher)
                copy.requires = [[(fresh.name, "", "")]]
                offered.append(fresh)
        return offered

    def _moved(self, package: Package, item: Relation) -> Relation:
        name, comparison, version = item
        return (name, comparison, newer(self.kind, version)) if same(version, package.version) else item

    def _group(self, group: List[Relation]) -> List[Relation]:
        moved = []
        for name, comparison, version in group:
            for provider, provided in self.providers.get(name, ()):
                if provider.name in self.names:
                    bound = comparison in ("=", "<=") and same(version, provided)
                    moved.append((name, comparison, newer(self.kind, provided) if bound else version))
                    break
        return moved


def same(version: str, provided: str) -> bool:
    """Whether both are one version; a requirement may be without epoch or release."""
    bare, full = (re.sub(r"^\d+:", "", text) for text in (version, provided))
    return bool(bare) and (bare == full or full.rpartition("-")[0] == bare)


def newer(kind: str, version: str) -> str:
    """A later upstream version: 1:4.6.1-1 → 1:4.6.1.9999-1."""
    upstream, dash, revision = version.rpartition("-")
    if not dash:
        upstream, revision = version, ""
    return upstream + "." + NEWER + dash + revision


def stanza(package: Package) -> str:
    """An entry of an apt index."""
    fields = [
        ("Package", package.name), ("Version", package.version), ("Architecture", package.architecture),
        ("Maintainer", package.publisher or "none"), ("Priority", "optional"), ("Section", "misc"),
        ("Filename", "./%s.deb" % package.name), ("Size", "1000"), ("SHA256", "0" * 64),
        ("Provides", ", ".join(shown(item) for item in package.provides[1:])),
        ("Depends", ", ".join(" | ".join(shown(item) for item in group) for group in package.requires)),
        ("Description", "newer version"),
    ]  # fmt: skip
    return "".join("%s: %s\n" % field for field in fields if field[1])


def shown(item: Relation) -> str:
    return "%s (%s %s)" % item if item[1] else item[0]


def primary(packages: Sequence[Package]) -> str:
    """An index of dnf: repodata/primary.xml."""
    rows = []
    for package in packages:
        requires = [item for group in package.requires for item in group[:1]]
        rows.append(
            '<package type="rpm"><name>%s</name><arch>%s</arch><version %s/>'
            '<checksum type="sha256" pkgid="YES">%s</checksum><summary>newer version</summary><description/>'
            '<packager/><url/><time file="0" build="0"/><size package="1000" installed="1000" archive="1000"/>'
            '<location href="%s.rpm"/><format><rpm:license/><rpm:vendor/><rpm:group/><rpm:buildhost/><rpm:sourcerpm/>'
            '<rpm:header-range start="0" end="0"/><rpm:provides>%s</rpm:provides><rpm:requires>%s</rpm:requires>'
            "</format></package>"
            % (
                package.name,
                package.architecture,
                evr(package.version),
                digest(package.name + package.version),
                package.name,
                "".join(map(entry, package.provides)),
                "".join(map(entry, requires)),
            )
        )
    return (
        '<?xml version="1.0" encoding="UTF-8"?><metadata xmlns="http://linux.duke.edu/metadata/common"'
        ' xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="%d">%s</metadata>' % (len(rows), "".join(rows))
    )


def entry(item: Relation) -> str:
    name, comparison, version = item
    flags = {"=": "EQ", ">=": "GE", "<=": "LE", ">": "GT", "<": "LT"}.get(comparison)
    more = " flags=%s %s" % (quoteattr(flags), evr(version)) if flags else ""
    return "<rpm:entry name=%s%s/>" % (quoteattr(name), more)


def evr(version: str) -> str:
    epoch, colon, rest = version.rpartition(":")
    upstream, dash, release = rest.rpartition("-")
    if not dash:
        upstream, release = rest, ""
    attributes = "epoch=%s ver=%s" % (quoteattr(epoch if colon else "0"), quoteattr(upstream))
    return attributes + (" rel=%s" % quoteattr(release) if dash else "")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def write_rpm_repository(folder: str, packages: Sequence[Package]) -> None:
    os.makedirs(folder + "/repodata")
    empty = '<filelists xmlns="http://linux.duke.edu/metadata/filelists" packages="0"/>'
    data = []
    for kind, text in (("primary", primary(packages)), ("filelists", empty)):
        with open("%s/repodata/%s.xml" % (folder, kind), "w", encoding="utf-8") as file:
            file.write(text)
        data.append(
            '<data type="%s"><checksum type="sha256">%s</checksum><location href="repodata/%s.xml"/>'
            "<timestamp>1</timestamp><size>%d</size></data>" % (kind, digest(text), kind, len(text.encode()))
        )
    with open(folder + "/repodata/repomd.xml", "w", encoding="utf-8") as file:
        file.write(
            '<?xml version="1.0" encoding="UTF-8"?><repomd xmlns="http://linux.duke.edu/metadata/repo">'
            "<revision>1</revision>%s</repomd>" % "".join(data)
        )


def upgrade_apt(work: str, offered: Optional[Sequence[Package]]) -> Tuple[List[Record], str]:
    """What `apt-get dist-upgrade` would change, and why it cannot; the holds and pins of the system count."""
    options = []
    for key, value in (("State::lists", "lists/partial"), ("Cache", "cache/archives/partial")):
        os.makedirs("%s/%s" % (work, value))
        options += ["-o", "Dir::%s=%s/%s" % (key, work, value.split("/")[0])]
    options += ["-o", "APT::Sandbox::User=root", "-o", "Dir::Log=%s" % work]
    if offered is not None:
        os.makedirs(work + "/offer")
        with open(work + "/offer/Packages", "w", encoding="utf-8") as file:
            file.write("\n".join(map(stanza, offered)))
        with open(work + "/offer.list", "w", encoding="utf-8") as file:
            file.write("deb [trusted=yes] file:%s/offer ./\n" % work)
        options += ["-o", "Dir::Etc::sourcelist=%s/offer.list" % work, "-o", "Dir::Etc::sourceparts=/dev/null"]
    code, _, said = output(["apt-get", "update", "-q", "-o", "APT::Update::Error-Mode=any", *options])
    if code != 0:
        raise Unable("apt-get update: %s" % last(said))
    code, listed, said = output(["apt-get", "-s", "-q", "dist-upgrade", *options])
    changes = []
    for line in listed.splitlines():
        match = re.match(r"(Inst|Remv) (\S+)(?: \[([^\]]*)\])?(?: \((\S+) ?([^)]*))?", line)
        if match:
            action, name, before, after, source = match.groups()
            name = name.partition(":")[0]
            changes.append(change(name, before, after if action == "Inst" else "", source))
    problem = "" if code == 0 else "%s %s" % (listed[listed.find("The following packages have") :][:1500], last(said))
    return changes, problem.strip()


def change(name: str, before: Optional[str], after: Optional[str], source: Optional[str]) -> Record:
    return {"name": name, "from": before or "", "to": after or "", "source": (source or "").strip()}


def last(text: str) -> str:
    return " ".join(text.strip().splitlines()[-4:])[-600:] or "no output"


def upgrade_dnf(work: str, offered: Optional[Sequence[Package]]) -> Tuple[List[Record], str]:
    """What `dnf upgrade` would change, and why it cannot; the locks and exclusions of the system count."""
    if dnf is None:
        raise Unable("this system has no dnf, and yum cannot say what it would do")
    base = dnf_base(work, work)
    try:
        base.init_plugins()
        if offered is not None:
            write_rpm_repository(work + "/offer", offered)
            base.repos.add_new_repo("offer", base.conf, baseurl=["file://%s/offer" % work], gpgcheck=0, repo_gpgcheck=0)
            base.conf.best = True  # the setting that refuses the whole upgrade rather than leave a package out
        else:
            base.read_all_repos()
        base.configure_plugins()
        try:
            base.fill_sack(load_system_repo=True)
        except dnf.exceptions.RepoError as error:
            raise Unable("dnf: %s" % error)
        unanswered = [repository.id for repository in base.repos.iter_enabled() if repository.metadata is None]
        if offered is None and unanswered:
            raise Unable("dnf: no answer from %s" % ", ".join(unanswered))
        base.upgrade_all()
        try:
            base.resolve()
        except dnf.exceptions.DepsolveError as error:
            return [], str(error)
        conflicts = base._goal.problem_conflicts(available=True) + base._goal.problem_broken_dependency(available=True)
        left_out = sorted({str(package) for package in conflicts})
        return list(transaction(base)), "left out: %s" % ", ".join(left_out) if left_out else ""
    finally:
        base.close()


def transaction(base: Any) -> Iterator[Record]:
    before = {package.name: package.evr for package in base.sack.query().installed()}
    for package in base.transaction.install_set:
        yield change(package.name, before.get(package.name), package.evr, package.reponame)
    after = {package.name for package in base.transaction.install_set}
    for package in base.transaction.remove_set:
        if package.name not in after:
            yield change(package.name, package.evr, "", "")


def main() -> int:
    """planned: names of packages; records: files of installers with further ones; kernel: those of the kernel.
    files: ids of the planned repositories (dnf). offer: NEWER_STACK or REPOSITORIES."""
    asked = json.loads(sys.argv[1])
    kind = "deb" if os.path.exists("/var/lib/dpkg/status") and shutil.which("apt-get") else "rpm"
    work = tempfile.mkdtemp(prefix="system-upgrade-", dir=os.environ.get("TMPDIR") or "/var/tmp")
    result = {"kind": kind, "changes": [], "problem": "", "unable": ""}  # type: Record
    try:
        packages = list(dpkg_packages() if kind == "deb" else rpm_packages())
        stack = Stack(kind, packages, repositories_of(kind, work), asked)
        result.update(stack=sorted(stack.names), held=held(kind), to_hold=sorted(stack.to_hold))
        offered = stack.newer() if asked["offer"] == NEWER_STACK else None
        simulate = upgrade_apt if kind == "deb" else upgrade_dnf
        result["changes"], result["problem"] = simulate(work, offered)
    except Unable as error:
        result["unable"] = str(error)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    json.dump(result, sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
