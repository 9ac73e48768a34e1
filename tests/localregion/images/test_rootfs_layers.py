"""Layers of a base image: what is put on a tree, in which order, and that a broken layer leaves nothing."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.progress import Progress
from localregion.images import base_image, rootfs_layers
from localregion.images.rootfs_layers import Base, Layer

pytestmark = pytest.mark.slow

QUIET = Progress("quiet")
mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and enter namespaces")


@pytest.fixture
def folder() -> Iterator[Path]:
    """On another file system than /: overlayfs takes no layers of which one lies in the other."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        (Path(name) / "below/boot").mkdir(parents=True)
        (Path(name) / "below/boot/vmlinuz-6.1.0-1-test").touch()
        yield Path(name)


def source(folder: Path, script: str) -> Path:
    made = folder / "some_ami"
    (made / "rootfs/etc").mkdir(parents=True)
    (made / "rootfs/etc/of-a-layer").write_text("file\n")
    (made / "customise.sh").write_text(script)
    return made


@mounts
def test_a_layers_programs_get_no_folder_of_the_host(folder: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dpkg-deb of an Ubuntu base image failed on a host whose TMPDIR is not /tmp: the tree has no such folder."""
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("PYTHONPATH", "/of/the/host")
    script = 'chroot "$1" mktemp >"$1/etc/temporary"; chroot "$1" env >"$1/etc/environment"'
    made = folder / "trees/some-1"
    made.parent.mkdir()
    rootfs_layers.build_rootfs(Layer("some", source=source(folder, script)), [folder / "below", Path("/")], made, home)
    assert (made / "etc/temporary").read_text().startswith("/tmp/")
    assert "PYTHONPATH" not in (made / "etc/environment").read_text()


@mounts
def test_a_layer_holds_what_is_different(folder: Path, home: Path) -> None:
    script = [
        'chroot "$1" cp /etc/of-a-layer /etc/copied',
        'echo "$2 $3" >"$1/etc/arguments"',
        'ls "$1/dev" >"$1/etc/dev"',
        'mkdir -p "$1/var/log/apt"; echo x | tee "$1/var/log/apt/x.log" >"$1/var/log/dpkg.log"',
        'echo kept >"$1/var/log/apt.kept"',
    ]
    layer = Layer("some", source=source(folder, "\n".join(script)), arguments=("al2023", "1.33"))
    made = folder / "trees/some-1"
    made.parent.mkdir()
    rootfs_layers.build_rootfs(layer, [folder / "below", Path("/")], made, home)
    assert (made / "etc/copied").read_text() == "file\n"
    assert (made / "etc/arguments").read_text() == "al2023 1.33\n"
    assert (made / "etc/dev").read_text().split() == ["fd", "full", "null", "random", "tty", "urandom", "zero"]
    assert sorted(path.name for path in made.iterdir()) == ["etc", "var"]  # nothing of /dev, /proc, /run, /tmp
    # No log of what installed packages: as found, an AMI of ours in a vendor's place failed for them.
    assert [path.name for path in (made / "var/log").rglob("*") if path.is_file()] == ["apt.kept"]
    assert [path.name for path in made.parent.iterdir()] == ["some-1"]
    assert not Path("/etc/of-a-layer").exists()


@mounts
def test_a_layer_cannot_reach_the_host_s_kernel(folder: Path, home: Path) -> None:
    script = 'grep CapBnd /proc/self/status | cut -f2 >"$1/etc/rights"\n'
    made = folder / "trees/some-1"
    made.parent.mkdir()
    rootfs_layers.build_rootfs(Layer("some", source=source(folder, script)), [folder / "below", Path("/")], made, home)
    sys_module, sys_boot, sys_admin = 1 << 16, 1 << 22, 1 << 21
    rights = int((made / "etc/rights").read_text(), 16)
    assert not rights & (sys_module | sys_boot) and rights & sys_admin


@mounts
def test_a_broken_layer_leaves_nothing_and_says_why(folder: Path, home: Path) -> None:
    made = folder / "trees/some-1"
    made.parent.mkdir()
    layer = Layer("some", source=source(folder, "echo no such thing >&2\nexit 3\n"))
    with pytest.raises(CloudError) as caught:
        rootfs_layers.build_rootfs(layer, [folder / "below", Path("/")], made, home)
    assert "no such thing" in caught.value.details[-1]
    assert list(made.parent.iterdir()) == []
    assert str(folder) not in Path("/proc/self/mounts").read_text()


@pytest.fixture
def built(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the layers that are built: each is made as an empty folder."""
    names: list[str] = []

    def build(layer: Layer, below: list[Path], folder: Path, _home: Path, _architecture: str) -> None:
        names.append(f"{layer.name} on {len(below)}")
        folder.mkdir()

    def extract(_archive: Path, layer: Path) -> None:
        names.append("debian")
        layer.mkdir()

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(rootfs_layers, "build_rootfs", build)
    monkeypatch.setattr(rootfs_layers, "extract", extract)
    monkeypatch.setattr(base_image, "ensure_archive", lambda *_: home / "tar")
    return names


SERIES_OF_EKS = "6.12"  # of the node AMIs 1.33 to 1.35; the system's own AMI has 6.1


def test_layers_are_built_once_and_shared(home: Path, built: list[str]) -> None:
    eks = rootfs_layers.ensure(Base("al2023", "eks", "1.33"), home, QUIET)
    assert built == ["debian", "al2023-packages on 1", "al2023 on 2", "eks on 3"]
    plain = rootfs_layers.ensure(Base("al2023", kernel=SERIES_OF_EKS), home, QUIET)
    assert rootfs_layers.ensure(Base("al2023", "eks", "1.33"), home, QUIET) == eks
    assert eks.layers[1:] == plain.layers
    rootfs_layers.ensure(Base("al2023", "eks", "1.35"), home, QUIET)
    rootfs_layers.ensure(Base("ubuntu2404"), home, QUIET)
    assert built[4:] == ["eks on 3", "ubuntu-packages on 1", "ubuntu2404 on 2"]
    assert rootfs_layers.ensure(Base("debian12"), home, QUIET).layers == eks.layers[-1:]
    (other,) = rootfs_layers.ensure(Base("debian13"), home, QUIET).layers
    assert built[7:] == ["debian"] and other not in eks.layers


def test_another_architecture_shares_no_layer(home: Path, built: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    required: list[str] = []
    monkeypatch.setattr(rootfs_layers, "require_programs", required.append)
    native = rootfs_layers.ensure(Base("al2023"), home, QUIET)
    foreign = rootfs_layers.ensure(Base("al2023", architecture="arm64"), home, QUIET)
    assert built == ["debian", "al2023-packages on 1", "al2023 on 2"] * 2
    assert not set(native.layers) & set(foreign.layers)
    assert required == ["x86_64", "arm64"]


def test_a_changed_file_makes_another_layer(home: Path, built: list[str], tmp_path: Path) -> None:
    some = source(tmp_path, "true\n")
    digests = [Layer("some", source=some).digest("below")]
    (some / "rootfs/etc/of-a-layer").write_text("other\n")
    digests.append(Layer("some", source=some).digest("below"))
    (some / "customise.sh").chmod(0o755)
    digests.append(Layer("some", source=some).digest("below"))
    digests.append(Layer("some", source=some).digest("another"))
    digests.append(Layer("some", source=some, arguments=("1",)).digest("another"))
    digests.append(Layer("some", ("dnf",), some).digest("another"))
    assert len(set(digests)) == len(digests)


def test_old_layers_go(home: Path, built: list[str]) -> None:
    folder = home / "base/trees"
    for name in ("old-1", "young-1"):
        (folder / name).mkdir(parents=True)
    os.utime(folder / "old-1", (0, 0))
    rootfs_layers.ensure(Base("debian12"), home, QUIET)
    assert sorted(path.name for path in folder.glob("*-1")) == ["young-1"]


def test_a_tree_needs_root(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="needs root") as caught:
        rootfs_layers.ensure(Base("al2023"), home, QUIET)
    assert "sudo" in caught.value.hint


@pytest.mark.parametrize(
    "script", [*sorted(rootfs_layers.REPLICAS.glob("*_ami/customise.sh")), rootfs_layers.BUILD_LAYER], ids=str
)
def test_scripts_are_clean(script: Path) -> None:
    done = subprocess.run(["shellcheck", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout
