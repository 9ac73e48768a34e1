"""What a system is made of, for its bill of materials: packages with their sources, and kernel modules.

Runs on the system itself, or reads the files of a tree, with Python 3.6 or newer and its standard library alone. Prints
JSON; with --bom FILE it writes a CycloneDX 1.6 document, the image's own bill of materials. `gpu-ami certify` reads
what is printed; observation.py reads packages and files with it.
"""

import argparse
import glob
import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
import tempfile
import uuid
from contextlib import closing
from typing import Any, Dict, Iterable, Iterator, List, Optional, Sequence, Set, Tuple
from urllib.parse import quote

Record = Dict[str, Any]

SCHEMA = "gpu-ami/materials/1"
MODULE = re.compile(r"\.ko(\.(gz|xz|zst))?$")
MODULES_AT_ONCE = 400
ALL, ADDED, LISTED = "all", "added", "listed"
SECONDS = 100.0
MOST_TEXT = 1 << 20


def output(command: Sequence[str]) -> str:
    """Standard output of a program; "" where it is not installed, fails or takes too long."""
    try:
        done = subprocess.run(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            timeout=SECONDS, env={"LC_ALL": "C.UTF-8", "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


class Tree:
    """The files of a system below `root` ("" is the running one). Absolute links stay within the root.

    unread: files and folders that are there and that this user may not read: what is in them is not known.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.unread: Set[str] = set()

    def is_open(self, folder: str, mode: int = os.R_OK | os.X_OK) -> bool:
        """Whether this user may look into a folder (a path as the system has it); notes it where not."""
        real = self.resolve(folder)
        is_open = os.access(real, mode) or not os.path.isdir(real)
        if not is_open:
            self.unread.add(folder or "/")
        return is_open

    def resolve(self, path: str) -> str:
        """The path on this machine, with every link followed inside the root."""
        parts, done, hops = [part for part in path.split("/") if part], "", 0
        while parts:
            part = parts.pop(0)
            if part == "..":
                done = done.rpartition("/")[0]
                continue
            here = self.root + done + "/" + part
            if os.path.islink(here) and hops < 40:
                hops += 1
                link = os.readlink(here)
                if link.startswith("/"):
                    done = ""
                parts = [step for step in link.split("/") if step and step != "."] + parts
            else:
                done += "/" + part
        return self.root + (done or "/")

    def is_link(self, path: str) -> bool:
        """Whether the path itself is a link; links of its folders are followed."""
        folder, _, name = path.rpartition("/")
        return os.path.islink(self.resolve(folder).rstrip("/") + "/" + name)

    def shown(self, path: str) -> str:
        """The path as the system has it."""
        return path[len(self.root) :] or "/"

    def glob(self, pattern: str) -> List[str]:
        """Paths, as the system has them, that match; links are followed inside the root, folder by folder."""
        found = [""]
        for part in [step for step in pattern.split("/") if step]:
            nearer = []
            for folder in found:
                is_named = not re.search(r"[*?\[]", part)
                if not self.is_open(folder, os.X_OK if is_named else os.R_OK | os.X_OK):
                    continue
                if is_named:
                    if os.path.lexists(self.resolve(folder) + "/" + part):
                        nearer.append(folder + "/" + part)
                    continue
                names = glob.glob(glob.escape(self.resolve(folder).rstrip("/")) + "/" + part)
                nearer += [folder + "/" + os.path.basename(name) for name in names]
            found = nearer
        return sorted(found)

    def text(self, path: str, most: int = MOST_TEXT) -> Optional[str]:
        """A regular file's beginning; None where it is none, or cannot be read."""
        real = self.resolve(path)
        try:
            if not stat.S_ISREG(os.stat(real).st_mode):
                return None
            with open(real, "rb") as file:
                return file.read(most).decode("utf-8", "replace")
        except PermissionError:
            self.unread.add(path)
        except (OSError, ValueError):
            pass
        return None


def release(tree: Tree) -> Dict[str, str]:
    """ID, VERSION_ID and the like of os-release."""
    for path in ("/etc/os-release", "/usr/lib/os-release"):
        text = tree.text(path)
        if text is not None:
            rows = [line.partition("=") for line in text.splitlines() if "=" in line]
            return {key.strip(): value.strip().strip("\"'") for key, _, value in rows}
    return {}


def database(tree: Tree) -> Tuple[str, List[Record]]:
    """Which package database was read ("" where none could be), and the installed packages.

    held: "yes" where an upgrade keeps its version. state: dpkg's, where it is not installed whole. A row of an error
    has nothing else. dpkg's database without its programs is not the system's own: emulated distributions stand on
    Debian's files. A running system's rpm is asked: its database may have a log beside it.
    """
    status = tree.text("/var/lib/dpkg/status", 1 << 26)
    has_dpkg = status is not None and bool(tree.glob("/usr/bin/dpkg-query"))
    dpkg = ("dpkg (/var/lib/dpkg/status)", list(dpkg_packages(status or ""))) if has_dpkg else ("", [])
    rpm = (rpm_file(tree) or asked_rpm(tree)) if tree.root else (asked_rpm(tree) or rpm_file(tree))
    # A system of one kind may have the other's tool, whose database lists little or nothing.
    return max((dpkg, rpm or ("", [])), key=lambda found: len(found[1]))


def dpkg_packages(status: str) -> Iterator[Record]:
    """Installed packages of dpkg's database. source: the source package, where it has another name or version."""
    for block in status.split("\n\n"):
        fields = dict(re.findall(r"(?m)^([A-Z][\w-]*): (.*)$", block))
        words = fields.get("Status", "").split()
        if words[-1:] in ([], ["not-installed"], ["config-files"]) or "Package" not in fields:
            continue
        row = {
            "name": fields["Package"], "version": fields.get("Version", ""),
            "architecture": fields.get("Architecture", ""), "kind": "deb", "source": fields.get("Source", ""),
            "vendor": fields.get("Maintainer", ""), "held": "yes" if words[0] == "hold" else "",
        }  # fmt: skip
        yield row if words[1:] == ["ok", "installed"] else dict(row, state=" ".join(words[1:]))


def rpm_file(tree: Tree) -> Optional[Tuple[str, List[Record]]]:
    """Of rpm's database as a file (sqlite), without rpm; None where there is none."""
    for path in ("/usr/lib/sysimage/rpm/rpmdb.sqlite", "/var/lib/rpm/rpmdb.sqlite"):
        real = tree.resolve(path)
        if tree.glob(path) and os.path.isfile(real):
            try:
                return "rpm (" + path + ")", list(rpm_packages(rpm_headers(real), locks(tree)))
            except (sqlite3.Error, struct.error, ValueError, IndexError, OSError) as error:
                return "", [{"error": "%s: %s" % (path, error)}]
    return None


RPM_FORM = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}\\t%{RELEASE}\\t%{ARCH}\\t%{SOURCERPM}\\t%{VENDOR}\\n"
# NAME, EPOCH, VERSION, RELEASE, ARCH, SOURCERPM and VENDOR, as rpmtag.h numbers them.
RPM_TAGS = (1000, 1003, 1001, 1002, 1022, 1044, 1011)


def asked_rpm(tree: Tree) -> Optional[Tuple[str, List[Record]]]:
    """What this system's rpm says; None where there is none, or it knows of no package."""
    lines = output(["rpm", "--root", os.path.abspath(tree.root or "/"), "-qa", "--qf", RPM_FORM]).splitlines()
    rows = [[field if field != "(none)" else "" for field in line.split("\t")] for line in lines]
    found = list(rpm_packages((row for row in rows if len(row) == len(RPM_TAGS)), locks(tree)))
    return ("rpm (rpm -qa)", found) if found else None


def rpm_packages(rows: Iterable[Sequence[str]], held: Sequence[str]) -> Iterator[Record]:
    """Packages of rows in the order of RPM_TAGS; public keys, which rpm lists too, are none."""
    for name, epoch, version, number, architecture, source, vendor in rows:
        if name != "gpg-pubkey":
            yield {
                "name": name, "version": version + "-" + number, "epoch": epoch or "0", "architecture": architecture,
                "kind": "rpm", "source": source, "vendor": vendor, "held": "yes" if is_locked(name, held) else "",
            }  # fmt: skip


def rpm_headers(path: str) -> Iterator[List[str]]:
    """Rows of RPM_TAGS of rpm's database: each row's blob is a header (rpm.org, "Package format").

    Opened as immutable: it may be on a read-only file system. Beside a log of what was not yet written into it (the
    build's machine was stopped soon after rpm), a copy of both is read.
    """
    log = path + "-wal"
    if not (os.path.isfile(log) and os.path.getsize(log)):
        yield from rpm_rows(path, "?immutable=1")
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = os.path.join(folder, "rpmdb.sqlite")
        shutil.copyfile(path, copy)
        shutil.copyfile(log, copy + "-wal")
        yield from rpm_rows(copy, "")


def rpm_rows(path: str, how: str) -> Iterator[List[str]]:
    """The rows of a database that is opened so."""
    uri = "file:" + path.replace("?", "%3f").replace("#", "%23") + how
    with closing(sqlite3.connect(uri, uri=True)) as database:
        for (blob,) in database.execute("SELECT blob FROM Packages"):
            tags = rpm_header(bytes(blob))
            yield [tags.get(tag, "") for tag in RPM_TAGS]


def rpm_header(blob: bytes) -> Dict[int, str]:
    """The values of RPM_TAGS in a header: texts (type 6), and the epoch, a number (type 4)."""
    count, length = struct.unpack_from(">II", blob)
    if 8 + 16 * count + length > len(blob):
        raise ValueError("a header is longer than its row")
    tags: Dict[int, str] = {}
    for number in range(count):
        tag, kind, offset, _ = struct.unpack_from(">IIII", blob, 8 + 16 * number)
        start = 8 + 16 * count + offset
        if tag in RPM_TAGS and kind == 6:
            tags[tag] = blob[start : blob.index(b"\0", start)].decode("utf-8", "replace")
        elif tag in RPM_TAGS and kind == 4:
            tags[tag] = str(struct.unpack_from(">I", blob, start)[0])
    return tags


def locks(tree: Tree) -> List[str]:
    """Patterns of names that dnf or yum keeps in their version: `name-epoch:version*`."""
    lines = []
    for path in ("/etc/dnf/plugins/versionlock.list", "/etc/yum/pluginconf.d/versionlock.list"):
        lines += [line.strip() for line in (tree.text(path) or "").splitlines()]
    toml = tree.text("/etc/dnf/versionlock.toml") or ""
    named = re.findall(r'(?m)^\s*name\s*=\s*"([^"]+)"', toml)
    plain = [re.sub(r"^\d+:", "", line) for line in lines if line and line[0] not in "#!"]
    return [re.sub(r"-(\d+:)?[^-]*-[^-]*$", "", line) for line in plain] + named


def is_locked(name: str, held: Sequence[str]) -> bool:
    return any(re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), name) for pattern in held)


