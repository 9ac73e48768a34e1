"""The replicas of Canonical's EKS AMI: `snap` over snapd's state, and bootstrap.sh."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localregion.mirror.table import REPLICAS
from validator.checks import node_eks_ubuntu

ROOTFS = REPLICAS / "eks_ubuntu_ami/rootfs"


@pytest.fixture
def snap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The program on a machine that is a folder, with the snap kubelet-eks 1.35.1."""
    module: Any = ModuleType("snap")
    SourceFileLoader("snap", str(ROOTFS / "usr/bin/snap")).exec_module(module)
    module.STATE, module.SNAPS = str(tmp_path / "state.json"), str(tmp_path / "snap")
    (tmp_path / "snap/kubelet-eks/1/meta").mkdir(parents=True)
    (tmp_path / "snap/kubelet-eks/1/meta/snap.yaml").write_text("name: kubelet-eks\nversion: 1.35.1\n")
    (tmp_path / "snap/kubelet-eks/current").symlink_to("1")
    snaps = {"kubelet-eks": {"type": "app", "current": "1", "channel": "1.35.1/stable"}}
    state = {"data": {"config": {"core": {"refresh": {"hold": "forever"}}}, "snaps": snaps}}
    (tmp_path / "state.json").write_text(json.dumps(state))

    def called(*words: str) -> None:
        monkeypatch.setattr("sys.argv", list(words))
        module.main()

    called.module = module  # type: ignore[attr-defined]
    return called


def hold(tmp_path: Path) -> Any:
    """What the check reads of the state."""
    program = node_eks_ubuntu.STATE_PROGRAM.replace("/var/lib/snapd/state.json", str(tmp_path / "state.json"))
    return json.loads(subprocess.run(["python3", "-c", program], capture_output=True, check=True, timeout=60).stdout)


def test_list_has_the_columns_of_snap(snap: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    snap("snap", "list", "kubelet-eks")
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["Name", "Version", "Rev", "Tracking", "Publisher", "Notes"],
        ["kubelet-eks", "1.35.1", "1", "1.35.1/stable", "canonical**", "classic"],
    ]


def test_hold_is_what_the_check_reads(snap: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snap("snap", "get", "system", "refresh.hold")
    assert capsys.readouterr().out == "forever\n"
    assert hold(tmp_path) == {"channel": "1.35.1/stable", "hold": "forever", "own": []}
    snap("snap", "refresh", "--unhold")
    assert hold(tmp_path)["hold"] == ""
    with pytest.raises(snap.module.Failure, match=r'snap "system" has no "refresh\.hold" configuration option'):
        snap("snap", "get", "system", "refresh.hold")
    snap("snap", "refresh", "--hold")
    assert hold(tmp_path)["hold"] == "forever" and (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("words", [("refresh",), ("install", "x"), ("list", "x"), ("run", "x.y")])
def test_what_it_does_not_have_it_refuses(snap: Any, words: tuple[str, ...]) -> None:
    with pytest.raises(snap.module.Failure):
        snap("snap", *words)


@pytest.mark.parametrize(
    ("called", "run"),
    [
        (("snap", "run", "kubelet-eks.kubelet", "--version"), ["--version"]),
        (("/snap/bin/kubelet-eks.kubelet", "--version"), ["--version"]),
        (("snap", "run", "kubelet-eks.daemon"), ["--cluster-dns=10.100.0.10", "--node-labels=a=b"]),
    ],
)
def test_the_program_and_the_service_run(
    snap: Any, monkeypatch: pytest.MonkeyPatch, called: tuple[str, ...], run: list[str]
) -> None:
    started: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(snap.module.os, "execv", lambda path, words: started.append((path, words)))
    snap("snap", "set", "kubelet-eks", "cluster-dns=10.100.0.10", "args=--node-labels=a=b")
    snap(*called)
    ((path, words),) = started
    assert path.endswith("/snap/kubelet-eks/current/kubelet") and words[1:] == run


def test_services_start_and_are_enabled(snap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(snap.module.subprocess, "run", lambda words, **_: calls.append(" ".join(words)))
    snap("snap", "start", "--enable", "kubelet-eks")
    unit = "snap.kubelet-eks.daemon.service"
    assert calls == [f"systemctl --quiet enable {unit}", f"systemctl start {unit}"]


def test_bootstrap_sh_needs_a_cluster() -> None:
    script = ROOTFS / "etc/eks/bootstrap.sh"
    done = subprocess.run(["bash", str(script), "name"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and "usage:" in done.stderr
