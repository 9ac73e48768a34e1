"""The planned container toolkit is installed, the runtime is configured for it, and containers see the GPUs."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan import OBSERVED, planned_instance_type
from validator.plan_document import ContainerToolkit, PlanDocument, section
from validator.probes import MachineUnderTest, containers, nvidia_smi, packages, require_driver

pytestmark = [pytest.mark.planned("container_toolkit"), pytest.mark.beside_live]

_RUNTIME = "nvidia-container-runtime"
_HOOK = "nvidia-container-runtime-hook"
_CDI = "nvidia.com/gpu"
_DAEMON = "/etc/docker/daemon.json"
_RUNTIMES = "/etc/docker-runtimes.d"
# Directories of CDI specifications, in this order (container-device-interface SPEC.md); the second is on tmpfs.
_SPECIFICATIONS = "/etc/cdi /var/run/cdi"


def version(text: str) -> str:
    """The version in the output of `nvidia-ctk --version`; "" if there is none."""
    match = re.search(r"^NVIDIA Container Toolkit CLI version (\S+)", text, re.MULTILINE)
    return match[1] if match else ""


def docker_runtime(text: str) -> str | None:
    """Program of the runtime `nvidia` in daemon.json; None if it has none. ValueError: not a JSON object."""
    settings = json.loads(text or "{}")
    if not isinstance(settings, dict):
        raise ValueError(f"expected a JSON object, got {type(settings).__name__}")
    path = settings.get("runtimes", {}).get("nvidia", {}).get("path")
    return None if path is None else str(path)


@pytest.mark.needs("promise")
def test_toolkit_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """nvidia-ctk is the planned version."""
    shown = output(host, "nvidia-ctk --version")
    observe.same(
        version(shown), section(plan, "container_toolkit", ContainerToolkit)["version"], "nvidia-ctk --version"
    )


@pytest.mark.needs("observed")
def test_runtime_knows_the_toolkit(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The container runtime's configuration has the runtime `nvidia`. Without it no container gets a GPU.

    Docker without it still gives GPUs for --gpus, if the toolkit's hook is in its PATH (moby, daemon/nvidia_linux.go):
    an image as found may rely on that.
    """
    runtime = section(plan, "container_toolkit", ContainerToolkit)["runtime"]
    if host.run("test -x /usr/bin/%s", _RUNTIME).rc != 0:
        observe.fail(f"/usr/bin/{_RUNTIME} is missing or not executable: {runtime} cannot give containers a GPU")
    if runtime == "docker":
        source, program = _DAEMON, docker_runtime(_daemon_text(host, observe)) or _of_amazon_s_docker(host)
    else:
        source, program = "containerd config dump", _program(_containerd(host, observe))
    observe(program, _RUNTIME)
    of_gpus = program is None and runtime == "docker" and plan.get("origin") == OBSERVED
    if of_gpus and host.run("command -v %s", _HOOK).rc == 0:
        unproven(f"{source} has no runtime nvidia: containers get GPUs by --gpus alone, not by --runtime nvidia")
    if program is None or program.rpartition("/")[2] != _RUNTIME:
        observe.fail(f"{source}: runtime nvidia: expected {_RUNTIME}, got {program if program is not None else 'none'}")


def _of_amazon_s_docker(host: Any) -> str | None:
    """Amazon's docker package starts dockerd with a runtime for each program in that folder, as on ECS's AMIs."""
    shown = host.run(f"grep -so /[a-z/]*{_RUNTIME} {_RUNTIMES}/nvidia", pure=True).stdout.split()
    return str(shown[0]) if shown else None


def _program(config: containers.ContainerdConfig) -> str | None:
    return str(config.runtimes["nvidia"].get("BinaryName", "")) if "nvidia" in config.runtimes else None


def _daemon_text(host: Any, observe: Observe) -> str:
    """daemon.json; "" if there is none."""
    text = str(host.run(f"cat {_DAEMON}", pure=True).stdout)
    try:
        docker_runtime(text)
    except ValueError as error:
        observe.fail(f"dockerd cannot read {_DAEMON}: {error}")
    return text


def _containerd(host: Any, observe: Observe) -> containers.ContainerdConfig:
    """The effective configuration; UNPROVEN on a node that has not been configured yet."""
    _require_configured_node(host)
    try:
        return containers.dumped(host)
    except containers.Unanswered as error:
        observe.fail(str(error))


def _require_configured_node(host: Any) -> None:
    # nodeadm writes the configuration when the node joins its cluster (nodeadm/internal/containerd).
    if host.run("test -x /usr/bin/nodeadm").rc == 0 and host.run("test -e /etc/containerd/config.toml").rc != 0:
        unproven("nodeadm configures containerd when the node joins a cluster, and this one has joined none")


