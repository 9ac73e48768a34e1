"""A base image's tree as layers: sandboxes mount them, disks of emulated distributions are made of them.

A tree is a stack of layers, the topmost first, as overlayfs takes them: Debian's own, on it an operating system's
(`replicas/<os>_ami`), on that a node family's (`replicas/<family>_ami`). Each layer is a folder in `home/base/trees`,
named after the digest of what makes it, and never written to afterwards.
"""

from __future__ import annotations

import functools
import hashlib
import os
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.files import home_dir
from gpu_ami.process import find_tool, run
from gpu_ami.progress import Progress
from localregion import kubernetes
from localregion.architectures import ARCHITECTURES, DEFAULT, require_programs
from localregion.debian import BOOKWORM, RELEASES, Release, release_of
from localregion.host import archive_sources, proxies
from localregion.images import base_image
from localregion.images.base_ami_packages import Provided, family_folder, of_family, of_variant

REPLICAS = Path(__file__).parents[1] / "replicas"
BUILD_LAYER = REPLICAS / "build_layer.sh"
_HIDE = REPLICAS / "hide.sh"
_KEPT_SECONDS = 7 * 24 * 3600.0
_LAYER_SECONDS = 900.0
_EMULATED_LAYER_SECONDS = 10800.0
# What of the host's environment a program in a tree would take for its own: folders that it does not have.
_OF_HOST = ("TMPDIR", "TMP", "TEMP", "PYTHONPATH", "PYTHONHOME", "PERL5LIB", "LD_PRELOAD", "LD_LIBRARY_PATH")
# Capabilities that affect the host's kernel, on which the tree's programs run: modules, log, clock, power.
_DROPPED = ("sys_module", "sys_boot", "sys_time", "sys_rawio", "syslog", "mac_admin", "mac_override")
SYSTEMS = (*RELEASES, "ubuntu2404", "ubuntu2204", "al2023")
# Systems that share a folder of replicas; its script gets the system's name.
_SHARED = {"ubuntu2404": "ubuntu", "ubuntu2204": "ubuntu"}


@dataclass(frozen=True)
class Base:
    """What a base image presents: an operating system, and a node family of a version ("" is a plain instance).

    variant: of the node family's AMI ("": the one that it has without a name).
    kernel: series of the kernel whose packages it has, where that is not the one of the system's or family's own AMI.
    """

    system: str
    family: str = ""
    version: str = ""
    kernel: str = ""
    architecture: str = DEFAULT
    variant: str = ""

    @staticmethod
    def parse(text: str) -> Base:
        """From `al2023`, `al2023@6.12`, `al2023-arm64`, `al2023+eks-1.33` or `al2023+eks-1.35-nvidia`.

        UsageError: no such base image.
        """
        system, _, node = text.partition("+")
        system, _, kernel = system.partition("@")
        system, _, architecture = system.partition("-")
        architecture = architecture or DEFAULT
        family, version, variant, *_ = [*node.split("-", 2), "", ""]
        known = available()
        unknown = system not in SYSTEMS or architecture not in ARCHITECTURES
        no_variant = variant and (system != "al2023" or variant not in variants(family))
        if unknown or (family and (system, family) not in known) or no_variant:
            names = [*SYSTEMS, *("+".join(pair) for pair in known)]
            raise UsageError(f"no base image {text!r}", hint=f"base images: {', '.join(names)}; of arm64: SYSTEM-arm64")
        if kernel and kernel not in kernel_series(system):
            raise UsageError(f"no base image {text!r}", hint=f"kernels of {system}: {', '.join(kernel_series(system))}")
        return Base(system, family, version, kernel, architecture, variant)

    @property
    def name(self) -> str:
        system = self.system if self.architecture == DEFAULT else f"{self.system}-{self.architecture}"
        system = "@".join(filter(None, [system, self.kernel]))
        return "+".join(filter(None, [system, "-".join(filter(None, [self.family, self.version, self.variant]))]))

    @property
    def release(self) -> Release:
        """The release of Debian that it is made of."""
        return release_of(self.system)

    @property
    def kernel_package(self) -> str:
        """Name of the package of its kernel."""
        from gpu_ami.recipes import load_facts
        from gpu_ami.recipes.rules import kernel_of_base_ami

        family = load_facts().node_families[self.family or "ec2"]
        of_family = kernel_of_base_ami(family, self.version, self.system, self.architecture)
        own = of_family or kernel_series(self.system)[0]
        return kernel_package(self.system, self.kernel or own, self.architecture)

    @property
    def layers(self) -> tuple[Layer, ...]:
        """What lies on Debian's tree, the lowest first."""
        system = system_folder(self.system)
        packages = system / "packages.txt"
        arguments = (self.kernel_package, *[self.system] * (self.system in _SHARED))
        layers = [
            Layer(
                f"{_SHARED.get(self.system, self.system)}-packages",
                tuple(base_image.listed(packages)) if packages.exists() else (),
            ),
            Layer(self.system) if self.system in RELEASES else Layer(self.system, (), system, arguments),
        ]
        if self.family:
            source = REPLICAS / family_folder(self.system, self.family)
            provided = of_family(self.system, self.family, self.version, self.architecture)
            unpacked = source / "unpacked.txt"
            names = tuple(base_image.listed(unpacked)) if unpacked.exists() else ()
            built = self._kubernetes()
            layers.append(Layer(self.family, (), source, (self.system, self.version), provided, names, built))
        if self.variant:
            name = f"{self.family}_{self.variant}"
            provided, apart = of_variant(self.system, self.family, self.variant, self.architecture)
            source = REPLICAS / f"{name}_ami"
            layers.append(Layer(name, (), source, (self.system, self.version), provided, apart=apart))
        return tuple(layer for layer in layers if layer.packages or layer.source)

    def _kubernetes(self) -> kubernetes.Build | None:
        """The real kubelet of an EKS image, where `make nodes` has built it; the programs are of this host's kind."""
        is_here = self.family == "eks" and self.architecture == DEFAULT
        return kubernetes.find(home_dir(), self.version) if is_here else None


