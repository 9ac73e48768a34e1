"""Debian packages from trees, and the signed repository that holds them.

`replicas/packages.json` says which packages there are; `replicas/<family>/` holds what goes into them. The same sources
give the same bytes: sorted names, fixed modes, owners and times.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.utils import formatdate
from pathlib import Path
from typing import Any

from gpu_ami.errors import CloudError
from gpu_ami.run import find_tool, run

REPLICAS = Path(__file__).parent / "replicas"
# Every replica's files carry this time, and the replica module says that it was built then (UTC, 2026-11-21).
SOURCE_DATE_EPOCH = 1795219200
_KEY_NAME = "gpu-ami package mirror (local region)"
_KEY_DAYS = 730
_KEY_LEAST_DAYS = 30


@dataclass(frozen=True)
class Package:
    """A package to be built: control fields, and the folder of its family's sources."""

    name: str
    version: str  # upstream version
    revision: str
    family: str
    entry: Mapping[str, Any]  # its row in packages.json
    documentation: str

    @property
    def full_version(self) -> str:
        return f"{self.version}-{self.revision}"

    def file_name(self, architecture: str) -> str:
        return f"{self.name}_{self.full_version}_{architecture}.deb"


def load_table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((REPLICAS / "packages.json").read_text(encoding="utf-8"))
    return table


def listed(family: str, table: Mapping[str, Any] | None = None) -> list[Package]:
    """The packages of a family ("nvidia_driver", "cloudwatch_agent"), every version."""
    row = (table or load_table())[family]
    return [
        Package(name, version, row["revision"], family, entry, row["documentation"])
        for version in row["versions"]
        for name, entry in sorted(row["packages"].items())
    ]


def build(package: Package, into: Path) -> Path:
    """Builds one package with dpkg-deb; the .deb's path."""
    table = load_table()
    deb = into / package.file_name(table["architecture"])
    with tempfile.TemporaryDirectory(dir=into, prefix="deb-") as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        _stage(package, tree)
        _write_control(package, tree, table)
        _normalise(tree)
        dpkg_deb = find_tool("dpkg-deb", package="dpkg")
        environment = {"SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH)}
        run(
            [dpkg_deb, "--root-owner-group", "-Zgzip", "--build", tree, deb],
            timeout=120,
            env=environment,
            error=CloudError,
        )
    return deb


def _stage(package: Package, tree: Path) -> None:
    sources = REPLICAS / package.family
    for source, target in package.entry["trees"].items():
        destination = tree / _filled(target, package)
        ignored = shutil.ignore_patterns("__pycache__", "*.pyc")
        shutil.copytree(sources / source, destination, ignore=ignored, dirs_exist_ok=True)
    for folder in package.entry.get("directories", ()):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    for link, target in package.entry.get("links", {}).items():
        path = tree / _filled(link, package)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
    for name, content in package.entry.get("files", {}).items():
        path = tree / _filled(name, package)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_filled(content, package), encoding="utf-8")
    for template in package.entry.get("templates", ()):
        path = tree / _filled(template, package)
        path.write_text(_substituted(path.read_text(encoding="utf-8"), package), encoding="utf-8")


def _filled(text: str, package: Package) -> str:
    return text.replace("{version}", package.version).replace("{date}", build_date())


def _substituted(text: str, package: Package) -> str:
    return text.replace("@VERSION@", package.version)


def build_date() -> str:
    return time.strftime("%a %b %e %H:%M:%S UTC %Y", time.gmtime(SOURCE_DATE_EPOCH))


def _write_control(package: Package, tree: Path, table: Mapping[str, Any]) -> None:
    debian = tree / "DEBIAN"
    debian.mkdir()
    files = [path for path in tree.rglob("*") if path.is_file() and debian not in path.parents]
    fields = {
        "Package": package.name,
        "Version": package.full_version,
        "Architecture": table["architecture"],
        "Maintainer": table["maintainer"],
        "Installed-Size": str(sum(path.stat().st_size for path in files) // 1024 + 1),
        "Depends": ", ".join(_filled(item, package) for item in package.entry["depends"]),
        "Section": "non-free/kernel" if package.name.endswith("-dkms") else "non-free/utils",
        "Priority": "optional",
        "Gpu-Ami-Replica": "yes",
        "Description": f"{package.entry['summary']} (gpu-ami replica)\n {package.entry['does']}.\n"
        f" Stands in for the package of this name: {package.documentation}",
    }
    text = "".join(f"{key}: {value}\n" for key, value in fields.items() if value)
    (debian / "control").write_text(text, encoding="utf-8")
    conffiles = [f"/{path}\n" for path in package.entry.get("conffiles", ())]
    if conffiles:
        (debian / "conffiles").write_text("".join(conffiles), encoding="utf-8")
    scripts = package.entry.get("scripts")
    for script in sorted((REPLICAS / package.family / scripts).iterdir()) if scripts else ():
        target = debian / script.name
        target.write_text(_substituted(script.read_text(encoding="utf-8"), package), encoding="utf-8")
        target.chmod(0o755)


def _normalise(tree: Path) -> None:
    for path in sorted(tree.rglob("*")):
        if path.is_symlink():
            os.utime(path, (SOURCE_DATE_EPOCH, SOURCE_DATE_EPOCH), follow_symlinks=False)
            continue
        path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o111 else 0o644)
        os.utime(path, (SOURCE_DATE_EPOCH, SOURCE_DATE_EPOCH))
    tree.chmod(0o755)


