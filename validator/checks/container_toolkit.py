"""The planned container toolkit is installed, the runtime is configured for it, and CDI lists the GPUs."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan import planned_instance_type
from validator.plan_document import ContainerToolkit, PlanDocument, section
from validator.probes import MachineUnderTest, packages

pytestmark = [pytest.mark.planned("container_toolkit"), pytest.mark.beside_live]

_RUNTIME = "nvidia-container-runtime"
_CDI = "nvidia.com/gpu"
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


def containerd_runtime(text: str) -> str | None:
    """Program of the runtime `nvidia` in containerd's configuration (version 2 or 3); None if it has none."""
    for plugin in tomllib.loads(text).get("plugins", {}).values():
        runtimes = plugin.get("containerd", {}).get("runtimes", {}) if isinstance(plugin, dict) else {}
        if "nvidia" in runtimes:
            return str(runtimes["nvidia"].get("options", {}).get("BinaryName", ""))
    return None


def test_toolkit_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """nvidia-ctk is the planned version."""
    shown = output(host, "nvidia-ctk --version")
    observe.same(
        version(shown), section(plan, "container_toolkit", ContainerToolkit)["version"], "nvidia-ctk --version"
    )


def test_runtime_knows_the_toolkit(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The container runtime's configuration has the runtime `nvidia`. Without it no container gets a GPU."""
    runtime = section(plan, "container_toolkit", ContainerToolkit)["runtime"]
    if host.run("test -x /usr/bin/%s", _RUNTIME).rc != 0:
        observe.fail(f"/usr/bin/{_RUNTIME} is missing or not executable: {runtime} cannot give containers a GPU")
    if runtime == "docker":
        source, program = "/etc/docker/daemon.json", _docker(host, observe)
    elif host.run("test -x /usr/bin/nodeadm").rc == 0 and host.run("test -e /etc/containerd/config.toml").rc != 0:
        # nodeadm writes the configuration when the node joins its cluster (nodeadm/internal/containerd).
        unproven("nodeadm configures containerd when the node joins a cluster, and this one has joined none")
    else:
        source, program = "containerd config dump", _containerd(host, observe)
    observe(program, _RUNTIME)
    if program is None or program.rpartition("/")[2] != _RUNTIME:
        observe.fail(f"{source}: runtime nvidia: expected {_RUNTIME}, got {program if program is not None else 'none'}")


def _docker(host: Any, observe: Observe) -> str | None:
    text = host.run("cat /etc/docker/daemon.json").stdout
    try:
        return docker_runtime(text)
    except ValueError as error:
        observe.fail(f"dockerd cannot read /etc/docker/daemon.json: {error}")


def _containerd(host: Any, observe: Observe) -> str | None:
    done = host.run("containerd config dump")
    try:
        if done.rc == 0:
            return containerd_runtime(done.stdout)
        reason = done.stderr.strip() or f"exit status {done.rc}"
    except ValueError as error:
        reason = str(error)
    observe.fail(f"containerd config dump: {reason}")


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


@pytest.mark.tier("T3")
def test_cdi_lists_every_gpu(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """CDI lists each GPU of the instance type by index and by UUID, and the device `all`."""
    _require_cdi(plan)
    count = planned_instance_type(plan, machine.instance_type)["gpu_count"]
    done = host.run("nvidia-ctk cdi list")
    names = re.findall(rf"^{re.escape(_CDI)}=(\S+)$", done.stdout, re.MULTILINE)
    observe(names, f"0 to {count - 1}, their UUIDs, all")
    expected = {str(index) for index in range(count)} | ({"all"} if count else set())
    missing = sorted(expected - set(names))
    unexpected = sorted(name for name in names if name.isdecimal() and name not in expected)
    uuids = [name for name in names if name.startswith("GPU-")]
    if missing or unexpected or len(uuids) != count:
        observe.fail(
            f"nvidia-ctk cdi list: {machine.instance_type} has {count} GPUs; missing {', '.join(missing) or 'none'}, "
            f"unexpected {', '.join(unexpected) or 'none'}, {len(uuids)} by UUID"
        )


@pytest.mark.tier("T3")
def test_device_nodes_are_there(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """Every device node in the CDI specification exists. A container does not start with a missing node."""
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
    nodes = sorted(
        {node.get("hostPath", node["path"]) for edit in edits if edit for node in edit.get("deviceNodes", [])}
    )
    observe(nodes, "existing device nodes")
    if not nodes and planned_instance_type(plan, machine.instance_type)["gpu_count"] == 0:
        return
    if not nodes:
        observe.fail(f"no CDI specification of {_CDI} in {_SPECIFICATIONS} names a device node")
    existing = host.run(f"ls -d -- {' '.join(['%s'] * len(nodes))}", *nodes).stdout.split()
    missing = sorted(set(nodes) - set(existing))
    if missing:
        observe.fail(f"the CDI specification names missing device nodes: {', '.join(missing)}")


def _require_cdi(plan: PlanDocument) -> None:
    planned = section(plan, "container_toolkit", ContainerToolkit)
    if not planned["cdi"]:
        unproven(f"container toolkit {planned['version']} is planned without CDI")


@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed packages of the toolkit have exactly the planned versions."""
    packages.check_installed(host, plan, "container_toolkit", observe)


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The packages of the toolkit are held, so a system upgrade does not change them."""
    packages.check_held(host, plan, "container_toolkit", observe)