@pytest.mark.needs("promise")
def test_default_runtime_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The default runtime is configured, and is nvidia on an EKS node, runc elsewhere.

    Where files of containerd replace each other's sections, runc is lost, and no container starts.
    """
    expected = "nvidia" if {"node_eks", "node_eks_ubuntu"} & plan.keys() else "runc"
    if section(plan, "container_toolkit", ContainerToolkit)["runtime"] == "docker":
        settings = json.loads(_daemon_text(host, observe) or "{}")
        observe.same(settings.get("default-runtime", "runc"), expected, f"default-runtime ({_DAEMON})")
        return
    config = _containerd(host, observe)
    observe([config.default_runtime, sorted(config.runtimes)], expected)
    if config.default_runtime not in config.runtimes:
        observe.fail(
            f"containerd config dump: the default runtime {config.default_runtime or '(none)'} is not configured; "
            f"runtimes: {', '.join(sorted(config.runtimes)) or 'none'}"
        )
    observe.same(config.default_runtime, expected, "default_runtime_name (containerd config dump)")


@pytest.mark.needs("observed")
def test_systemd_manages_cgroups(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """systemd alone manages cgroups, also those of containers with GPUs, whose runtime has a setting of its own.

    A second manager makes nodes unstable under memory pressure (Kubernetes, container runtimes, cgroup drivers). Judged
    are the default runtime and nvidia: containerd 2 keeps its own runc beside nodeadm's nvidia, and no pod asks for it.
    """
    if section(plan, "container_toolkit", ContainerToolkit)["runtime"] == "docker":
        done = host.run("docker info --format '{{.CgroupDriver}}'", pure=True)
        if done.rc != 0:
            observe.fail(f"docker info: {(done.stderr or done.stdout).strip()[-300:]}")
        observe.same(done.stdout.strip(), "systemd", "CgroupDriver (docker info)")
        return
    config = _containerd(host, observe)
    shown = {name: options.get("SystemdCgroup") for name, options in sorted(config.runtimes.items())}
    used = {name: value for name, value in shown.items() if name in ("nvidia", config.default_runtime)}
    observe(shown, f"true for {' and '.join(used) or 'nvidia'}")
    wrong = [f"{name}: {value}" for name, value in used.items() if value is not True]
    if wrong or not used:
        observe.fail(f"SystemdCgroup (containerd config dump): expected true, got {', '.join(wrong) or 'no runtime'}")


@pytest.mark.needs("promise")
def test_runtime_reads_cdi(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The container runtime itself takes devices by CDI, from the folder in which the specification is written."""
    _require_cdi(plan)
    if section(plan, "container_toolkit", ContainerToolkit)["runtime"] == "docker":
        settings = json.loads(_daemon_text(host, observe) or "{}")
        observe.same(settings.get("features", {}).get("cdi"), True, f"features.cdi ({_DAEMON})")
        return
    config = _containerd(host, observe)
    observe([config.cdi, config.cdi_folders], [True, _SPECIFICATIONS.split()])
    if config.cdi is None:
        unproven("this containerd knows no CDI (it came with 1.7): the runtime nvidia reads the specifications")
    folders = {folder.replace("/var/run", "/run", 1) for folder in config.cdi_folders}
    missing = [folder for folder in _SPECIFICATIONS.split() if folder.replace("/var/run", "/run", 1) not in folders]
    if config.cdi is not True or missing:
        observe.fail(
            f"containerd config dump: expected enable_cdi and cdi_spec_dirs {_SPECIFICATIONS}, got enable_cdi "
            f"{str(config.cdi).lower()}, cdi_spec_dirs {' '.join(config.cdi_folders) or 'none'}"
        )


@pytest.fixture(scope="module")
def started(host: Any, plan: PlanDocument, machine: MachineUnderTest) -> containers.Started:
    """The containers run once. UNPROVEN without a driver or GPUs, on a node that was not configured yet, and with MIG:
    CUDA uses one MIG device a process, and a container that asks for all has no full GPU."""
    planned = section(plan, "container_toolkit", ContainerToolkit)
    if not planned_instance_type(plan, machine.instance_type)["gpu_count"]:
        unproven(f"{machine.instance_type} has no GPU")
    require_driver(host)
    if planned["runtime"] == "containerd":
        _require_configured_node(host)
    listed = host.run("nvidia-smi --query-gpu=uuid --format=csv,noheader")
    uuids = [line.strip().removeprefix("GPU-") for line in listed.stdout.splitlines() if line.startswith("GPU-")]
    if listed.rc != 0 or not uuids:
        unproven("nvidia-smi does not answer: see nvidia_driver::test_every_promised_gpu_is_there")
    if divided := _divided(host, machine):
        indices = ", ".join(str(gpu.index) for gpu in divided)
        unproven(
            f"GPU {indices} in MIG mode: containers are tried on full GPUs; see test_cdi_lists_every_gpu and compute"
        )
    runtime = containers.runtime(host)
    try:
        return containers.Started(containers.probe(host, planned["runtime"]), "", uuids, runtime)
    except containers.Unanswered as error:
        return containers.Started(None, str(error), uuids, runtime)


