"""What an installer or a git repository may do wrong stops EFA, the plugin and GDRCopy, and leaves nothing of them.

Each damage is served to a fresh sandbox (marker `sandbox`, `make roles`): the message names the address and what was
expected, and neither packages nor files of it are there afterwards.
"""

from __future__ import annotations

import json
import shlex
import tarfile
import tempfile
from collections.abc import Callable, Iterator
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
from localregion.mirror import mirror, signing
from localregion.sandbox import sandbox
from tests.replicas import bad_mirror

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = {"apt": ("debian12", "debian12-gpu"), "dnf": ("al2023", "al2023-graphics")}
# An installer without plugin, so that the plugin's own role has something to do, and a driver that goes with it.
SECTIONS = {
    "nvidia_driver.version": "570.211.01",
    "cuda.version": "12.8",
    "nccl.version": "newest",
    "efa.version": "1.36.0",
    "ofi_nccl.version": "1.16.3",
    "gdrcopy.version": "2.4.4",
    "nccl_tests.version": "2.18.3",
}
COMPONENTS = ("cuda", "nccl", "efa", "ofi_nccl", "gdrcopy", "nccl_tests")
RECORD = "/opt/amazon/efa_installed_packages"

pytestmark = pytest.mark.sandbox


@dataclass(frozen=True)
class Given:
    """A plan with all components, and a home whose mirror serves them."""

    home: Path
    base: str
    plan: dict[str, Any]

    def converge(self, inside: sandbox.Sandbox, tmp_path: Path, *roles: str) -> Converged:
        variables: dict[str, Any] = {"gpu_ami_roles": list(roles)}
        for role in roles:
            variables |= {f"{role}_{key}": value for key, value in self.plan[role].items()}
        file = tmp_path / "ansible.json"
        file.write_text(json.dumps(variables))
        return converge(ROOT, file, Machine(inside.host, inside.port, inside.user, Path(inside.key), slow_python=True))

    def entered(self) -> Any:
        return sandbox.entered(Base.parse(self.base), Devices(gpu=1, efa=2), self.home, Progress(mode="quiet"))


def sh(inside: sandbox.Sandbox, script: str) -> str:
    """Standard output of a script that root runs in the sandbox; it must succeed."""
    options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
    where = ["-i", inside.key, "-p", str(inside.port), f"{inside.user}@{inside.host}"]
    return run(["ssh", *options, *where, f"sudo sh -c {shlex.quote(script)}"], timeout=120).stdout.strip()


@pytest.fixture(scope="module", params=SYSTEMS)
def given(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Given]:
    base, recipe = SYSTEMS[request.param]
    home = tmp_path_factory.mktemp("home")
    (home_dir() / "base").mkdir(parents=True, exist_ok=True)
    (home / "base").symlink_to(home_dir() / "base")  # the trees are large, and nobody writes to them
    overrides = [f"{key}={value}" for key, value in SECTIONS.items()]
    plan = make_plan(ROOT / "variables" / "recipes" / f"{recipe}.yml", region.local_place(home), overrides)
    mirror.ensure(home, plan=plan.document, only=list(COMPONENTS), progress=Progress(mode="quiet"))
    yield Given(home, base, {name: plan[name] for name in COMPONENTS})


def stops_half_way(url: str, home: Path) -> bad_mirror.Damage:
    """A rightly signed installer that fails after it has installed everything, before it writes its record."""

    def damage(tree: Path) -> None:
        file = tree / bad_mirror.below(url)
        with tempfile.TemporaryDirectory() as name:
            with tarfile.open(file) as archive:
                archive.extractall(name, filter="data")
            script = Path(name) / "aws-efa-installer" / "efa_installer.sh"
            text = script.read_text()
            assert text.count("    mkdir -p") == 1
            script.write_text(text.replace("    mkdir -p", '    die "stopped half-way"\n    mkdir -p'))
            with tarfile.open(file, "w:gz") as archive:
                archive.add(Path(name) / "aws-efa-installer", "aws-efa-installer")
        file.with_name(f"{file.name}.sig").unlink()
        signing.signing_key(home).sign(file)

    return damage


