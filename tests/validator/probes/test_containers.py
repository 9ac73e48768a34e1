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
