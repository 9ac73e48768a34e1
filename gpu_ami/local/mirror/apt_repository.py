"""Signed apt repositories: flat (`deb URL ./`) and with suites and components (`deb URL SUITE COMPONENT…`)."""

from __future__ import annotations

import gzip
import hashlib
import os
from collections.abc import Mapping, Sequence
from email.utils import formatdate
from pathlib import Path

from gpu_ami.errors import CloudError
from gpu_ami.local.mirror.signing import Gpg
from gpu_ami.local.mirror.table import SOURCE_DATE_EPOCH
from gpu_ami.process import find_tool, run

_ARCHITECTURES = ("amd64", "arm64")


def write_flat(folder: Path, debs: Mapping[str, Path], gpg: Gpg) -> None:
    """`folder` gets the packages (file name → where it is kept) and their index."""
    packages = _index(folder, debs, "./")
    _write_index(folder, packages)
    _write_release(folder, ["Packages", "Packages.gz"], {}, gpg)


def write_suite(base: Path, suite: str, components: Sequence[str], debs: Mapping[str, Path], gpg: Gpg) -> None:
    """`base/dists/suite/…`, with the packages in the first component's pool; the others are empty."""
    dist = base / "dists" / suite
    names = []
    for number, component in enumerate(components):
        pool = f"pool/{suite}/{component}/"
        packages = _index(base / pool, debs, pool) if number == 0 else []
        for architecture in _ARCHITECTURES:
            folder = dist / component / f"binary-{architecture}"
            folder.mkdir(parents=True, exist_ok=True)
            _write_index(folder, [text for text in packages if f"\nArchitecture: {architecture}\n" in text])
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
    control = run([find_tool("dpkg-deb", package="dpkg"), "--field", deb], timeout=30, error=CloudError).stdout
    data = deb.read_bytes()
    sums = f"Size: {len(data)}\nSHA256: {hashlib.sha256(data).hexdigest()}\n"
    return f"{control.rstrip()}\nFilename: {name}\n{sums}"


def _write_index(folder: Path, stanzas: Sequence[str]) -> None:
    packages = "\n".join(stanzas).encode()
    (folder / "Packages").write_bytes(packages)
    (folder / "Packages.gz").write_bytes(gzip.compress(packages, mtime=0))


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