def control_field(deb: Path, field: str) -> str:
    """One field of a .deb's control file; empty if it has none. CloudError if that is no .deb."""
    dpkg_deb = find_tool("dpkg-deb", package="dpkg")
    return run([dpkg_deb, "--field", deb, field], timeout=30, error=CloudError).stdout.strip()


@dataclass(frozen=True)
class SigningKey:
    """The key of one state directory: made at first use, never leaves it, ends after two years."""

    folder: Path
    fingerprint: str

    def sign(self, file: Path, *, clear: bool = False, armor: bool = False, suffix: str = ".sig") -> Path:
        """A detached signature beside `file` (or, with `clear`, a clear-signed copy): the path of it."""
        out = file.with_name("InRelease") if clear else file.with_name(file.name + suffix)
        how = ["--clearsign"] if clear else ["--detach-sign", *(["--armor"] if armor else [])]
        with _gpg(self.folder) as gpg:
            run([*gpg, "--local-user", self.fingerprint, "--output", out, *how, file], timeout=60, error=CloudError)
        return out

    def export(self, path: Path, *, armor: bool) -> Path:
        """The public key."""
        with _gpg(self.folder) as gpg:
            form = ["--armor"] if armor else []
            run([*gpg, *form, "--output", path, "--export", self.fingerprint], timeout=60, error=CloudError)
        return path


def signing_key(home: Path) -> SigningKey:
    """The mirror's key in `home/keys`, a new one where there is none that holds for another month."""
    folder = home / "keys"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o700)
    with _gpg(folder) as gpg:
        found = _valid_key(gpg)
        if found is None:
            parameters = ["--passphrase", "", "--quick-generate-key", _KEY_NAME, "rsa3072", "sign", f"{_KEY_DAYS}d"]
            run([*gpg, *parameters], timeout=120, error=CloudError)
            found = _valid_key(gpg)
    if found is None:
        raise CloudError(f"gpg made no key in {folder}", hint=f"remove {folder} and try again")
    return SigningKey(folder, found)


def _valid_key(gpg: Sequence[str]) -> str | None:
    done = run([*gpg, "--with-colons", "--fixed-list-mode", "--list-secret-keys"], timeout=60, check=False)
    best: tuple[int, str] | None = None
    expires = 0
    for row in (line.split(":") for line in done.stdout.splitlines()):
        if row[0] == "sec":
            expires = int(row[6] or 0) if row[1] not in ("e", "r") else 0
        elif row[0] == "fpr" and expires > time.time() + _KEY_LEAST_DAYS * 86400:
            best = max(best or (0, ""), (expires, row[9]))
            expires = 0
    return best[1] if best else None


@contextmanager
def _gpg(folder: Path) -> Iterator[list[str]]:
    """gpg's command on that home. Its agent's socket must have a short path (108 bytes), so the home gets a short name
    for the time; the agent is ended before that name goes."""
    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as name:
        short = Path(name) / "g"
        short.symlink_to(folder.resolve(), target_is_directory=True)
        command = [find_tool("gpg", package="gnupg"), "--homedir", str(short), "--batch", "--yes", "--no-tty"]
        try:
            yield [*command, "--pinentry-mode", "loopback"]
        finally:
            ending = [find_tool("gpgconf", package="gnupg"), "--homedir", str(short), "--kill", "all"]
            run(ending, timeout=30, check=False)


def write_repository(folder: Path, key: SigningKey) -> None:
    """Index and signatures for the .debs in `folder`: a flat repository (`deb URL ./`)."""
    packages = "\n".join(_stanza(deb) for deb in sorted(folder.glob("*.deb"))).encode()
    (folder / "Packages").write_bytes(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages, mtime=0))
    sums = "".join(
        f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n"
        for name, data in (("Packages", packages), ("Packages.gz", (folder / "Packages.gz").read_bytes()))
    )
    release = folder / "Release"
    release.write_text(
        "Origin: gpu-ami\nLabel: gpu-ami mirror\nArchitectures: amd64\n"
        f"Date: {formatdate(SOURCE_DATE_EPOCH, usegmt=True)}\nSHA256:\n{sums}",
        encoding="utf-8",
    )
    key.sign(release, clear=True)
    key.sign(release, armor=True, suffix=".gpg")


def _stanza(deb: Path) -> str:
    control = run([find_tool("dpkg-deb", package="dpkg"), "--field", deb], timeout=30, error=CloudError).stdout
    data = deb.read_bytes()
    sums = f"Size: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    return f"{control.rstrip()}\nFilename: ./{deb.name}\n{sums}"


def sources_digest() -> str:
    """Of everything that goes into the replica packages, this module included."""
    sha = hashlib.sha256(Path(__file__).read_bytes())
    for path in sorted(REPLICAS.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts and REPLICAS / "debian_ami" not in path.parents:
            sha.update(f"{path.relative_to(REPLICAS)}\0{path.stat().st_mode & 0o111:o}\0".encode() + path.read_bytes())
    return sha.hexdigest()
