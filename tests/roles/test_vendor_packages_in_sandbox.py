"""What a vendor's repository may do wrong stops the role before anything is installed, on apt and on dnf.

Each damage is served to a fresh sandbox (marker `sandbox`, `make roles`): the play fails with the repository's address,
what was expected from it and why it was refused; nothing of it is installed, half installed or trusted afterwards.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.build.ansible import Converged, Machine, converge
from gpu_ami.errors import BuildError
from gpu_ami.files import home_dir
from gpu_ami.plan import make_plan
from gpu_ami.process import run
from gpu_ami.progress import Progress
from localregion import region
from localregion.images.rootfs_layers import Base
from localregion.machines.boards import Devices
from localregion.mirror import mirror
from localregion.sandbox import sandbox
from tests.replicas import bad_mirror

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.sandbox


@dataclass(frozen=True)
class Vendor:
    """A planned package, the home whose mirror serves it, and the system that is to install it."""

    home: Path
    base: str
    family: str
    section: dict[str, Any]

    @property
    def repository(self) -> str:
        return str(self.section["repository"]["url"])

    @property
    def key_url(self) -> str:
        return str(self.section["repository"]["key_url"])

    @property
    def package_file(self) -> str:
        name, version = self.section["package"], self.section["package_version"]
        file = f"{name}_{version}_amd64.deb" if self.family == "debian" else f"{name}-{version}.x86_64.rpm"
        return f"{self.repository}{file}"

    @contextmanager
    def entered(self) -> Iterator[Inside]:
        with sandbox.entered(Base.parse(self.base), Devices(), self.home, Progress(mode="quiet")) as found:
            yield Inside(self, found)


@dataclass(frozen=True)
class Inside:
    """A sandbox of its own."""

    vendor: Vendor
    sandbox: sandbox.Sandbox

    def install(self, tmp_path: Path, version: str | None = None) -> Converged:
        """vendor_packages, as a role includes it."""
        section = self.vendor.section
        variables = {
            "gpu_ami_roles": ["vendor_packages"],
            "vendor_packages_repository": section["repository"],
            "vendor_packages_exact": {section["package"]: version or section["package_version"]},
        }
        file = tmp_path / "ansible.json"
        file.write_text(json.dumps(variables))
        box = self.sandbox
        machine = Machine(box.host, box.port, box.user, Path(box.key), slow_python=True)
        return converge(ROOT, file, machine)

    def sh(self, script: str) -> str:
        """Standard output of a script that root runs in the sandbox; it must succeed."""
        options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        where = ["-i", self.sandbox.key, "-p", str(self.sandbox.port), f"{self.sandbox.user}@{self.sandbox.host}"]
        return run(["ssh", *options, *where, f"sudo sh -c '{script}'"], timeout=120).stdout

    def installed(self) -> str:
        """The installed version; "" where none is."""
        name = self.vendor.section["package"]
        if self.vendor.family == "debian":
            shown = self.sh(f"dpkg-query -W -f \\${{db:Status-Status}}/\\${{Version}} {name} 2>/dev/null || true")
            return shown.removeprefix("installed/") if shown.startswith("installed/") else ""
        return self.sh(f"rpm -q --qf %{{VERSION}}-%{{RELEASE}} {name} 2>/dev/null || true") if self._has(name) else ""

    def _has(self, name: str) -> bool:
        return self.sh(f"rpm -q {name} >/dev/null 2>&1 && echo yes || true").strip() == "yes"

    def left(self) -> str:
        """Repository files, and what the package manager calls unfinished."""
        if self.vendor.family == "debian":
            return self.sh("ls /etc/apt/sources.list.d; dpkg --audit").strip()
        return self.sh("ls /etc/yum.repos.d").strip()


SYSTEMS = {"apt": ("debian12", "debian", "debian12-gpu"), "dnf": ("al2023", "redhat", "al2023-any-gpu")}


@pytest.fixture(scope="module")
def vendor(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Vendor:
    """The fabric manager of a recipe: one package, no module to build. Its mirror is our own, to be damaged."""
    base, family, recipe = SYSTEMS[request.param]
    home = tmp_path_factory.mktemp("home")
    (home_dir() / "base").mkdir(parents=True, exist_ok=True)
    (home / "base").symlink_to(home_dir() / "base")  # the trees are large, and nobody writes to them
    plan = make_plan(ROOT / "variables" / "recipes" / f"{recipe}.yml", region.local_place(home))
    mirror.ensure(home, plan=plan.document, only=["fabric_manager"], progress=Progress(mode="quiet"))
    return Vendor(home, base, family, plan["fabric_manager"])


def without_index(vendor: Vendor) -> bad_mirror.Damage:
    """404 for all by which a package manager would know a repository; the key, which lies beside it, is there."""
    names = ("InRelease", "Release", "Release.gpg") if vendor.family == "debian" else ("repodata",)

    def damage(tree: Path) -> None:
        for name in names:
            bad_mirror.missing(f"{vendor.repository}{name}")(tree)

    return damage


Make = Callable[[Vendor, Path], bad_mirror.Damage]
# What it is, how it is made, and what apt and what dnf, or the role before them, says of it.
DAMAGES: dict[str, tuple[Make, dict[str, str]]] = {
    "tampered package": (
        lambda vendor, _: bad_mirror.tampered(vendor.package_file),
        {"apt": "Hash Sum mismatch", "dnf": "Failed to download packages"},
    ),
    "half of the package": (
        lambda vendor, _: bad_mirror.half(vendor.package_file),
        {"apt": "unexpected size", "dnf": "Failed to download packages"},
    ),
    "no such package": (
        lambda vendor, _: bad_mirror.missing(vendor.package_file),
        {"apt": "404", "dnf": "Failed to download packages"},
    ),
    "no such repository": (
        lambda vendor, _: without_index(vendor),
        {"apt": "does not have a Release file", "dnf": "Cannot download repomd.xml"},
    ),
    "no such key": (lambda vendor, _: bad_mirror.missing(vendor.key_url), {"apt": "404", "dnf": "404"}),
    "another key": (
        lambda vendor, other: bad_mirror.another_key(vendor.key_url, other),
        {"apt": "expected key", "dnf": "expected key"},
    ),
    "expired key": (
        lambda vendor, _: bad_mirror.expired_key(vendor.key_url, vendor.home),
        {"apt": "has expired", "dnf": "has expired"},
    ),
    "unsigned index": (
        lambda vendor, _: bad_mirror.unsigned(vendor.repository),
        {"apt": "is not signed", "dnf": "GPG"},
    ),
    "index signed by another": (
        lambda vendor, other: bad_mirror.signed_by_another(vendor.repository, other),
        {"apt": "NO_PUBKEY", "dnf": "GPG"},
    ),
    "index changed after signing": (
        lambda vendor, _: bad_mirror.tampered_index(vendor.repository),
        {"apt": "BADSIG", "dnf": "GPG"},
    ),
    "package signed by another": (
        lambda vendor, other: bad_mirror.packages_signed_by_another(vendor.repository, other, vendor.home),
        {"dnf": "GPG"},
    ),
}


def said(error: BuildError) -> str:
    return "\n".join([error.message, *error.details])


# A .deb has no signature of its own: the index's is all there is.
CASES = [(manager, name) for manager in SYSTEMS for name, (_, reasons) in DAMAGES.items() if manager in reasons]
BOTH = pytest.mark.parametrize("vendor", SYSTEMS, indirect=True, scope="module")


@pytest.mark.parametrize(("vendor", "name"), CASES, indirect=["vendor"], scope="module")
def test_damage_is_refused(vendor: Vendor, name: str, tmp_path: Path) -> None:
    make, reasons = DAMAGES[name]
    manager = "apt" if vendor.family == "debian" else "dnf"
    with bad_mirror.damaged(vendor.home, make(vendor, tmp_path / "other")), vendor.entered() as inside:
        before = inside.left()
        with pytest.raises(BuildError) as refused:
            inside.install(tmp_path)
        text = said(refused.value)
        expected = f"{vendor.section['package']} {vendor.section['package_version']}"
        assert f"{vendor.repository}: expected {expected}, signed with key" in text
        assert vendor.section["repository"]["key_fingerprint"] in text
        assert reasons[manager] in text, text
        assert "No package is left partly installed." in text
        assert inside.installed() == ""
        assert inside.left() == before


@BOTH
def test_after_a_refusal_the_good_repository_is_taken(vendor: Vendor, tmp_path: Path) -> None:
    """The failure leaves nothing behind that would have to be cleared away by hand; a third time changes nothing."""
    with vendor.entered() as inside:
        with bad_mirror.damaged(vendor.home, bad_mirror.half(vendor.package_file)), pytest.raises(BuildError):
            inside.install(tmp_path)
        inside.install(tmp_path)
        assert inside.installed() == vendor.section["package_version"]
        assert inside.install(tmp_path).changed == ()


@BOTH
def test_another_planned_version_replaces_a_held_one(vendor: Vendor, tmp_path: Path) -> None:
    """A hold is for upgrades of the system, not for the next plan."""
    version = vendor.section["package_version"]
    other = "550.144.03" if version.startswith("550") else "580.159.03"
    with vendor.entered() as inside:
        inside.install(tmp_path)
        inside.install(tmp_path, f"{other}{version[version.index('-') :]}")
        assert inside.installed().startswith(other)
        held = "apt-mark showhold" if vendor.family == "debian" else "cat /etc/dnf/plugins/versionlock.list"
        assert inside.sh(held).count(vendor.section["package"]) == 1
