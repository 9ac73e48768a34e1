"""The container toolkit's replica, and the runtimes that it tells of itself."""

from __future__ import annotations

import json
import re
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from gpu_ami import process
from gpu_ami.local.mirror.table import REPLICAS
from tests.replicas.conftest import A10G
from validator.checks import container_toolkit

SOURCES = REPLICAS / "container_toolkit"
INFORMATION = "Model: \t\t NVIDIA A10G\nGPU UUID: \t GPU-0000000{0}\nDevice Minor: \t {0}\n"


def program(path: str, **constants: Any) -> ModuleType:
    found = ModuleType("replica")
    code = (SOURCES / path).read_text(encoding="utf-8").replace("@VERSION@", "1.18.1")
    exec(compile(code, path, "exec"), found.__dict__)
    found.__dict__.update(constants)
    return found


@pytest.fixture
def ctk(machine: Callable[..., str], tmp_path: Path) -> ModuleType:
    """nvidia-ctk on a machine with two GPUs; everything that it writes lies in the test's folder."""
    gpus = Path(machine(A10G, 2)) / "proc/driver/nvidia/gpus"
    for number, folder in enumerate(sorted(gpus.iterdir())):
        (folder / "information").write_text(INFORMATION.format(number), encoding="utf-8")
    return program(
        "base/usr/bin/nvidia-ctk",
        PROC=str(gpus),
        SPECIFICATIONS=(str(tmp_path / "etc"), str(tmp_path / "run")),
        DROP_IN=str(tmp_path / "conf.d/99-nvidia.toml"),
        IMPORTS=f'imports = ["{tmp_path}/conf.d/*.toml"]',
    )


def asked(**changes: Any) -> Namespace:
    usual = {"runtime": "docker", "config": None, "drop_in_config": None, "cdi_enabled": True, "set_as_default": False}
    return Namespace(**(usual | changes))


def test_specification_has_every_gpu_in_three_ways(ctk: ModuleType, tmp_path: Path) -> None:
    assert ctk.generate(Namespace(output=str(tmp_path / "run/nvidia.yaml"))) == 0
    document = yaml.safe_load((tmp_path / "run/nvidia.yaml").read_text(encoding="utf-8"))
    nodes = {
        device["name"]: [node["path"] for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    }
    assert document["kind"] == "nvidia.com/gpu"
    assert nodes == {
        "0": ["/dev/nvidia0"],
        "GPU-00000000": ["/dev/nvidia0"],
        "1": ["/dev/nvidia1"],
        "GPU-00000001": ["/dev/nvidia1"],
        "all": ["/dev/nvidia0", "/dev/nvidia1"],
    }


def test_list_names_what_the_specification_has(
    ctk: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ctk.generate(Namespace(output=str(tmp_path / "run/nvidia.yaml")))
    ctk.list_devices(None)
    shown = capsys.readouterr()
    names = ["0", "1", "GPU-00000000", "GPU-00000001", "all"]
    assert shown.out.split() == [f"nvidia.com/gpu={name}" for name in names]
    assert "Found 5 CDI devices" in shown.err


def test_without_gpus_nothing_is_written(ctk: ModuleType, tmp_path: Path) -> None:
    ctk.PROC = str(tmp_path / "nothing")
    assert ctk.generate(Namespace(output=str(tmp_path / "run/nvidia.yaml"))) == 1
    assert not (tmp_path / "run").exists()


def test_docker_keeps_its_other_settings(ctk: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text('{"log-driver": "journald", "runtimes": {"crun": {"path": "crun"}}}', encoding="utf-8")
    ctk.configure(asked(config=str(path)))
    text = path.read_text(encoding="utf-8")
    assert container_toolkit.docker_runtime(text) == "nvidia-container-runtime"
    assert json.loads(text)["log-driver"] == "journald"
    assert set(json.loads(text)["runtimes"]) == {"crun", "nvidia"}
    assert json.loads(text)["features"] == {"cdi": True}


@pytest.mark.parametrize("before", ["", "version = 3\n", 'version = 2\n[plugins."io.containerd.x"]\na = 1\n'])
def test_containerd_has_it_by_its_own_word(
    ctk: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], before: str
) -> None:
    path = tmp_path / "config.toml"
    path.write_text(before, encoding="utf-8")
    for _ in range(2):  # the second time there is nothing to add
        ctk.configure(asked(runtime="containerd", config=str(path)))
    daemon = program("containerd/usr/bin/containerd", CONFIG=str(path))
    assert path.read_text(encoding="utf-8").count("imports = ") == 1
    daemon.dump(daemon.load(str(path)))
    dumped = capsys.readouterr().out
    assert container_toolkit.containerd_runtime(dumped) == "/usr/bin/nvidia-container-runtime"
    # What the role looks for, so that its second run changes nothing.
    assert re.search("BinaryName = .*nvidia-container-runtime", dumped) and "enable_cdi = true" in dumped


def test_containerd_says_where_its_settings_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("version = \n", encoding="utf-8")
    with pytest.raises(SystemExit, match=r"failed to load TOML: .*config\.toml"):
        program("containerd/usr/bin/containerd").load(str(tmp_path / "config.toml"))


@pytest.mark.parametrize("text", ["{", "[]"])
def test_docker_refuses_what_it_cannot_read(tmp_path: Path, text: str) -> None:
    (tmp_path / "daemon.json").write_text(text, encoding="utf-8")
    with pytest.raises(SystemExit, match="unable to configure the Docker daemon"):
        program("docker/usr/bin/dockerd", CONFIG=str(tmp_path / "daemon.json")).settings()


def test_toolkit_says_its_version_as_the_check_reads_it() -> None:
    shown = process.run([sys.executable, SOURCES / "base/usr/bin/nvidia-ctk", "--version"], timeout=30).stdout
    assert container_toolkit.version(shown) == "@VERSION@"