def apt_repositories(names: Sequence[str]) -> Dict[str, str]:
    """Package → URL and suite that apt knows for the installed version; nothing where apt's lists were removed."""
    known: Dict[str, str] = {}
    name, installed = "", False
    for line in output(["apt-cache", "policy", *names]).splitlines() if names else ():
        if line and not line[0].isspace():
            name, installed = line.rstrip(":").partition(":")[0], False
        elif re.match(r" (\*\*\*|   ) \S+ \d+$", line):
            installed = line.startswith(" ***")
        elif installed and name not in known:
            row = line.split()  # priority, URL, suite/component, architecture, "Packages"
            if len(row) >= 3 and "://" in row[1]:
                known[name] = row[1] + " " + row[2]
    return known


def dnf_repositories() -> Dict[str, str]:
    """Package → id of the repository that it was installed from, as dnf's history has it."""
    form = "%{name}\\t%{from_repo}\\n"
    text = output(["dnf", "-q", "--cacheonly", "repoquery", "--installed", "--qf", form])
    rows = [line.split("\t") for line in text.splitlines() if "\t" in line]
    return {row[0]: row[1] for row in rows if row[1] and row[1] != "<unknown>"}


MEMBERS = ("name", "version", "epoch", "architecture", "kind", "source", "vendor")


