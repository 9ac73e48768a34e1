"""What public pipelines leave: components and capture are read, and nothing healthy is called a problem."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_ami import observe
from gpu_ami.observe import Level
from gpu_ami.recipes import VARIABLES, load_facts
from tests.observe import foreign_pipelines as pipelines

# Tree → versions that it must show; ids of findings that it must have, and must not have; whether it captures Xids.
CASES: dict[str, tuple[Callable[[Path], Path], dict[str, str], set[str], set[str], bool]] = {
    "EKS with archived modules": (
        pipelines.eks_archive,
        {"nvidia_driver": "580.126.09", "fabric_manager": "580.126.09", "imex": "580.126.09", "node_eks": "1.35"},
        {"no-agent"}, {"module-missing", "no-libraries", "nouveau", "no-package"}, False,
    ),
    "EKS with trees of drivers": (
        pipelines.eks_trees, {"nvidia_driver": "595.91.07", "container_toolkit": "1.19.1", "node_eks": "1.35"},
        {"no-agent"}, {"module-missing", "no-libraries", "nouveau", "no-package", "no-smi", "sources-differ"}, False,
    ),
    "ParallelCluster": (
        pipelines.pcluster,
        {"nvidia_driver": "550.90.07", "fabric_manager": "550.90.07", "node_parallelcluster": "3.12.0"},
        {"agent-fetched", "no-package"},
        {"agent-unconfigured", "agent-disabled", "agent-unread", "module-missing", "nouveau", "not-held"}, False,
    ),
    "Ubuntu's server driver": (
        pipelines.ubuntu_server, {"nvidia_driver": "570.211.01"}, set(),
        {"module-missing", "not-held", "no-package", "xid-capture", "agent-disabled"}, True,
    ),
    "DCGM exporter and Fluent Bit": (
        pipelines.dcgm_exporter, {"nvidia_driver": "580.126.09", "dcgm": "4.4.2"}, {"no-agent"},
        {"xid-capture", "nouveau", "module-missing", "not-held"}, True,
    ),
    "Fluent Bit of one unit": (
        pipelines.fluent_bit_of_a_unit, {"nvidia_driver": "580.178.04"}, {"xid-capture", "no-agent"}, set(), False,
    ),
    "Vector": (
        pipelines.vector, {"nvidia_driver": "580.178.04"}, set(), {"xid-capture", "no-agent", "no-gpu-metrics"}, True,
    ),
    "collector's part": (
        pipelines.collector_part, {"cloudwatch_agent": "1.300071.0"}, set(), {"agent-config", "agent-parts"}, False,
    ),
    "Bottlerocket": (
        pipelines.bottlerocket, {"nvidia_driver": "580.126.09"}, {"unknown-system", "no-database"},
        {"module-missing", "sources-differ", "no-package"}, False,
    ),
    "metrics by a script": (
        pipelines.gpumon, {"nvidia_driver": "535.309.01"}, {"xid-capture"}, {"not-held", "module-missing"}, False,
    ),
    "several toolkits": (
        pipelines.several_toolkits, {"nvidia_driver": "580.126.09", "cuda": "12.8", "node_dlami": "20261006"},
        set(), {"sources-differ", "module-missing"}, False,
    ),
    "Rocky by hand": (
        pipelines.rocky_by_hand, {"nvidia_driver": "580.95.05", "cuda": "13.0", "container_toolkit": ""},
        {"unknown-system", "agent-unconfigured", "xid-capture"}, {"module-missing", "nouveau", "daemon-reload"}, False,
    ),
    "libraries of conda": (
        pipelines.conda_libraries, {"nvidia_driver": "580.126.09", "cloudwatch_agent": "1.300071.0"},
        {"environments", "not-held"}, {"xid-capture", "module-missing", "sources-differ"}, True,
    ),
    "script that sends lines itself": (
        pipelines.sends_itself, {"nvidia_driver": "580.126.09", "cuda": "12.0"}, {"no-agent"},
        {"xid-capture", "not-held", "module-missing", "environments"}, True,
    ),
    "Neuron by hand": (
        pipelines.neuron_by_hand, {"neuron": "2.23.9", "efa": "1.43.3"}, set(),
        {"xid-capture", "module-missing", "no-gpu-metrics", "not-held", "nouveau"}, True,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_healthy_image_has_no_problem(name: str, tmp_path: Path) -> None:
    build, versions, expected, others, captures = CASES[name]
    facts = load_facts()
    observation = observe.read_files(build(tmp_path / "root"))
    found = {one.name: one.version for one in observation.found.values()}
    assert versions.items() <= found.items(), found
    types = observe.instance_types(observation, facts)
    findings = observe.findings_of(observation, facts, observe.context_of(observation, facts, types))
    ids = {one.id for one in findings}
    assert [one.text for one in findings if one.level is Level.PROBLEM] == []
    assert expected <= ids
    assert not others & ids
    assert any(way.captures for way in observe.capture_of(observation)) is captures
    assert observe.text(observation, findings)
    assert observe.observed_plan(observation, facts, types, "foreign").document["origin"] == "observed"


def test_another_shipper_is_named_with_its_group(tmp_path: Path) -> None:
    observation = observe.read_files(pipelines.dcgm_exporter(tmp_path / "root"))
    (way,) = [way for way in observe.capture_of(observation) if way.captures]
    assert (way.source, way.group) == ("journal", "/team/gpu/kernel")
    shown = observe.text(observation, [])
    assert "DCGM exporter: metrics of GPUs" in shown
    assert "Fluent Bit (/etc/fluent-bit/fluent-bit.conf): logs → /team/gpu/kernel" in shown


def test_a_script_that_sends_lines_is_named_with_its_group(tmp_path: Path) -> None:
    observation = observe.read_files(pipelines.sends_itself(tmp_path / "root"))
    (way,) = observe.capture_of(observation)
    assert way.text == (
        "kernel log → /gpu/xid / the script's own: captures: the script follows the kernel log and sends its lines"
        " itself"
    )
    (tmp_path / "root/usr/local/sbin/xid2cw").chmod(0o644)
    (way,) = observe.capture_of(observe.read_files(tmp_path / "root"))
    assert way.captures is False and "is not executable" in way.reason


@pytest.mark.parametrize(("build", "recipe", "expected", "others"), [
    (
        pipelines.eks_trees, "eks-1.35-al2023-nvidia", {"cloudwatch_agent: expected 1.300071.0, got nothing"},
        {"driver", "fabric manager", "eks"},
    ),
    (
        pipelines.eks_archive, "eks-1.35-al2023-nvidia",
        {
            "driver: expected 580.178.04 and 595.91.07, got 580.126.09",
            "fabric manager: expected 580.178.04 and 595.91.07, got 580.126.09",
        },
        {"eks"},
    ),
    (pipelines.eks_archive, "eks-1.34-al2023-gpu", {"eks: expected 1.34, got 1.35"}, set()),
    (
        pipelines.pcluster, "pcluster-3.16-ubuntu2404", {"parallelcluster: expected 3.16.3, got 3.12.0"},
        {"node family"},
    ),
])  # fmt: skip
def test_differences_from_a_recipe_for_the_same_node(
    build: Callable[[Path], Path], recipe: str, expected: set[str], others: set[str], tmp_path: Path
) -> None:
    """EKS's trees hold both drivers that the recipe names: none of them is a difference."""
    observation = observe.read_files(build(tmp_path / "root"))
    differences = observe.against(observation, VARIABLES / "recipes" / f"{recipe}.yml")
    assert expected <= set(differences), differences
    assert not others & {line.partition(":")[0] for line in differences}


def test_libraries_of_environments_are_named(tmp_path: Path) -> None:
    observation = observe.read_files(pipelines.conda_libraries(tmp_path / "root"))
    (text,) = [one.text for one in observe.findings_of(observation, load_facts(), None) if one.id == "environments"]
    assert text.endswith("/home/ec2-user/venv (nccl 2.27.3); /opt/conda (cuda-version 12.8, cudnn 9.8.0.87)")
