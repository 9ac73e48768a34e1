"""What is read of the container probe's document and of containerd's configuration."""

from __future__ import annotations

import pytest

from validator.probes import containers

VERSION_2 = """version = 2
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
SystemdCgroup = false
"""


def test_configuration_of_version_2_is_read() -> None:
    config = containers.read_config(VERSION_2)
    assert (config.default_runtime, config.runtimes) == ("runc", {"runc": {"SystemdCgroup": False}})
    assert (config.cdi, config.cdi_folders) == (None, ())


def test_what_is_no_configuration_is_named() -> None:
    with pytest.raises(containers.Unanswered, match="containerd config dump: "):
        containers.read_config("a = [")
    with pytest.raises(containers.Unanswered, match=r"expected plugin io\.containerd\.cri\.v1\.runtime"):
        containers.read_config("version = 3")


def test_a_probe_without_a_result_is_named() -> None:
    with pytest.raises(containers.Unanswered, match=r"printed no result.*exit status 1: no python3"):
        containers.read("", "exit status 1: no python3")
    with pytest.raises(containers.Unanswered, match="expected schema gpu-ami/containers/1, got other"):
        containers.read('{"schema": "other"}')


@pytest.mark.parametrize(
    ("version", "config", "modes"),
    [  # unqualified names, full names of CDI devices
        ("1.18.1", "", ["jit-cdi", "cdi"]),
        ("1.18.1", '[nvidia-container-runtime]\nmode = "auto"\n', ["jit-cdi", "cdi"]),
        ("1.17.8", "", ["legacy", "cdi"]),
        ("1.20.1", '[nvidia-container-runtime]\nmode = "legacy"\n', ["legacy", "legacy"]),
        ("1.20.1", '#mode = "legacy"\n[nvidia-container-runtime]\nlog-level = "info"\n', ["jit-cdi", "cdi"]),
        ("1.20.1", "mode = [", ["", ""]),
        ("1.20.1", 'nvidia-container-runtime = "legacy"', ["", ""]),
    ],
)
def test_mode_is_that_of_configuration_and_release(version: str, config: str, modes: list[str]) -> None:
    runtime = containers.read_runtime(f"NVIDIA Container Runtime version {version}\ncommit: f202b80\n", config)
    assert [runtime.mode_of(qualified=False), runtime.mode_of(qualified=True)] == modes
    assert not runtime.is_replica