_WAYS = pytest.mark.parametrize("way", ["runtime", "cdi"])


@pytest.mark.needs("observed")
@_WAYS
@pytest.mark.live
@pytest.mark.tier("T3")
def test_container_computes_on_every_gpu(
    plan: PlanDocument, started: containers.Started, observe: Observe, way: str
) -> None:
    """A container that requests all GPUs, by the runtime nvidia or by CDI, has exactly those, and computes right."""
    _judge(plan, started, observe, way, started.uuids)


@pytest.mark.needs("observed")
@pytest.mark.live
@pytest.mark.tier("T3")
def test_container_has_no_other_gpu(plan: PlanDocument, started: containers.Started, observe: Observe) -> None:
    """A container that requests one GPU has that one alone. Otherwise two jobs share a GPU without knowing."""
    if len(started.uuids) == 1:
        unproven("the machine has one GPU")
    _judge(plan, started, observe, "one", started.uuids[:1])


def _judge(plan: PlanDocument, started: containers.Started, observe: Observe, way: str, expected: list[str]) -> None:
    if way == "cdi":
        _require_cdi(plan)
    if why := started.not_simulated(way):
        unproven(why)
    container = started.way(way)
    observe([*started.text(way), list(container.nodes)], f"{len(expected)} GPUs compute right")
    if container.error and container.before is None:
        observe.fail(f"container by {way} ({container.how}): {container.error}")
    if fault := containers.defect(container.before, expected):
        observe.fail(f"container by {way} ({container.how}): {fault}")
    if len(container.nodes) != len(expected):
        observe.fail(
            f"container by {way} ({container.how}): expected {len(expected)} GPUs, got {list(container.nodes)}"
        )


