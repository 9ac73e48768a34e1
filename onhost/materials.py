"""What a system is made of, for its bill of materials: packages with their sources, and kernel modules.

Runs on the system itself with Python 3.6 or newer and its standard library alone. Prints JSON; with --bom FILE it
writes a CycloneDX 1.6 document, the image's own bill of materials. `gpu-ami certify` reads what is printed.
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import uuid
from typing import Any, Dict, Iterator, List, Sequence
from urllib.parse import quote

Record = Dict[str, Any]

SCHEMA = "gpu-ami/materials/1"
MODULE = re.compile(r"\.ko(\.(gz|xz|zst))?$")
MODULES_AT_ONCE = 400
ALL, ADDED, LISTED = "all", "added", "listed"
SECONDS = 100.0


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


def release(root: str) -> Dict[str, str]:
    """ID, VERSION_ID and the like of os-release."""
    for name in ("/etc/os-release", "/usr/lib/os-release"):
        try:
            with open(root + name, encoding="utf-8", errors="replace") as file:
                rows = [line.partition("=") for line in file]
        except OSError:
            continue
        return {key: value.strip().strip("\"'") for key, _, value in rows}
    return {}


def dpkg_packages(root: str) -> Iterator[Record]:
    """Installed packages of dpkg's database. source: the source package, where it has another name or version."""
    with open(root + "/var/lib/dpkg/status", encoding="utf-8", errors="replace") as file:
        blocks = file.read().split("\n\n")
    for block in blocks:
        fields = dict(re.findall(r"(?m)^([A-Z][\w-]*): (.*)$", block))
        if fields.get("Status", "").split()[-1:] in ([], ["not-installed"], ["config-files"]):
            continue
        yield {
            "name": fields["Package"], "version": fields.get("Version", ""),
            "architecture": fields.get("Architecture", ""), "kind": "deb", "source": fields.get("Source", ""),
            "vendor": fields.get("Maintainer", ""),
        }  # fmt: skip


def rpm_packages(root: str) -> Iterator[Record]:
    """Installed packages of rpm's database; public keys, which rpm lists too, are none."""
    form = "%{NAME}\\t%{EPOCHNUM}\\t%{VERSION}-%{RELEASE}\\t%{ARCH}\\t%{SOURCERPM}\\t%{VENDOR}\\n"
    for line in output(["rpm", "--root", os.path.abspath(root or "/"), "-qa", "--qf", form]).splitlines():
        row = [field if field != "(none)" else "" for field in line.split("\t")]
        if len(row) == 6 and row[0] != "gpg-pubkey":
            yield {
                "name": row[0], "version": row[2], "epoch": row[1], "architecture": row[3], "kind": "rpm",
                "source": row[4], "vendor": row[5],
            }  # fmt: skip


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


def packages(root: str) -> List[Record]:
    """Installed packages, in the order of their names, with the repository where the package manager knows it.

    dpkg's database without dpkg-query is not the system's own: emulated distributions stand on Debian's files.
    """
    dpkg = os.path.exists(root + "/var/lib/dpkg/status") and os.path.exists(root + "/usr/bin/dpkg-query")
    rows = list(dpkg_packages(root) if dpkg else rpm_packages(root))
    known: Dict[str, str] = {}
    if not root:  # of a tree elsewhere, these programs would tell of the system that runs them
        known = apt_repositories([row["name"] for row in rows]) if dpkg else dnf_repositories()
    for row in rows:
        row["repository"] = known.get(row["name"], "")
    return sorted(rows, key=lambda row: (row["name"], row["architecture"], row["version"]))


def module_files(root: str) -> List[str]:
    """Paths of all kernel modules, of every kernel."""
    top = root + "/lib/modules"
    walked = os.walk(os.path.realpath(top) if not root else top)
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
    named = release(root)
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
