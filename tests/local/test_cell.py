"""A cell without a base image: the host's own tree beneath, with what a base image has and a host has not on it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.local import cell, cell_room, trees
from gpu_ami.local.devices import Devices
from gpu_ami.local.trees import Base, Tree
from gpu_ami.log import Progress

QUIET = Progress("quiet")
DEBIAN = Base("debian12")
mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and enter namespaces")
_CLOUD_CFG = """\
system_info:
  default_user: {name: tester, gecos: Tester, groups: [adm], sudo: ["ALL=(ALL) NOPASSWD:ALL"], shell: /bin/sh}
"""


@pytest.fixture
def tree(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tree]:
    # On another file system than /: overlayfs takes no layers of which one lies in the other.
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield make_tree(Path(name), monkeypatch)


def make_tree(layer: Path, monkeypatch: pytest.MonkeyPatch) -> Tree:
    layer.chmod(0o755)
    (layer / "etc/cloud/cloud.cfg.d").mkdir(parents=True)
    (layer / "etc/cloud/cloud.cfg").write_text(_CLOUD_CFG)
    (layer / "boot").mkdir()
    for release in ("6.1.0-9-test", "6.1.0-10-test"):
        (layer / f"boot/vmlinuz-{release}").touch()
    tree = Tree((layer, Path("/")))
    monkeypatch.setattr(trees, "ensure", lambda *_: tree)
    return tree


@pytest.fixture
def entered(tree: Tree, home: Path) -> Iterator[cell.Cell]:
    with cell.entered(DEBIAN, Devices(gpu=2, nvswitch=1, efa=1, neuron=1), home, QUIET) as one:
        yield one


def ssh(one: cell.Cell, command: str) -> str:
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "IdentitiesOnly=yes")
    words = ["ssh", *(word for option in options for word in ("-o", option)), "-i", one.key, "-p", str(one.port)]
    done = subprocess.run([*words, f"{one.user}@{one.host}", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "it did not come to be"
        time.sleep(0.05)


def rooms(home: Path) -> list[int]:
    """Processes of cells of that home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "cell_room" in words and str(home) in words:
            found.append(int(path.parent.name))
    return found


@mounts
def test_one_gets_in_and_is_somewhere_else(entered: cell.Cell) -> None:
    said = ssh(
        entered,
        "id -un; uname -r; cat /proc/sys/kernel/osrelease; tr -d '\\0' </proc/1/comm; ls /dev; cat /proc/net/fib_trie",
    )
    lines = said.splitlines()
    assert lines[:4] == ["tester", "6.1.0-10-test", "6.1.0-10-test", "systemd"]
    assert {"nvidia0", "nvidia1", "nvidiactl", "nvidia-nvswitch0", "nvidia-nvswitchctl", "neuron0"} <= set(lines)
    assert "|-- 169.254.169.252\n           /32 host LOCAL" in said and "nvidia2" not in lines
    assert Path(entered.key).stat().st_mode & 0o777 == 0o600


@mounts
def test_what_is_written_stays_there(entered: cell.Cell, home: Path) -> None:
    before = Path("/proc/sys/vm/swappiness").read_text()
    ours = before.strip() + "0"
    (folder,) = (home / "cells").iterdir()
    wrote = as_root(
        home, folder / "root", f"echo {ours} >/proc/sys/vm/swappiness; echo x >/etc/of-a-cell; echo x >/dev/kmsg"
    )
    assert wrote.returncode == 0, wrote.stderr
    assert ssh(entered, "cat /proc/sys/vm/swappiness /etc/of-a-cell /dev/kmsg").split() == [ours, "x", "x"]
    assert Path("/proc/sys/vm/swappiness").read_text() == before
    assert not Path("/etc/of-a-cell").exists()


def as_root(home: Path, root: Path, command: str) -> subprocess.CompletedProcess[str]:
    inside = [
        "nsenter",
        "--target",
        str(max(rooms(home))),
        "--mount",
        "--pid",
        "chroot",
        str(root),
        "sh",
        "-c",
        command,
    ]
    return subprocess.run(inside, capture_output=True, text=True, timeout=30)


@mounts
def test_nothing_is_left(tree: Tree, home: Path) -> None:
    with cell.entered(DEBIAN, Devices(), home, QUIET):
        assert len(rooms(home)) == 2  # unshare and the room
        (folder,) = (home / "cells").iterdir()
    until(lambda: not rooms(home))
    assert not folder.exists()
    assert str(home) not in Path("/proc/self/mounts").read_text()


@mounts
def test_a_killed_holder_takes_it_along(tree: Tree, home: Path) -> None:
    """kill -9: the kernel ends the room; the folder goes with the next cell."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom gpu_ami.local import cell, trees\n"
        "from gpu_ami.local.devices import Devices\nfrom gpu_ami.log import Progress\n"
        "trees.ensure = lambda *_: trees.Tree((Path(sys.argv[2]), Path('/')))\n"
        "with cell.entered(trees.Base('debian12'), Devices(), Path(sys.argv[1]), Progress('quiet')):\n"
        "    print('in', flush=True)\n    time.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(cell.__file__).parents[2])}
    command = [sys.executable, "-c", script, str(home), str(tree.layers[0])]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert holder.stdout is not None and holder.stdout.readline() == b"in\n"
    (left,) = (home / "cells").iterdir()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    until(lambda: not rooms(home))
    with cell.entered(DEBIAN, Devices(), home, QUIET):
        assert not left.exists()


@mounts
def test_a_cell_that_does_not_come_up_says_why(tree: Tree, home: Path) -> None:
    (tree.layers[0] / "etc/cloud/cloud.cfg").write_text("{}")
    with (
        pytest.raises(CloudError, match=r"the cell did not come up: .* names no default user"),
        cell.entered(DEBIAN, Devices(), home, QUIET),
    ):
        pass
    assert list((home / "cells").iterdir()) == []


def test_only_root_enters(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="a cell needs root"), cell.entered(DEBIAN, Devices(), home, QUIET):
        pass


def test_the_newest_kernel_counts(tree: Tree) -> None:
    assert tree.kernel() == "6.1.0-10-test"


def test_a_tree_without_a_kernel_is_no_base(tmp_path: Path) -> None:
    with pytest.raises(CloudError, match="no kernel in its /boot"):
        Tree((tmp_path,)).kernel()


def test_settings_are_copied_as_far_as_they_can_be_read(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "kernel/random").mkdir(parents=True)
    (source / "kernel/osrelease").write_text("6.1\n")
    (source / "kernel/random/uuid").write_text("x")
    (source / "kernel/gone").symlink_to("nowhere")
    cell_room.copy_settings(source, tmp_path / "target")
    copied = sorted(path.relative_to(tmp_path / "target").as_posix() for path in (tmp_path / "target").rglob("*"))
    assert copied == ["kernel", "kernel/osrelease"]


def test_the_last_file_names_the_default_user(tmp_path: Path) -> None:
    folder = tmp_path / "etc/cloud/cloud.cfg.d"
    folder.mkdir(parents=True)
    (tmp_path / "etc/cloud/cloud.cfg").write_text("system_info: {default_user: {name: first}}\n")
    (folder / "10-a.cfg").write_text("system_info: {default_user: {name: second}}\n")
    (folder / "20-b.cfg").write_text("cloud_init_modules: []\n")
    assert cell_room.default_user(tmp_path)["name"] == "second"
