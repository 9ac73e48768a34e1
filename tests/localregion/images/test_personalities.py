"""Personalities: their packages and programs are those of the vendors' base AMIs (variables/facts/base_amis.yml)."""

from __future__ import annotations

import os
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_ami.files import home_dir
from gpu_ami.progress import Progress
from gpu_ami.recipes import load_facts
from localregion.debian import RELEASES
from localregion.images import base_image, rootfs_layers
from localregion.images.rootfs_layers import Base, Tree
from localregion.mirror import find_row, system_packages

REPLICAS = Path(rootfs_layers.__file__).parents[1] / "replicas"
AMIS = load_facts().base_amis
# What a personality has beyond the AMI: no file of it is in PATH, or Debian's own scripts need it.
# Those of a kernel are named without its stream: kernel6.12-devel as kernel-devel, linux-aws-lts-24.04 as linux-aws.
BEYOND = {
    "kernel-devel": "the mirror does not know the kernel's release, which is Debian's",
    "kernel-devel-release": "as kernel-devel",
    "kernel-headers": "as kernel-devel",
    "kernel-modules-extra": "Debian's kernel package has all modules",
    "kernel-modules-extra-release": "as kernel-modules-extra",
    "kernel-release": "the AMI's kernel, under the name of its release",
    "linux-modules-extra-aws": "Debian's kernel package has all modules",
    "linux-modules-extra-release": "as linux-modules-extra-aws",
    "linux-image-release": "the AMI's kernel, under the name of its release",
    "linux-aws-headers-release": "as linux-headers-aws",
}
# No role installs them.
_NOT_ASKED_FOR = {"-", "dpkg-dev"}
KINDS = {"al2023": "rpm", "ubuntu2404": "deb", "ubuntu2204": "deb"}
FAMILIES = [("eks", "1.33"), ("ecs", ""), ("parallelcluster", "3.16.3")]
VARIANTS = ("eks_nvidia",)


def names(path: Path) -> list[str]:
    lines = base_image.listed(path) if path.exists() else []
    return [line.split()[0].partition("=")[0] for line in lines]


def kernels(system: str) -> Path:
    """Lists of packages, one for each kernel; releases of one distribution share the rest of their folder."""
    folder = rootfs_layers.system_folder(system)
    return next(path for path in (folder / "releases" / system / "kernels", folder / "kernels") if path.is_dir())


def kernel_names(system: str, package: str) -> list[str]:
    """Packages of an AMI with that kernel, as the personality has them: {release} is the kernel's release."""
    found = names(kernels(system) / f"{package}.txt")
    return [f"{name.removesuffix('release')}{{release}}" if name.endswith("-release") else name for name in found]


def default_kernel(system: str) -> list[str]:
    """Those of the system's own AMI, as the lists write them."""
    return names(kernels(system) / f"{Base(system).kernel_package}.txt")


def packages_of(family: str, system: str = "al2023") -> set[str]:
    """All packages of a node family's AMI."""
    row = AMIS["node_families"][family][system]
    return {*AMIS["systems"][row["base"]]["packages"], *row["adds"]} - set(row.get("removes", ()))


def test_amazon_linux_has_no_package_that_the_ami_lacks() -> None:
    listed = [*names(REPLICAS / "al2023_ami" / "rpms.txt"), *default_kernel("al2023")]
    extra = set(listed) - set(AMIS["systems"]["al2023"]["packages"])
    assert extra == {name for name in BEYOND if name.startswith("kernel-")}


@pytest.mark.parametrize("family", [*(family for family, _ in FAMILIES), *VARIANTS])
def test_a_family_adds_what_its_ami_adds(family: str) -> None:
    folder = REPLICAS / f"{family}_ami"
    added = names(folder / "rpms.txt") + names(folder / "provided_rpm.txt")
    assert set(added) <= packages_of(family), f"{family}: not in the AMI"


def test_the_minimal_ami_lacks_what_is_hidden_on_it() -> None:
    """perl is there all the same: Debian's own scripts need it."""
    listed = {*names(REPLICAS / "al2023_ami" / "rpms.txt"), *default_kernel("al2023")} - set(BEYOND)
    lacking = listed - set(AMIS["systems"]["al2023_minimal"]["packages"])
    assert lacking == {"perl-interpreter", *names(REPLICAS / "al2023_ami" / "minimal.txt")}


@pytest.mark.parametrize("system", ["ubuntu2404", "ubuntu2204"])
def test_ubuntu_has_no_package_that_the_ami_lacks(system: str) -> None:
    row = AMIS["systems"][system]
    listed = default_kernel(system)
    assert set(listed) - set(row["packages"]) - set(BEYOND) == set()
    absent = {line.split()[0] for line in base_image.listed(REPLICAS / "ubuntu_ami" / "absent.txt")}
    debian = set(base_image.listed(REPLICAS / "debian_ami" / "packages.txt"))
    assert absent == (debian | {"dpkg-dev"}) & set(row["lacks"])  # dkms brings dpkg-dev


@pytest.mark.parametrize(
    ("system", "series"),
    [(system, series) for system in rootfs_layers.SYSTEMS for series in rootfs_layers.kernel_series(system)],
)
def test_every_kernel_of_the_facts_has_its_packages(system: str, series: str) -> None:
    """A row of the facts without packages in the personality would fail in the roles of each image that plans it."""
    row = load_facts().operating_systems[system]["kernel_packages"]
    row = row.get(series) or row["default"]
    assert Base(system, kernel=series).kernel_package == row["package"].replace("{deb}", "amd64")
    if system in RELEASES:  # Debian itself, with its own archive
        return
    wanted = {row["package"], row["headers"], *row["hold"]} - {"linux-headers-{release}"}
    if series != "6.17":  # of the package that brings 7.0 today
        wanted |= {row[key] for key in ("modules_extra",) if key in row}
    assert wanted <= set(kernel_names(system, row["package"]))


