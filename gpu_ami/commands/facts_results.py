"""The types of what `gpu-ami facts` prints under `--json`; keys are those of variables/facts/."""

from __future__ import annotations

from typing import NotRequired, TypedDict

from gpu_ami.sources import Proposal
from validator.plan_document import Gpu, NeuronDevices


class Source(TypedDict):
    """Where a fact was read, and when (ISO date)."""

    source: str
    date: str
    verified: bool


class GpuModel(Gpu):
    """The GPUs of an instance type, and where their model's facts were read."""

    count: int
    source: str
    date: str
    unverified: NotRequired[bool]


class OtherAccelerator(TypedDict):
    """Accelerators that gpu-ami builds no image for."""

    vendor: str
    name: str
    count: int


class InstanceTypeFacts(TypedDict):
    """`facts TYPE`: an instance type, and the driver branches, CUDA and kernel modules that fit its GPUs.

    not_built_for: why no image can be built for it. mig_profiles: how many instances of a profile a GPU holds.
    """

    instance_type: str
    family: str
    vcpus: int
    memory_gib: float
    architecture: str
    nvswitch: bool
    efa_interfaces: int
    efa_generation: int | None
    gpu: NotRequired[GpuModel]
    neuron: NotRequired[NeuronDevices]
    accelerator: NotRequired[OtherAccelerator]
    not_built_for: NotRequired[str]
    driver_branches: NotRequired[list[str]]
    cuda: NotRequired[list[str]]
    kernel_modules: NotRequired[list[str]]
    mig_profiles: NotRequired[dict[str, int]]
    neuron_releases: NotRequired[list[str]]
    sources: list[Source]


class FamilyFacts(TypedDict):
    """`facts TYPE`: a family of instance types. refused: why no image can be built for it."""

    family: str
    accelerator: str
    model: str
    nvswitch_generation: int
    efa_generation: int
    refused: NotRequired[str]
    imex: NotRequired[bool]
    gsp: NotRequired[bool]
    neuron_driver_ceiling: NotRequired[str]
    instance_types: list[str]
    sources: list[Source]


class DriverFacts(TypedDict):
    """`facts --driver`. gpu_architectures: compute capability → name."""

    driver: str
    branch: str
    releases: list[str]
    kind: str
    end_of_support: str
    kernel_modules: list[str]
    cuda_made_for: list[str]
    cuda_minor_compatible: list[str]
    gpu_architectures: dict[str, str]
    sources: list[Source]


class CudaFacts(TypedDict):
    """`facts --cuda`."""

    cuda: str
    minimum_driver: str
    minimum_driver_minor_compatible: str
    driver_branches_forward_compatible: list[str]
    cudnn: list[str]
    nccl: list[str]
    dcgm: list[str]
    sources: list[Source]


class EfaFacts(TypedDict):
    """`facts --efa`: what an EFA installer holds. bundled: whether it brings the NCCL plugin."""

    efa_installer: str
    libfabric: str
    rdma_core: NotRequired[str]
    bundled: bool
    kernel_module: NotRequired[str]
    regression: NotRequired[str]
    minimum_ofi_nccl: NotRequired[str]
    ofi_nccl: NotRequired[str]
    sources: list[Source]


class FixedKernel(TypedDict):
    """The packages that stay on a series, for a recipe that names it."""

    package: str
    hold: list[str]
    source: str
    date: str


class KernelPackages(TypedDict):
    """The packages of a kernel. hold: those that must not be upgraded. fixed: those that stay on the series."""

    package: str
    headers: str
    hold: list[str]
    modules_extra: NotRequired[str]
    fixed: NotRequired[FixedKernel]


class PublicAmi(TypedDict):
    """A vendor's AMI: owner and name filter, and its SSM public parameter if there is one."""

    owner: str
    name: str
    ssm: NotRequired[str]


class Versions(TypedDict):
    """A range of versions, both ends included; without `last` it is open."""

    first: str
    last: NotRequired[str]


class NvidiaRepository(TypedDict):
    """NVIDIA's package repository of a system, and the versions that it has."""

    name: str
    cuda: Versions
    driver: Versions
    architectures: list[str]
    key: NotRequired[str]
    dist: NotRequired[str]


class ArchiveSuite(TypedDict):
    """A suite of a system's own archive; `keyring`: the system's file with the keys."""

    url: str
    suite: str
    keyring: NotRequired[str]
    key_url: str
    key_fingerprint: str


class OperatingSystemFacts(TypedDict):
    """`facts --os`. kernel_packages: by kernel; source_ami, archive: by architecture."""

    operating_system: str
    id: str
    version: str
    codename: str
    family: str
    packages: str
    ssh_user: str
    python: list[str]
    kernels: list[str]
    kernel_packages: dict[str, KernelPackages]
    end_of_life: str
    architectures: list[str]
    source_ami: dict[str, PublicAmi]
    nvidia_repository: NvidiaRepository
    archive: NotRequired[dict[str, list[ArchiveSuite]]]
    cloudwatch_agent: str
    node_families: list[str]
    cost: NotRequired[str]
    sources: list[Source]


class AgedRow(TypedDict):
    """A row of the facts, when it was read (ISO date) and how many days ago."""

    row: str
    date: str
    days: int
    source: str
    verified: bool


class AgedFacts(TypedDict):
    """`facts --stale DAYS`: rows that were read longer ago, the oldest first."""

    older_than_days: int
    rows: list[AgedRow]


class RefreshedFacts(TypedDict):
    """`facts refresh`: rows for variables/facts. by_hand: what the sources do not say in full; errors: sources that
    did not answer; failed: what failed with the rows under --apply, which were then not kept.
    """

    diff: str
    proposals: list[Proposal]
    by_hand: list[str]
    errors: list[str]
    changed: list[str]
    not_read: list[str]
    written: bool
    failed: list[str]


class AddedFact(TypedDict):
    """`facts --add`: the row, and the file of the site that has it now."""

    table: str
    component: str
    version: str


Facts = (
    InstanceTypeFacts
    | FamilyFacts
    | DriverFacts
    | CudaFacts
    | EfaFacts
    | OperatingSystemFacts
    | AgedFacts
    | RefreshedFacts
    | AddedFact
)
