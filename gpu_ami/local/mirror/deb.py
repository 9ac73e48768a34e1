"""Debian packages made of replicas. The same sources give the same bytes: fixed modes, owners and times."""

from __future__ import annotations

import tempfile
from pathlib import Path

from gpu_ami.errors import CloudError
from gpu_ami.local.mirror import staging
from gpu_ami.local.mirror.table import SOURCE_DATE_EPOCH, Package
from gpu_ami.process import find_tool, run

# As of real packages, those of a component have one maintainer, and those of the system others.
_MAINTAINER = "gpu-ami replica of {family} <gpu-ami@localhost>"


def build(package: Package, into: Path) -> Path:
    """Builds one package with dpkg-deb; the .deb's path."""
    deb = into / package.file_name
    with tempfile.TemporaryDirectory(dir=into, prefix="deb-") as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        staging.stage(package.row, package.values, tree)
        _write_control(package, tree)
        staging.normalise(tree)
        dpkg_deb = find_tool("dpkg-deb", package="dpkg")
        environment = {"SOURCE_DATE_EPOCH": str(SOURCE_DATE_EPOCH)}
        run(
            [dpkg_deb, "--root-owner-group", "-Zgzip", "--build", tree, deb],
            timeout=120,
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
    return run([dpkg_deb, "--field", deb, field], timeout=30, error=CloudError).stdout.strip()