def packages(root: str) -> List[Record]:
    """Installed packages, in the order of their names, with the repository where the package manager knows it."""
    found, listed = database(Tree(root))
    rows = [{member: row[member] for member in MEMBERS if member in row} for row in listed if "error" not in row]
    known: Dict[str, str] = {}
    if not root:  # of a tree elsewhere, these programs would tell of the system that runs them
        names = [row["name"] for row in rows]
        known = apt_repositories(names) if found.startswith("dpkg") else dnf_repositories()
    for row in rows:
        row["repository"] = known.get(row["name"], "")
    return sorted(rows, key=lambda row: (row["name"], row["architecture"], row["version"]))


def module_files(root: str) -> List[str]:
    """Paths of all kernel modules, of every kernel."""
    walked = os.walk(Tree(root).resolve("/lib/modules"))
    return sorted(os.path.join(folder, name) for folder, _, names in walked for name in names if MODULE.search(name))


def module(path: str, root: str) -> Record:
    """A module of which only its file is known."""
    name = MODULE.sub("", os.path.basename(path)).replace("-", "_")
    return {"path": path[len(root) :], "name": name, "version": "", "signer": "", "vermagic": "", "license": ""}


def parse_modules(text: str, root: str) -> List[Record]:
    """Modules of modinfo's output: one `filename:` line begins each."""
    modules: List[Record] = []
    for line in text.splitlines():
        key, separator, value = line.partition(":")
        if not separator:
            continue
        if key == "filename":
            modules.append(module(value.strip(), root))
        elif modules and key in ("version", "signer", "vermagic", "license"):
            modules[-1][key] = value.strip()
    return modules


