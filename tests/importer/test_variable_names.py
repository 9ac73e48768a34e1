"""What the variables of well-known templates mean."""

from __future__ import annotations

import pytest

from gpu_ami.importer.variable_names import component_of


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