@pytest.mark.parametrize("system", KINDS)
def test_kernels_differ_in_their_names_alone(system: str) -> None:
    files = sorted(kernels(system).iterdir())
    series = rootfs_layers.kernel_series(system)
    assert {path.name.removesuffix(".txt") for path in files} == {
        rootfs_layers.kernel_package(system, one) for one in series
    }
    rows = [[line.split() for line in base_image.listed(path)] for path in files]
    contents = [[row[1:] for row in one if "modules-extra" not in row[0]] for one in rows]  # which not all series have
    assert all(content == contents[0] for content in contents)


def test_what_is_absent_can_be_installed() -> None:
    """Every absent package of a system has a replica that brings its programs, from the system's own archive."""
    for system, kind in KINDS.items():
        for line in base_image.listed(rootfs_layers.system_folder(system) / "absent.txt"):
            package, *programs = line.split()
            if package in _NOT_ASKED_FOR:
                continue
            row = find_row("packages", package, kind=kind, asked_by="absent.txt")
            brought = {link.rpartition("/")[2] for link in row.entry["links"]}
            assert {program.rpartition("/")[2] for program in programs} == brought, package


def test_every_plan_finds_what_is_absent() -> None:
    for system, kind in KINDS.items():
        offered = {item.partition("=")[0] for item in system_packages("system_tools", kind)}
        assert set(names(rootfs_layers.system_folder(system) / "absent.txt")) - _NOT_ASKED_FOR <= offered


def absent_programs(base: Base) -> Iterator[str]:
    """Names of programs that no personality of that kind has in PATH."""
    folder = rootfs_layers.system_folder(base.system)
    lists = [folder / "absent.txt"] + ([folder / "minimal.txt"] if base.family in ("eks", "ecs") else [])
    provided = set(names(REPLICAS / f"{base.family}_ami" / f"provided_{KINDS[base.system]}.txt"))
    for line in (line for path in lists for line in base_image.listed(path)):
        package, *programs = line.split()
        yield from (program for program in programs if package not in provided)


@pytest.fixture(scope="module")
def images() -> Path:
    """The home of whoever runs this: a test's own has no base image."""
    return home_dir()


def there(tree: Tree, path: str) -> bool:
    """Whether the stacked layers have that path; a device 0:0 is overlayfs's sign that it was removed."""
    for layer in tree.layers:
        if os.path.lexists(layer / path):
            state = os.lstat(layer / path)
            return not (stat.S_ISCHR(state.st_mode) and state.st_rdev == 0)
    return False


@pytest.mark.sandbox
@pytest.mark.parametrize("name", ["al2023", "al2023+eks-1.33", "al2023+ecs", "ubuntu2404", "ubuntu2204"])
def test_programs_of_absent_packages_are_not_in_the_tree(images: Path, name: str) -> None:
    base = Base.parse(name)
    tree = rootfs_layers.ensure(base, images, Progress("plain"))
    absent = [program for program in absent_programs(base) if "/" not in program]
    paths = [f"usr/{folder}/{program}" for program in absent for folder in ("bin", "sbin")]
    assert [path for path in paths if there(tree, path)] == []
    assert all(there(tree, f"usr/bin/{program}") for program in ("python3", "sudo", "curl", "tar", "gpg"))
    gpgv = there(tree, "usr/bin/gpgv")
    assert gpgv == (name not in ("al2023", "al2023+eks-1.33"))


@pytest.mark.sandbox
@pytest.mark.parametrize("name", ["ubuntu2404", "ubuntu2404+parallelcluster-3.16.3", "ubuntu2204"])
def test_packages_of_ubuntu_have_what_they_depend_on(images: Path, name: str) -> None:
    """Without packages in between, apt refuses every installation."""
    tree = rootfs_layers.ensure(Base.parse(name), images, Progress("plain"))
    status = next(layer / "var/lib/dpkg/status" for layer in tree.layers if (layer / "var/lib/dpkg/status").exists())
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "lists/partial").mkdir(parents=True)
        places = {"Dir::State": folder, "Dir::State::status": status, "Dir::Cache": folder}
        options = [word for key, value in places.items() for word in ("-o", f"{key}={value}")]
        done = subprocess.run(["apt-get", *options, "check"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.sandbox
@pytest.mark.parametrize(("series", "has"), [("", True), ("6.8", False)])
def test_kernel_7_0_of_ubuntu_has_nova(images: Path, series: str, has: bool) -> None:
    """With the module, an image whose roles do not keep it from loading is found."""
    tree = rootfs_layers.ensure(Base("ubuntu2404", kernel=series), images, Progress("plain"))
    gpu = f"lib/modules/{tree.kernel()}/kernel/drivers/gpu"
    assert [there(tree, f"usr/{gpu}/{name}.ko") for name in ("nova-core/nova_core", "drm/nova/nova_drm")] == [has, has]
    index = next(
        path for layer in tree.layers if (path := layer / f"usr/lib/modules/{tree.kernel()}/modules.alias").exists()
    )
    assert ("pci:v000010DEd*sv*sd*bc03sc02i00* nova_core" in index.read_text()) == has
    owned = tree.layers[0] / f"var/lib/dpkg/info/linux-modules-{tree.kernel()}.list"
    assert (f"/{gpu}/nova-core/nova_core.ko" in owned.read_text().splitlines()) == has