Make = Callable[[Given, Path], bad_mirror.Damage]
INSTALLERS: dict[str, tuple[Make, str]] = {
    "tampered": (lambda given, _: bad_mirror.tampered(given.plan["efa"]["url"]), "BAD signature"),
    "half": (lambda given, _: bad_mirror.half(given.plan["efa"]["url"]), "BAD signature"),
    "missing": (lambda given, _: bad_mirror.missing(given.plan["efa"]["url"]), "404"),
    "unsigned": (lambda given, _: bad_mirror.unsigned(given.plan["efa"]["url"]), "404"),
    "signed by another": (
        lambda given, other: bad_mirror.signed_by_another(given.plan["efa"]["url"], other),
        "No public key",
    ),
    "another key": (lambda given, other: bad_mirror.another_key(given.plan["efa"]["key_url"], other), "expected key"),
    "expired key": (
        lambda given, _: bad_mirror.expired_key(given.plan["efa"]["key_url"], given.home),
        "has expired",
    ),
    "stops half-way": (
        lambda given, _: stops_half_way(given.plan["efa"]["url"], given.home),
        "stopped half-way",
    ),
}


@pytest.mark.parametrize("name", INSTALLERS)
def test_damaged_installer_leaves_nothing(given: Given, name: str, tmp_path: Path) -> None:
    make, why = INSTALLERS[name]
    efa = given.plan["efa"]
    packages = "dpkg -l | sed 1,5d | grep ^ii" if given.base.startswith("debian") else "rpm -qa | sort"
    with bad_mirror.damaged(given.home, make(given, tmp_path / "other")), given.entered() as inside:
        before = sh(inside, packages)
        with pytest.raises(BuildError) as refused:
            given.converge(inside, tmp_path, "efa")
        text = "\n".join([refused.value.message, *refused.value.details])
        assert f"{efa['url']}: expected the EFA installer {efa['version']}, signed ({efa['signature_url']})" in text
        assert f"with key {efa['key_fingerprint']}" in text
        assert why in text, text
        assert "No package is left partly installed." in text
        assert sh(inside, packages) == before
        assert sh(inside, f"ls -d {RECORD} /var/tmp/aws-efa-installer /lib/modules/*/updates/dkms/efa* || true") == ""


@pytest.mark.parametrize("role", ["ofi_nccl", "gdrcopy"])
@pytest.mark.parametrize("damage", ["missing", "moved"])
def test_damaged_repository_leaves_nothing(given: Given, role: str, damage: str, tmp_path: Path) -> None:
    section = given.plan[role]
    refs = f"{section['url']}/info/refs"

    def moved(tree: Path) -> None:
        """The tag is another commit: the one of some other repository, whose objects are there too."""
        other = "ofi_nccl" if role == "gdrcopy" else "gdrcopy"
        foreign = tree / bad_mirror.below(given.plan[other]["url"])
        here = tree / bad_mirror.below(section["url"])
        run(["cp", "-a", f"{foreign}/objects/.", f"{here}/objects"], timeout=60)
        for file in (here / "info" / "refs", here / "refs" / "tags" / section["tag"]):
            file.write_text(file.read_text().replace(section["commit"], given.plan[other]["commit"]))

    with given.entered() as inside:
        if role == "ofi_nccl":
            given.converge(inside, tmp_path, "efa")
        harm = bad_mirror.missing(refs) if damage == "missing" else moved
        with bad_mirror.damaged(given.home, harm), pytest.raises(BuildError) as refused:
            given.converge(inside, tmp_path, role)
        text = "\n".join([refused.value.message, *refused.value.details])
        assert f"{section['url']}: expected " in text
        assert f"tag {section['tag']}, commit {section['commit']}" in text
        assert ("not found" if damage == "missing" else f"tag {section['tag']}: expected commit") in text, text
        assert "No file of it is left." in text
        kept = "/opt/amazon/ofi-nccl /usr/src/gdrdrv-* /usr/local/lib/libgdrapi* /var/tmp/gdrcopy /var/tmp/aws-ofi-nccl"
        assert sh(inside, f"ls -d {kept} 2>/dev/null || true") == ""


def test_components_are_built_and_stay_as_they_are(given: Given, tmp_path: Path) -> None:
    with given.entered() as inside:
        given.converge(inside, tmp_path, *COMPONENTS)
        assert given.converge(inside, tmp_path, *COMPONENTS).changed == ()
        found = sh(inside, "ldconfig -p")
        assert sh(inside, "/opt/nccl-tests/build/all_reduce_perf 2>&1 || true").startswith(
            "gpu-ami replica of nccl-tests"
        )
        for library in ("/opt/amazon/ofi-nccl/lib/libnccl-net.so", "/usr/local/lib/libgdrapi.so.2"):
            assert library in found
