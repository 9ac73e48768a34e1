"""A sandbox without a base image: the host's own tree beneath, with what a base image has and a host has not on it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.progress import Progress
from localregion.images import rootfs_layers
from localregion.images.rootfs_layers import Base, Tree
from localregion.machines.boards import Devices
from localregion.sandbox import sandbox
from tests.waiting import until

QUIET = Progress("quiet")
DEBIAN = Base("debian12")
_WAYS_OUT = Path(__file__).parents[2] / "attacks/ways_out.c"
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
    monkeypatch.setattr(rootfs_layers, "ensure", lambda *_: tree)
    return tree


@pytest.fixture
def entered(tree: Tree, home: Path) -> Iterator[sandbox.Sandbox]:
    with sandbox.entered(DEBIAN, Devices(gpu=2, nvswitch=1, efa=1, neuron=1, umad=1), home, QUIET) as one:
        yield one


def ssh(one: sandbox.Sandbox, command: str) -> str:
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "IdentitiesOnly=yes")
    words = ["ssh", *(word for option in options for word in ("-o", option)), "-i", one.key, "-p", str(one.port)]
    done = subprocess.run([*words, f"{one.user}@{one.host}", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rooms(home: Path) -> list[int]:
    """Processes of sandboxes of that home."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if "sandbox_init" in words and str(home) in words:
            found.append(int(path.parent.name))
    return found


@mounts
def test_one_gets_in_and_is_somewhere_else(entered: sandbox.Sandbox) -> None:
    said = ssh(
        entered,
        "id -un; uname -r; cat /proc/sys/kernel/osrelease; tr -d '\\0' </proc/1/comm;"
        " ls /dev /dev/infiniband; cat /proc/net/fib_trie",
    )
    lines = said.splitlines()
    assert lines[:4] == ["tester", "6.1.0-10-test", "6.1.0-10-test", "systemd"]
    nodes = {"nvidia0", "nvidia1", "nvidiactl", "nvidia-nvswitch0", "nvidia-nvswitchctl", "neuron0", "umad0"}
    assert nodes <= set(lines)
    assert "|-- 169.254.169.252\n           /32 host LOCAL" in said and "nvidia2" not in lines
    assert Path(entered.key).stat().st_mode & 0o777 == 0o600


@mounts
def test_what_is_written_stays_there(entered: sandbox.Sandbox, home: Path) -> None:
    before = Path("/proc/sys/vm/swappiness").read_text()
    ours = before.strip() + "0"
    (folder,) = (home / "sandboxes").iterdir()
    wrote = as_root(
        home, folder / "root", f"echo {ours} >/proc/sys/vm/swappiness; echo x >/etc/of-a-sandbox; echo x >/dev/kmsg"
    )
    assert wrote.returncode == 0, wrote.stderr
    assert ssh(entered, "cat /proc/sys/vm/swappiness /etc/of-a-sandbox /dev/kmsg").split() == [ours, "x", "x"]
    assert Path("/proc/sys/vm/swappiness").read_text() == before
    assert not Path("/etc/of-a-sandbox").exists()


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


# What a sandbox's root may do that the programs of an image's files may not (cage.py says why it must): it changes
# files, also a copy of /proc/sys, makes nodes, which no mount opens, and has processes of its own.
_KEPT = {"core_pattern", "kill", "mknod", "setuid-file"}


@mounts
@pytest.mark.slow
@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles the program that tries to get out")
def test_root_in_it_does_not_reach_the_host(tree: Tree, home: Path) -> None:
    """The ways out of tests/attacks, as root behind sshd: what the builder must keep is all that differs."""
    mark = (
        tree.layers[0] / "mark"
    )  # of the host's /dev/shm: the tree below is the host's, and has the rest of its files
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    program = tree.layers[0] / "ways-out"  # set-user-id: this host may have no sudo
    macros = (f'-DMARK="{mark}"', f'-DABSTRACT="gpu-ami-{os.getpid()}"')
    subprocess.run(["gcc", "-static", *macros, "-o", program, _WAYS_OUT], check=True)
    program.chmod(0o4755)
    with sandbox.entered(DEBIAN, Devices(), home, QUIET) as entered:
        said = dict(line.split() for line in ssh(entered, "/ways-out").splitlines())
    assert len(said) == 24
    assert {name for name, how in said.items() if how == "out"} == _KEPT
    assert not mark.exists()
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


@mounts
def test_nothing_is_left(tree: Tree, home: Path) -> None:
    with sandbox.entered(DEBIAN, Devices(), home, QUIET):
        assert len(rooms(home)) == 3  # unshare, process 1 and the builder
        (folder,) = (home / "sandboxes").iterdir()
    until(lambda: not rooms(home))
    assert not folder.exists()
    assert str(home) not in Path("/proc/self/mounts").read_text()


@mounts
def test_a_killed_holder_takes_it_along(tree: Tree, home: Path) -> None:
    """kill -9: the kernel ends the room; the folder goes with the next sandbox."""
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from localregion.images import rootfs_layers\nfrom localregion.sandbox import sandbox\n"
        "from localregion.machines.boards import Devices\nfrom gpu_ami.progress import Progress\n"
        "rootfs_layers.ensure = lambda *_: rootfs_layers.Tree((Path(sys.argv[2]), Path('/')))\n"
        "with sandbox.entered(rootfs_layers.Base('debian12'), Devices(), Path(sys.argv[1]), Progress('quiet')):\n"
        "    print('in', flush=True)\n    time.sleep(60)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(sandbox.__file__).parents[2])}
    command = [sys.executable, "-c", script, str(home), str(tree.layers[0])]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert holder.stdout is not None and holder.stdout.readline() == b"in\n"
    (left,) = (home / "sandboxes").iterdir()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    until(lambda: not rooms(home))
    with sandbox.entered(DEBIAN, Devices(), home, QUIET):
        assert not left.exists()


@mounts
def test_a_sandbox_that_does_not_come_up_says_why(tree: Tree, home: Path) -> None:
    (tree.layers[0] / "etc/cloud/cloud.cfg").write_text("{}")
    with (
        pytest.raises(CloudError, match=r"the sandbox did not start: .* names no default user"),
        sandbox.entered(DEBIAN, Devices(), home, QUIET),
    ):
        pass
    assert list((home / "sandboxes").iterdir()) == []


def test_only_root_enters(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="a sandbox needs root"), sandbox.entered(DEBIAN, Devices(), home, QUIET):
        pass


def test_the_newest_kernel_counts(tree: Tree) -> None:
    assert tree.kernel() == "6.1.0-10-test"


def test_a_tree_without_a_kernel_is_no_base(tmp_path: Path) -> None:
    with pytest.raises(CloudError, match="no kernel in its /boot"):
        Tree((tmp_path,)).kernel()


def test_modules_of_the_working_folder_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is root's, in the folder in which gpu-ami was started."""
    started: list[tuple[list[str], dict[str, str]]] = []

    def note(command: list[str], *, env: dict[str, str], **_: object) -> None:
        started.append((command, env))

    monkeypatch.setattr(sandbox, "spawn", note)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        _, report = sandbox.start(tmp_path, {"home": str(tmp_path)}, listener, 1)
    os.close(report)
    (command, env) = started[0]
    words = json.loads(command[-1])["words"]
    (tmp_path / "json.py").write_text("open('mark', 'w')\n")
    done = subprocess.run([*words[:-1], "{}"], cwd=tmp_path, env=os.environ | env, capture_output=True, timeout=60)
    assert b"TypeError" in done.stderr, done.stderr  # it began, and "{}" are no settings
    assert not (tmp_path / "mark").exists()