@dataclass(frozen=True)
class Layer:
    """Debian's packages, or replicas, files and the script of a folder with their arguments (build_layer.sh).

    unpacked: Debian's packages whose files the script puts where the AMI has its own build of them; they are in
    ./unpacked of the script's working directory, and no package database of the image knows them.
    apart: replicas that the script lays out, by the name of their folder in ./apart.
    """

    name: str
    packages: tuple[str, ...] = ()
    source: Path | None = None
    arguments: tuple[str, ...] = ()
    provided: Provided = field(default_factory=Provided)
    unpacked: tuple[str, ...] = ()
    kubernetes: kubernetes.Build | None = None
    apart: tuple[tuple[str, Provided], ...] = ()

    def digest(self, below: str) -> str:
        """Of all that makes it and what it lies on."""
        made_of = f"{below}\0{self.packages}\0{self.arguments}\0{self.provided.digest()}\0"
        made_of += f"{self.unpacked}\0" if self.unpacked else ""
        made_of += f"{self.kubernetes.digest}\0" if self.kubernetes else ""
        made_of += "".join(f"{name} {provided.digest()}\0" for name, provided in self.apart)
        sha = hashlib.sha256(made_of.encode() + BUILD_LAYER.read_bytes() + _HIDE.read_bytes())
        if self.source:
            base_image.add_files(sha, self.source)
        return sha.hexdigest()[:16]


def system_folder(system: str) -> Path:
    """The replicas, files and script that make an operating system of Debian."""
    return REPLICAS / f"{_SHARED.get(system, system)}_ami"


def kernel_series(system: str) -> tuple[str, ...]:
    """Kernel series of an operating system's AMIs, in the facts; its own AMI's first."""
    from gpu_ami.recipes import load_facts

    return tuple(load_facts().operating_systems[system]["kernels"])


def kernel_package(system: str, series: str, architecture: str = DEFAULT) -> str:
    """Name of the package of a kernel series."""
    from gpu_ami.recipes import load_facts
    from gpu_ami.recipes.components import kernel

    return kernel.kernel_section(load_facts().operating_systems[system], series, architecture)["package"]


def available() -> tuple[tuple[str, str], ...]:
    """Operating system and node family of every emulated distribution that has a node family."""
    families = {
        "al2023": ("eks", "ecs", "parallelcluster"),
        "ubuntu2404": ("eks", "parallelcluster"),
        "ubuntu2204": ("parallelcluster",),
    }
    pairs = ((system, family) for system, names in families.items() for family in names)
    return tuple(pair for pair in pairs if (REPLICAS / family_folder(*pair)).is_dir())


def variants(family: str) -> tuple[str, ...]:
    """Variants of a node family's AMI that there are base images of."""
    from gpu_ami.recipes import load_facts

    known = load_facts().node_families.get(family, {}).get("variants", {})
    return tuple(name for name in known if (REPLICAS / f"{family}_{name}_ami").is_dir())


@dataclass(frozen=True)
class Tree:
    """Layers, the topmost first."""

    layers: tuple[Path, ...]

    def kernel(self) -> str:
        """The release that the tree boots: its newest kernel."""
        kernels = {path.name for layer in self.layers for path in layer.glob("boot/vmlinuz-*")}
        if not kernels:
            raise CloudError(
                f"{self.layers[-1]}: no kernel in its /boot", hint="remove the folder; the next run builds it again"
            )
        return max(kernels, key=_natural).removeprefix("vmlinuz-")


def _natural(text: str) -> list[tuple[int, str]]:
    words = "".join(letter if letter.isdigit() else f" {letter} " for letter in text).split()
    return [(int(word), "") if word.isdigit() else (-1, word) for word in words]