def modules(root: str, which: str = ALL) -> List[Record]:
    """Kernel modules. which: ALL, of each what modinfo says of it; ADDED, without those of the kernel's own package;
    LISTED, those of the kernel's package by their files alone (reading them takes half of a bill's time)."""
    files = module_files(root)
    own = [path for path in files if "/kernel/" in path] if which != ALL else []
    read = sorted(set(files) - set(own))
    found = [module(path, root) for path in own] if which == LISTED else []
    for start in range(0, len(read), MODULES_AT_ONCE):
        found += parse_modules(output(["modinfo", *read[start : start + MODULES_AT_ONCE]]), root)
    return sorted(found, key=lambda one: str(one["path"]))


def materials(root: str, which: str = ALL) -> Record:
    """The document that is printed. which: kernel modules, as `modules` has it."""
    named = release(Tree(root))
    return {
        "schema": SCHEMA, "os": named.get("ID", ""), "os_version": named.get("VERSION_ID", ""),
        "machine": os.uname().machine, "packages": packages(root), "modules": modules(root, which),
    }  # fmt: skip


def purl(package: Record, system: str, version: str) -> str:
    """The package URL (purl-spec, types deb and rpm): qualifiers in alphabetical order, values percent-encoded."""
    vendor = {"amzn": "amzn", "rhel": "redhat"}.get(system, system)
    architecture, epoch = package["architecture"], package.get("epoch", "")
    qualifiers = {"arch": architecture, "distro": system + "-" + version, "epoch": epoch if epoch != "0" else ""}
    shown = "&".join(key + "=" + escape(value) for key, value in sorted(qualifiers.items()) if value)
    name, number = escape(package["name"]), escape(package["version"])
    return "pkg:%s/%s/%s@%s?%s" % (package["kind"], escape(vendor), name, number, shown)


def escape(text: str) -> str:
    return quote(text, safe=":~.-_")


def bom(found: Record) -> Record:
    """A CycloneDX 1.6 document; its serial number follows from its content."""
    components: Dict[str, Record] = {}
    for package in found["packages"]:
        reference = purl(package, found["os"], found["os_version"])
        components[reference] = {
            "type": "library", "bom-ref": reference, "name": package["name"], "version": package["version"],
            "purl": reference,
        }  # fmt: skip
        if package["repository"]:
            where = [{"name": "gpu-ami:repository", "value": package["repository"]}]
            components[reference]["properties"] = where
    for module in found["modules"]:
        rows = [("path", module["path"]), ("signer", module["signer"]), ("vermagic", module["vermagic"])]
        reference = "module:" + module["path"]
        components[reference] = {
            "type": "device-driver", "bom-ref": reference, "name": module["name"], "version": module["version"],
            "properties": [{"name": "gpu-ami:" + key, "value": value} for key, value in rows if value],
        }  # fmt: skip
    listed = [components[key] for key in sorted(components)]
    digest = hashlib.sha256(json.dumps(listed, sort_keys=True).encode("utf-8")).hexdigest()
    system = {"type": "operating-system", "name": found["os"], "version": found["os_version"], "bom-ref": "system"}
    return {
        "bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1,
        "serialNumber": "urn:uuid:" + str(uuid.uuid5(uuid.NAMESPACE_URL, digest)),
        "metadata": {"lifecycles": [{"phase": "build"}], "component": system}, "components": listed,
    }  # fmt: skip


def write(path: str, document: Record) -> None:
    """Writes the document whole or not at all, readable by everyone: one component a line.

    Without indentation Python's fast encoder does it, a third of this program's time on an emulated machine.
    """
    os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
    part = path + ".part"
    with open(part, "w", encoding="utf-8") as file:
        rest = {key: value for key, value in document.items() if key != "components"}
        components = ",\n".join(json.dumps(one, sort_keys=True) for one in document["components"])
        file.write(json.dumps(rest, sort_keys=True)[:-1] + ', "components": [\n' + components + "\n]}\n")
    os.chmod(part, 0o644)
    os.rename(part, path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="/", help="the tree to list [%(default)s]")
    parser.add_argument("--bom", metavar="FILE", help="write a CycloneDX document instead of printing JSON")
    parser.add_argument("--added-modules", action="store_true", help="list no module of the kernel's own package")
    given = parser.parse_args()
    which = LISTED if given.bom else ADDED if given.added_modules else ALL
    found = materials(given.root.rstrip("/"), which)
    if given.bom:
        write(given.bom, bom(found))
    else:
        json.dump(found, sys.stdout, separators=(",", ":"), ensure_ascii=True)


if __name__ == "__main__":
    main()
