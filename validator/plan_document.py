"""The types of plan.json's content. Keys and types here are the contract of Packer, Ansible, local region and checks.

docs/schemas/plan.json is generated from these types and from those that components name for their sections
(gpu_ami/recipes/components); the docstring of a class is the description of its section there. What a check reads has
its type here. A section of a component that the base AMI provides has `version` and `provided_by` alone (fabric manager
and IMEX also `instance_types`, the driver what is said of its branches); every other key of it is then missing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict, TypeVar, cast, overload

from validator.agent_document import AgentConfig, AgentGpuConfig


class RecipeFile(TypedDict):
    """The recipe that the plan was resolved from."""

    file: str
    sha256: str


class OperatingSystem(TypedDict):
    """The image's operating system; `python` is the interpreter that Ansible uses, `end_of_life` an ISO date.

    `family`: debian or redhat. `root_device` of its AMIs, if it is none of ROOT_DEVICES.
    """

    id: str
    version: str
    codename: str
    family: str
    ssh_user: str
    python: str
    end_of_life: str
    root_device: NotRequired[str]


# By the id of os-release: Ubuntu's and RHEL's AMIs name their root device differently from all others.
ROOT_DEVICES = {"ubuntu": "/dev/sda1", "rhel": "/dev/sda1"}


def root_device(system: Mapping[str, Any]) -> str:
    """The root device of a system's AMIs, by the system's section of a plan or its row of the facts."""
    return str(system.get("root_device") or ROOT_DEVICES.get(system["id"], "/dev/xvda"))


def package_system(system: Mapping[str, Any]) -> Literal["deb", "rpm"]:
    """Packages of a system, by its section of a plan or its row of the facts. KeyError: of another family."""
    return _PACKAGE_SYSTEMS[system["family"]]


_PACKAGE_SYSTEMS: Mapping[str, Literal["deb", "rpm"]] = {"debian": "deb", "redhat": "rpm"}


class Node(TypedDict):
    """The node family (ec2, eks, ecs, parallelcluster, dlami) and the version of its orchestrator or release.

    `variant`: of its base AMI (nvidia: EKS's own accelerated AMI).
    """

    family: str
    version: NotRequired[str]
    variant: NotRequired[str]


class SourceAmi(TypedDict, total=False):
    """The AMI to start from: an id, or owner and name filter (newest wins), with an SSM public parameter if any."""

    id: str
    owner: str
    name: str
    ssm: str


class Builder(TypedDict):
    """The instance that builds the image."""

    instance_type: str
    root_volume_gib: int


class MaxClockMhz(TypedDict):
    """The highest clocks of a GPU."""

    graphics: int
    sm: int
    memory: int
    video: int


class Gpu(TypedDict):
    """The GPU model of an instance type; `pci`: addresses of all its GPUs, where they are known.

    `fraction_of`: name of the board of which it is a part (a vGPU: `NVIDIA L4-3Q` of an `NVIDIA L4`).
    """

    vendor: str
    name: str
    architecture: str
    compute_capability: str
    memory_mib: int
    power_limit_w: int
    max_clock_mhz: MaxClockMhz
    pcie_gen: int
    pcie_width: int
    pci: NotRequired[list[str]]
    fraction_of: NotRequired[str]


class NeuronDevices(TypedDict):
    """The Neuron devices of an instance type; `cores` of each device."""

    name: str
    count: int
    cores: int


class InstanceType(TypedDict):
    """An instance type that the image is for, and what is known of its hardware."""

    name: str
    gpu_count: int
    nvswitch: bool
    efa_interfaces: int
    vcpus: int
    memory_gib: int
    gpu: NotRequired[Gpu]
    neuron: NotRequired[NeuronDevices]


class Kernel(TypedDict):
    """The kernel series and its packages; {release} in `headers` is what `uname -r` prints.

    follows: series that source AMIs of the planned name boot: the image keeps the one that it finds.
    """

    version: str
    package: str
    headers: str
    hold: list[str]
    follows: NotRequired[list[str]]


class FurtherRepository(TypedDict):
    """Another suite of an archive, signed by a key in the same keyring; `packages`: planned packages that are there."""

    url: str
    suite: str
    components: list[str]
    key_url: str
    key_fingerprint: str
    keyring: str
    packages: list[str]


class Repository(TypedDict):
    """A package repository; `key_fingerprint`: 40 hex digits. `signed_index` false: only its packages are signed.

    `keyring`: a file of the operating system that holds the key (its own archive); else the key is at `key_url`.
    """

    url: str
    keyring: NotRequired[str]
    further: NotRequired[list[FurtherRepository]]
    suite: NotRequired[str]
    components: NotRequired[list[str]]
    key_url: NotRequired[str]
    key_fingerprint: NotRequired[str]
    signed_index: NotRequired[bool]


class Component(TypedDict):
    """What every component has; `provided_by`: the base AMI that brings it, so that its role does not run."""

    version: str
    provided_by: NotRequired[str]


class PackagedComponent(Component):
    """A component from a package repository; `packages`: name → exact version (`*`: any build of it)."""

    packages: NotRequired[dict[str, str]]
    repository: NotRequired[Repository]


class DriverBranch(TypedDict):
    """One of a base AMI's drivers: folder of its files, the list by which it is selected, the types that take it."""

    version: str
    tree: str
    open_list: str
    instance_types: list[str]


class DriverOfBase(TypedDict, total=False):
    """What a plan says of the drivers of a base AMI that takes one of several at the first boot.

    `selects_at_boot`: its units. `without_gsp`: instance types where it turns GSP firmware off. `fractions`: instance
    types with a vGPU, which takes GRID's build of the module (flavour `grid`) and a licence.
    """

    flavour: str
    flavour_by_instance_type: dict[str, str]
    branches: dict[str, DriverBranch]
    selects_at_boot: list[str]
    without_gsp: list[str]
    fractions: list[str]


class NvidiaDriver(PackagedComponent):
    """The driver; flavour `boot` carries both kernel modules and loads one by instance type or PCI id.

    `branches`, `selects_at_boot`, `without_gsp`, `fractions`: of a base AMI that takes one of several drivers at the
    first boot; `version` is then the oldest that a planned instance type takes.
    `source` distribution: the operating system's own archive. `module`: name of the module's file, if not nvidia.
    `persistence_daemon`: its version, if not the driver's. `source` grid: NVIDIA's GRID driver, by the installer at
    `url`, with the recipe's `sha256` of it; `licence_settings`: of /etc/nvidia/gridd.conf. `options`: of the module.
    """

    flavour: NotRequired[str]
    package: NotRequired[str]
    package_version: NotRequired[str]
    modules: NotRequired[dict[str, str]]
    flavour_by_instance_type: NotRequired[dict[str, str]]
    flavour_by_pci_id: NotRequired[dict[str, str]]
    gsp: NotRequired[bool]
    options: NotRequired[dict[str, str]]
    source: NotRequired[str]
    module: NotRequired[str]
    persistence_daemon: NotRequired[str]
    url: NotRequired[str]
    sha256: NotRequired[str]
    licence_settings: NotRequired[dict[str, str]]
    system_packages: NotRequired[list[str]]
    kernel_packages: NotRequired[dict[str, list[str]]]
    branches: NotRequired[dict[str, DriverBranch]]
    selects_at_boot: NotRequired[list[str]]
    without_gsp: NotRequired[list[str]]
    fractions: NotRequired[list[str]]


class DriverCompanion(PackagedComponent):
    """Fabric manager or IMEX, of exactly the driver's version, and the instance types that need it."""

    instance_types: list[str]
    package: NotRequired[str]
    package_version: NotRequired[str]
    nvlsm_instance_types: NotRequired[list[str]]
    system_packages: NotRequired[list[str]]
    kernel_packages: NotRequired[dict[str, list[str]]]


class Cuda(PackagedComponent):
    """The CUDA toolkit; `compatibility` with the driver: native, minor or forward."""

    compatibility: NotRequired[str]


class EfaContents(TypedDict, total=False):
    """Versions inside an EFA installer."""

    kernel_module: str
    libfabric: str
    rdma_core: str
    ofi_nccl: str


class Efa(Component):
    """The EFA installer; `unwanted`: packages of it that are not installed."""

    mode: NotRequired[str]
    url: NotRequired[str]
    signature_url: NotRequired[str]
    key_url: NotRequired[str]
    key_fingerprint: NotRequired[str]
    contents: NotRequired[EfaContents]
    unwanted: NotRequired[list[str]]


class SourceBuild(Component):
    """A component that is built from a git tag; the commit is what is verified."""

    url: NotRequired[str]
    tag: NotRequired[str]
    commit: NotRequired[str]


class NcclTests(SourceBuild):
    """nccl-tests, and what it is built with: NCCL's headers of the same version, GPUs by their compute capability."""

    packages: NotRequired[dict[str, str]]
    repository: NotRequired[Repository]
    capabilities: NotRequired[list[str]]


class Gds(PackagedComponent):
    """GPUDirect Storage; `version` is of nvidia-fs. tools: of gds-tools and libcufile. build: make's variables."""

    tools: NotRequired[str]
    build: NotRequired[dict[str, int]]


class ContainerToolkit(PackagedComponent):
    """The NVIDIA container toolkit and the container runtime that it configures."""

    runtime: NotRequired[str]
    runtime_package: NotRequired[str]
    cdi: NotRequired[bool]


class Lustre(TypedDict):
    """The FSx for Lustre client."""

    package: str
    repository: NotRequired[Repository]


class Tuning(TypedDict):
    """Limits, sysctl, application clocks (GPU → memory and graphics MHz) and MIG profiles by instance type."""

    memlock: NotRequired[str]
    sysctl: dict[str, str]
    clocks: dict[str, list[int]]
    mig: dict[str, str]


class NodeRole(TypedDict):
    """The section of a node family's own role; `has_driver`: the base AMI brings the NVIDIA driver."""

    version: str
    accelerator: NotRequired[str]
    has_driver: NotRequired[bool]


class AgentPackage(TypedDict):
    """The CloudWatch agent's package."""

    version: str
    url: str
    signature_url: str
    key_url: str
    key_fingerprint: str


class CloudWatchAgent(AgentPackage):
    """The agent's package and configuration; `gpu_config` is appended where there is a GPU (empty: no GPU metrics)."""

    config: AgentConfig
    gpu_config: AgentGpuConfig


class EventParser(TypedDict):
    """Where events are written; `seed_metrics_s`: period of the former system's metrics, if they are published."""

    raw_log: str
    json_log: str
    log_buf_len: NotRequired[str]
    seed_metrics_s: NotRequired[int]


class Publisher(TypedDict):
    """A section with a log of its own, which the agent publishes."""

    log: str
    log_group: str


class NeuronMonitor(TypedDict):
    """How neuron-monitor's reports are published; `dimensions` in the order of instance, type, image, runtime tag."""

    namespace: str
    dimensions: list[str]
    high_resolution: bool
    interval_s: int
    log: str
    log_group: str


class DrainHook(TypedDict):
    """What runs scripts at notices of interruption; `timeout_s`: for all scripts of a notice together."""

    notices: list[str]
    timeout_s: int
    log: str
    log_group: str


class Hygiene(TypedDict):
    """The last role of a build; it takes no variables."""


class Telemetry(TypedDict):
    """What the image publishes; `absent`: instance type → measurements that its GPUs never have."""

    profile: str
    interval_s: int
    namespace: str
    measurements: list[str]
    absent: NotRequired[dict[str, list[str]]]
    raw_log_group: str
    json_log_group: str
    log_stream: str
    retention_days: NotRequired[int]


class Citation(TypedDict):
    """A fact that the plan relies on, where it was read and when (ISO date)."""

    fact: str
    source: str
    date: str
    unverified: bool


class Site(TypedDict):
    """A site's own parts: the digest over its roles, checks and faults, which lie in site/ beside plan.json."""

    digest: str


class ResolvedPlan(TypedDict):
    """A resolved recipe, as it is carried out on AWS itself; beside these keys the sections of what it installs.

    `boot_seconds`: the longest boot that the proof accepts, where the recipe sets it.
    """

    schema: str
    image: str
    description: str
    flag: str
    recipe: RecipeFile
    os: OperatingSystem
    architecture: str
    node: Node
    source_ami: SourceAmi
    build: Builder
    instance_types: list[InstanceType]
    roles: list[str]
    kernel: Kernel
    cloudwatch_agent: CloudWatchAgent
    event_parser: EventParser
    hygiene: Hygiene
    telemetry: Telemetry
    sources: list[Citation]
    notes: list[str]
    boot_seconds: NotRequired[int]
    unverified: NotRequired[dict[str, str]]


class ObservedImage(TypedDict):
    """How an image was observed: request of the reading program, absent components and what shows that, ways of Xids.

    `agent_from`: files with the agent's configuration.
    """

    request: dict[str, list[list[str]]]
    absent: list[str]
    absent_by: list[str]
    captures: list[dict[str, object]]
    agent_from: list[str]


class PlanDocument(ResolvedPlan):
    """plan.json: a resolved recipe, the only place where a version, URL or path stands once a run has begun.

    `origin` observed: not of a recipe, but of what an image has; it promises nothing.
    """

    digest: str
    site: NotRequired[Site]
    origin: NotRequired[str]
    observed: NotRequired[ObservedImage]


Section = TypeVar("Section", bound=Mapping[str, object])


@overload
def section(document: ResolvedPlan, name: str) -> Mapping[str, object]: ...
@overload
def section(document: ResolvedPlan, name: str, kind: type[Section]) -> Section: ...
def section(document: ResolvedPlan, name: str, kind: type[Section] | None = None) -> Mapping[str, object] | Section:
    """The section of a role, as a value of its type (`kind`); empty where the plan has none."""
    return cast(Mapping[str, Section], document).get(name, {})