def ensure(base: Base, home: Path, progress: Progress) -> Tree:
    """The tree, its layers made where they are not there. UsageError unless we are root: its files have many owners."""
    require_root("a base image's tree")
    trees = home / "base" / "trees"
    require_programs(base.architecture)
    folders = [_ensure_debian(home, trees, progress, base)]
    below = base_image.digest(base.architecture, base.release)
    for layer in base.layers:
        below = layer.digest(below)
        folder = trees / f"{layer.name}-{below}"
        with base_image.only_one(trees, progress):
            if not folder.exists():
                with progress.stage(f"base image {base.name}: {layer.name}"):
                    build_rootfs(layer, folders, folder, home, base.architecture)
                _forget_old(trees)
        os.utime(folder)
        folders.insert(0, folder)
    return Tree(tuple(folders))


def _unpack(layer: Layer, debian: Path, home: Path, architecture: str) -> Path:
    """The files of a layer's unpacked packages: installed on Debian's tree, on which nothing else lies."""
    side = Layer(f"{layer.name}-unpacked", layer.unpacked)
    folder = debian.parent / f"{side.name}-{side.digest(base_image.digest(architecture))}"
    if not folder.exists():
        build_rootfs(side, [debian], folder, home, architecture)
    os.utime(folder)
    return folder


def digest(base: Base) -> str:
    """Of all that makes the tree."""
    debian = base_image.digest(base.architecture, base.release)
    return functools.reduce(lambda below, layer: layer.digest(below), base.layers, debian)


def require_root(what: str) -> None:
    if os.geteuid() != 0:
        raise UsageError(f"{what} needs root: files of many owners, and mounts", hint="run it with sudo")


def confined() -> list[str]:
    """Prefix of a tree's command that drops the capabilities which reach the host's kernel."""
    return [find_tool("setpriv", package="util-linux"), f"--bounding-set=-{',-'.join(_DROPPED)}"]


def _ensure_debian(home: Path, trees: Path, progress: Progress, base: Base) -> Path:
    layer = trees / f"debian-{base_image.digest(base.architecture, base.release)}"
    if not layer.exists():
        archive = base_image.ensure_archive(home, progress, base.architecture, base.release)
        with base_image.only_one(trees, progress):
            if not layer.exists():
                with progress.stage("extract the base image's tree"):
                    extract(archive, layer)
                _forget_old(trees)
    os.utime(layer)
    return layer


def extract(archive: Path, layer: Path) -> None:
    with base_image.scratch(layer.parent) as work:
        tree = work / "tree"
        tree.mkdir(mode=0o755)
        owners = ["--numeric-owner", "--xattrs", "--exclude=./dev/*"]
        tar = find_tool("tar", package="tar")
        run([tar, "-C", tree, *owners, "-xf", archive], timeout=300, error=CloudError)
        tree.rename(layer)


def build_rootfs(layer: Layer, below: list[Path], folder: Path, home: Path, architecture: str = DEFAULT) -> None:
    with base_image.scratch(folder.parent) as work:
        (work / "packages").write_text(" ".join(layer.packages))
        (work / "sources.list").write_text("\n".join([*archive_sources(BOOKWORM.suite), ""]))
        if layer.source and (layer.source / "rootfs").is_dir():
            base_image.pack_overlay(layer.source / "rootfs", work / "overlay.tar")
        if layer.provided:
            layer.provided.put(work / "replicas", home)
            shutil.copy(REPLICAS / "sandbox_preload.c", work)
        for name, apart in layer.apart:
            (work / "apart").mkdir(exist_ok=True)
            apart.put(work / "apart" / name, home)
        if layer.unpacked:
            (work / "unpacked").symlink_to(_unpack(layer, below[-1], home, architecture))
        if layer.kubernetes:
            (work / "kubernetes").symlink_to(layer.kubernetes.folder)
        for index, lower in enumerate(below):
            (work / f"layer{index}").symlink_to(lower)
        stack = ":".join(f"layer{index}" for index in range(len(below)))
        namespaces = [find_tool("unshare", package="util-linux"), "--mount", "--pid", "--fork"]
        namespaces += [] if layer.packages else ["--net"]  # only Debian's packages come over the network
        kernel = Tree(tuple(below)).kernel()
        script = layer.source / "customise.sh" if layer.source else Path("none")
        command: list[str | Path] = [
            *namespaces,
            *confined(),
            "env",
            *(f"--unset={name}" for name in _OF_HOST),
            "sh",
            BUILD_LAYER,
            stack,
            kernel,
            script,
            *layer.arguments,
        ]
        seconds = _LAYER_SECONDS if ARCHITECTURES[architecture].is_native else _EMULATED_LAYER_SECONDS
        run(command, timeout=seconds, cwd=work, env=proxies(), error=CloudError)
        (work / "upper").rename(folder)


def _forget_old(trees: Path) -> None:
    for old in trees.iterdir():
        if old.is_dir() and time.time() - old.stat().st_mtime > _KEPT_SECONDS:
            shutil.rmtree(old, ignore_errors=True)
