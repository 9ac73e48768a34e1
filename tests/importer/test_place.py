"""The `--where` file of a template, and what the variables of well-known templates mean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami.importer.conversion import component_of, place_of
from gpu_ami.importer.template import read_template


def place(folder: Path, builder: dict[str, object], **variables: object) -> tuple[dict[str, object], list[str]]:
    path = folder / "x.json"
    path.write_text(json.dumps({"variables": variables, "builders": [{"type": "amazon-ebs", **builder}]}))
    imported = place_of(read_template(path))
    return imported.values, imported.remarks


def test_values_of_builder_and_variables(tmp_path: Path) -> None:
    builder: dict[str, object] = {
        "region": "{{user `aws_region`}}",
        "security_group_id": "sg-0123456789abcdef0",
        "iam_instance_profile": "builder",
        "ssh_interface": "private_ip",
        "ssh_port": 2222,
    }
    values, _ = place(tmp_path, builder, aws_region="eu-west-1", subnet_id="subnet-0123456789abcdef0", source_ami_id="")
    assert values == {
        "region": "eu-west-1",
        "security_group_ids": ["sg-0123456789abcdef0"],
        "instance_profile": "builder",
        "ssh_interface": "private_ip",
        "ssh_port": 2222,
        "subnet_id": "subnet-0123456789abcdef0",
    }


def test_null_is_no_value(tmp_path: Path) -> None:
    values, remarks = place(tmp_path, {"region": None, "subnet_id": "{{user `subnet_id`}}"}, subnet_id=None)
    assert (values, remarks) == ({}, [])


def test_value_that_a_place_would_refuse_is_not_carried_over(tmp_path: Path) -> None:
    values, remarks = place(tmp_path, {"subnet_id": "my-subnet"}, region="{{user `aws_region`}}", aws_region="here")
    assert values == {}
    assert remarks == [
        "builders[0].subnet_id: 'my-subnet' is no subnet_id of a --where file; not carried over",
        "region: 'here' is no region of a --where file; not carried over",
        "aws_region: 'here' is no region of a --where file; not carried over",
    ]


@pytest.mark.parametrize(
    "variable, component",
    [
        ("nvidia_version", "nvidia_driver"),
        ("nvidia_driver_major_version", "nvidia_driver"),
        ("nvidia_driver_major_al2023", "nvidia_driver"),
        ("nvidia_driver_lts_version", "nvidia_driver"),
        ("NVIDIA-Driver-Version", "nvidia_driver"),
        ("cuda_version", "cuda"),
        ("cudnn_version", "cudnn"),
        ("nccl_version", "nccl"),
        ("efa_pkg", "efa"),
        ("efa_installer_version", "efa"),
        ("aws_ofi_nccl_version", "ofi_nccl"),
        ("nvidia_gdrcopy_driver_version", "gdrcopy"),
        ("dcgm_version_al2023", "dcgm"),
        ("nvidia_container_toolkit_version", "container_toolkit"),
        ("intel_mkl_version", "mkl"),
        ("containerd_version", None),
        ("enable_nvidia_gdrcopy_driver", None),
        ("nvidia_repository_url", None),
        ("kubernetes_version", None),
    ],
)
def test_component_of_a_variable(variable: str, component: str | None) -> None:
    found = component_of(variable)
    assert (found[0] if found else None) == component