@pytest.mark.needs("observed")
@_WAYS
@pytest.mark.live
@pytest.mark.tier("T3")
def test_container_keeps_its_gpus(plan: PlanDocument, started: containers.Started, observe: Observe, way: str) -> None:
    """A running container still has its GPUs after `systemctl daemon-reload`, which installations of packages do.

    Where runc does not know the devices, systemd takes them away ("Failed to initialize NVML: Unknown Error").
    """
    if way == "cdi":
        _require_cdi(plan)
    if why := started.not_simulated(way):
        unproven(why)
    container = started.way(way)
    if container.before is None or containers.defect(container.before, started.uuids):
        unproven(f"the container did not compute before: see test_container_computes_on_every_gpu[{way}]")
    observe(started.text(way), "computes right after systemctl daemon-reload")
    fault = container.error if container.after is None else containers.defect(container.after, started.uuids)
    if fault:
        observe.fail(f"after systemctl daemon-reload, container by {way} ({container.how}): {fault}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_specification_is_written_at_boot(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The CDI specification is generated at each boot. One from the build would name other GPUs."""
    _require_cdi(plan)
    unit = "nvidia-cdi-refresh.service"
    enabled = host.run("systemctl is-enabled %s", unit).stdout.strip()
    static = host.run("grep -ls %s /etc/cdi/*.yaml /etc/cdi/*.json", _CDI).stdout.split()
    observe([enabled, static], ["enabled", []])
    if enabled != "enabled":
        observe.fail(f"{unit} is {enabled or 'not installed'}, expected enabled")
    if static:
        observe.fail(
            f"{', '.join(static)}: static CDI specification, expected none: it names the GPUs of the build instance"
        )


@pytest.mark.needs("promise")
@pytest.mark.tier("T3")
def test_cdi_lists_every_gpu(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """CDI lists each GPU of the instance type by index and by UUID, and the device `all`.

    Of a GPU in MIG mode it lists the MIG devices instead, as `0:1` and by UUID: nvidia-ctk leaves the GPU itself out.
    """
    _require_cdi(plan)
    count = planned_instance_type(plan, machine.instance_type)["gpu_count"]
    done = host.run("nvidia-ctk cdi list")
    names = re.findall(rf"^{re.escape(_CDI)}=(\S+)\s*$", done.stdout, re.MULTILINE)
    divided = {gpu.index: len(gpu.migs) for gpu in _divided(host, machine)}
    expected = {str(index) for index in range(count) if index not in divided} | ({"all"} if count else set())
    expected |= {f"{index}:{number}" for index, migs in divided.items() for number in range(migs)}
    uuids = [name for name in names if name.startswith(("GPU-", "MIG-"))]
    devices = len(expected - {"all"})
    shown = f"{count} GPUs" + (f", {len(divided)} of them in MIG mode" if divided else "")
    observe(names, f"{', '.join(sorted(expected - {'all'})) or 'none'}, their UUIDs, all")
    missing = sorted(expected - set(names))
    unexpected = sorted(set(names) - expected - set(uuids))
    if missing or unexpected or len(uuids) != devices:
        observe.fail(
            f"nvidia-ctk cdi list: {machine.instance_type} has {shown}; missing {', '.join(missing) or 'none'}, "
            f"unexpected {', '.join(unexpected) or 'none'}, {len(uuids)} by UUID"
        )


def _divided(host: Any, machine: MachineUnderTest) -> list[nvidia_smi.Listed]:
    """The GPUs in MIG mode with their MIG devices; [] where nvidia-smi does not answer, as another check says."""
    try:
        on = {gpu.index for gpu in machine.gpus if gpu.mig == "Enabled"}
    except ValueError:
        return []
    return (
        [gpu for gpu in nvidia_smi.listed(host.run("nvidia-smi -L", pure=True).stdout) if gpu.index in on] if on else []
    )


@pytest.mark.needs("promise")
@pytest.mark.tier("T3")
def test_device_nodes_are_there(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """Every device node in the CDI specification exists, with the specified numbers. A container does not start with a
    missing node, and from toolkit 1.19 on it gets the node of the numbers that the specification has.
    """
    import yaml

    _require_cdi(plan)
    text = output(host, f"for f in $(grep -lsr {_CDI} {_SPECIFICATIONS}); do cat $f; echo; echo ---; done")
    edits = [
        edit
        for document in yaml.safe_load_all(text)
        if isinstance(document, dict)
        for edit in [
            document.get("containerEdits"),
            *(device.get("containerEdits") for device in document.get("devices", [])),
        ]
    ]
    specified = [node for edit in edits if edit for node in edit.get("deviceNodes", [])]
    nodes = sorted({node.get("hostPath", node["path"]) for node in specified})
    observe(nodes, "existing device nodes")
    if not nodes and planned_instance_type(plan, machine.instance_type)["gpu_count"] == 0:
        return
    if not nodes:
        observe.fail(f"no CDI specification of {_CDI} in {_SPECIFICATIONS} names a device node")
    existing = host.run(f"ls -d -- {' '.join(['%s'] * len(nodes))}", *nodes).stdout.split()
    missing = sorted(set(nodes) - set(existing))
    if missing:
        observe.fail(f"the CDI specification names missing device nodes: {', '.join(missing)}")
    numbers = [node for node in specified if "major" in node]
    others = _other_numbers(host, numbers) if numbers else []
    if others:
        observe.fail(f"the CDI specification is of an earlier start of the driver: {', '.join(others)}")


def _other_numbers(host: Any, nodes: list[dict[str, Any]]) -> list[str]:
    """Device nodes whose major and minor numbers are not the specified ones."""
    specified = {node.get("hostPath", node["path"]): (node["major"], node.get("minor", 0)) for node in nodes}
    shown = host.run(f"stat -c '%%n %%t %%T' -- {' '.join(['%s'] * len(specified))}", *specified).stdout
    rows = [line.split() for line in shown.splitlines()]
    actual = {row[0]: (int(row[1], 16), int(row[2], 16)) for row in rows if len(row) == 3}
    return [
        f"{path} is {actual[path][0]}:{actual[path][1]}, specified {numbers[0]}:{numbers[1]}"
        for path, numbers in sorted(specified.items())
        if actual.get(path, numbers) != numbers
    ]


def _require_cdi(plan: PlanDocument) -> None:
    planned = section(plan, "container_toolkit", ContainerToolkit)
    if not planned["cdi"]:
        unproven(f"container toolkit {planned['version']} is planned without CDI")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed packages of the toolkit have exactly the planned versions."""
    packages.check_installed(host, plan, "container_toolkit", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The packages of the toolkit are held, so a system upgrade does not change them."""
    packages.check_held(host, plan, "container_toolkit", observe)
