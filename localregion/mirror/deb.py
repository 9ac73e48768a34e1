"""Debian packages made of replicas. The same sources give the same bytes: fixed modes, owners and times.

Signed apt repositories: flat (`deb URL ./`) and with suites and components (`deb URL SUITE COMPONENT…`).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from email.utils import formatdate
from pathlib import Path

from gpu_ami.errors import CloudError
from gpu_ami.process import find_tool, run
from localregion.mirror import staging
from localregion.mirror.signing import Gpg
from localregion.mirror.table import SOURCE_DATE_EPOCH, Package

# As of real packages, those of a component have one maintainer, and those of the system others.
_MAINTAINER = "gpu-ami replica of {family} <gpu-ami@localhost>"


def build(package: Package, into: Path, downloads: Path | None = None) -> Path:
    """Builds one package with dpkg-deb; the .deb's path."""
    deb = into / package.file_name
    with tempfile.TemporaryDirectory(dir=into, prefix="deb-") as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        staging.stage(package.row, package.values, tree, package.architecture, downloads)
        _write_control(package, tree)
        staging.normalise(tree)
        dpkg_deb = find_tool("dpkg-deb", package="dpkg")
        environment = {"SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH)}
        run(
            [dpkg_deb, "--root-owner-group", "-Zgzip", "--build", tree, deb],
            timeout=staging.PACKING_SECONDS,
            env=environment,
            error=CloudError,
        )
    return deb


def _write_control(package: Package, tree: Path) -> None:
    files = [path for path in tree.rglob("*") if path.is_file() and not path.is_symlink()]
    debian = tree / "DEBIAN"
    debian.mkdir()
    summary, lines = staging.description(package)
    fields = {
        "Package": package.name,
        "Version": package.full_version,
        "Architecture": package.machine,
        "Maintainer": _MAINTAINER.format(family=package.row.family),
        "Installed-Size": str(sum(path.stat().st_size for path in files) // 1024 + 1),
        "Depends": ", ".join(staging.relations(package, "depends")),
        "Provides": ", ".join(staging.relations(package, "provides")),
        "Conflicts": ", ".join(staging.relations(package, "conflicts")),
        "Section": "non-free/kernel" if package.name.endswith("-dkms") else "non-free/utils",
        "Priority": "optional",
        "Gpu-Ami-Replica": "yes",
        "Description": "\n".join([summary, *(f" {line}" for line in lines)]),
    }
    text = "".join(f"{key}: {value}\n" for key, value in fields.items() if value)
    (debian / "control").write_text(text, encoding="utf-8")
    conffiles = [f"/{package.fill(path)}\n" for path in package.row.entry.get("conffiles", ())]
    if conffiles:
        (debian / "conffiles").write_text("".join(conffiles), encoding="utf-8")
    if package.row.entry.get("libraries"):
        (debian / "triggers").write_text("activate-noawait ldconfig\n", encoding="utf-8")
    for script, content in staging.scripts(package).items():
        target = debian / script
        target.write_text(content, encoding="utf-8")
        target.chmod(0o755)


def control_field(deb: Path, field: str) -> str:
    """One field of a .deb's control file; empty if it has none. CloudError if that is no .deb."""
    dpkg_deb = find_tool("dpkg-deb", package="dpkg")
    return run([dpkg_deb, "--field", deb, field], timeout=300, error=CloudError).stdout.strip()


_ARCHITECTURES = ("amd64", "arm64")
_LARGE_INDEX = 1 << 20


def write_flat(folder: Path, debs: Mapping[str, Path], gpg: Gpg) -> None:
    """`folder` gets the packages (file name → where it is kept) and their index."""
    packages = _index(folder, debs, "./")
    _write_index(folder, packages)
    _write_release(folder, ["Packages", "Packages.gz"], {}, gpg)


def write_suite(
    base: Path,
    suite: str,
    components: Sequence[str],
    debs: Mapping[str, Path],
    gpg: Gpg,
    *,
    further: Iterable[str] = (),
) -> None:
    """`base/dists/suite/…`, with the packages in the first component's pool; the others are empty.

    further: paragraphs of packages that the first component's index lists, too.
    """
    dist = base / "dists" / suite
    names = []
    for number, component in enumerate(components):
        pool = f"pool/{suite}/{component}/"
        packages = [*_index(base / pool, debs, pool), *further] if number == 0 else []
        for architecture in _ARCHITECTURES:
            folder = dist / component / f"binary-{architecture}"
            folder.mkdir(parents=True, exist_ok=True)
            fields = (f"\nArchitecture: {architecture}\n", "\nArchitecture: all\n")
            _write_index(folder, [text for text in packages if fields[0] in text or fields[1] in text])
            names += [f"{component}/binary-{architecture}/{name}" for name in ("Packages", "Packages.gz")]
    _write_release(dist, names, {"Suite": suite, "Codename": suite, "Components": " ".join(components)}, gpg)


def _index(folder: Path, debs: Mapping[str, Path], prefix: str) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    stanzas = []
    for name, kept in sorted(debs.items()):
        if not (folder / name).exists():
            os.link(kept, folder / name)
        stanzas.append(_stanza(kept, f"{prefix}{name}"))
    return stanzas


def _stanza(deb: Path, name: str) -> str:
    control = run([find_tool("dpkg-deb", package="dpkg"), "--field", deb], timeout=300, error=CloudError).stdout
    data = deb.read_bytes()
    sums = f"Size: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    return f"{control.rstrip()}\nFilename: {name}\n{sums}"


def _write_index(folder: Path, stanzas: Sequence[str]) -> None:
    packages = "\n".join(stanzas).encode()
    (folder / "Packages").write_bytes(packages)
    level = 1 if len(packages) > _LARGE_INDEX else 9  # of Debian's archive: seconds less
    (folder / "Packages.gz").write_bytes(gzip.compress(packages, level, mtime=0))


def _write_release(folder: Path, names: Sequence[str], more: Mapping[str, str], gpg: Gpg) -> None:
    contents = {name: (folder / name).read_bytes() for name in names}
    sums = "".join(f" {hashlib.sha256(data).hexdigest()} {len(data)} {name}\n" for name, data in contents.items())
    fields = {"Origin": "gpu-ami", "Label": "gpu-ami mirror", **more, "Architectures": " ".join(_ARCHITECTURES)}
    fields["Date"] = formatdate(SOURCE_DATE_EPOCH, usegmt=True)
    text = "".join(f"{key}: {value}\n" for key, value in fields.items())
    release = folder / "Release"
    release.write_text(f"{text}SHA256:\n{sums}", encoding="utf-8")
    gpg.sign(release, folder / "InRelease", clear=True)
    gpg.sign(release, folder / "Release.gpg", armor=True)
