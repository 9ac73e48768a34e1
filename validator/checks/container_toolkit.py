"""The planned container toolkit is there, the container runtime knows it, and CDI names this machine's GPUs."""

from __future__ import annotations

import json
import re
import tomllib
from typing import Any

import pytest

from validator import packages
from validator.machine import MachineUnderTest
from validator.observe import Observe, output, unproven

pytestmark = pytest.mark.planned("container_toolkit")

_RUNTIME = "nvidia-container-runtime"
_CDI = "nvidia.com/gpu"
# Where CDI looks, in this order (container-device-interface SPEC.md); the second is gone with a boot.
_SPECIFICATIONS = "/etc/cdi /var/run/cdi"


def version(text: str) -> str:
    """The version in nvidia-ctk's own words; "" where it names none."""
    found = re.search(r"^NVIDIA Container Toolkit CLI version (\S+)", text, re.MULTILINE)
    return found[1] if found else ""


def docker_runtime(text: str) -> str | None:
    """Program of the runtime nvidia in a daemon.json; None where it has none. ValueError: that is no JSON object."""
    settings = json.loads(text or "{}")
    if not isinstance(settings, dict):
        raise ValueError(f"a JSON object is expected, found {type(settings).__name__}")
    path = settings.get("runtimes", {}).get("nvidia", {}).get("path")
    return None if path is None else str(path)


def containerd_runtime(text: str) -> str | None:
    """Program of the runtime nvidia in containerd's configuration (version 2 or 3); None where it has none."""
    for plugin in tomllib.loads(text).get("plugins", {}).values():
        runtimes = plugin.get("containerd", {}).get("runtimes", {}) if isinstance(plugin, dict) else {}
        if "nvidia" in runtimes:
            return str(runtimes["nvidia"].get("options", {}).get("BinaryName", ""))
    return None


def test_toolkit_is_the_planned_version(host: Any, plan: Any, observe: Observe) -> None:
    """nvidia-ctk is of the planned version."""
    found = output(host, "nvidia-ctk --version")
    observe.same(version(found), plan["container_toolkit"]["version"], "nvidia-ctk --version")


def test_runtime_knows_the_toolkit(host: Any, plan: Any, observe: Observe) -> None:
    """The container runtime's own configuration has the runtime nvidia: without it no container gets a GPU."""
    runtime = plan["container_toolkit"]["runtime"]
    if host.run("test -x /usr/bin/%s", _RUNTIME).rc != 0:
        observe.fail(f"there is no /usr/bin/{_RUNTIME} that can be run: {runtime} has nothing to run containers with")
    if runtime == "docker":
        where, found = "/etc/docker/daemon.json", _docker(host, observe)
    elif host.run("test -x /usr/bin/nodeadm").rc == 0 and host.run("test -e /etc/containerd/config.toml").rc != 0:
        # A node that joins a cluster writes it, with what was looked for above (nodeadm/internal/containerd).
        observe(f"nodeadm will find /usr/bin/{_RUNTIME}", _RUNTIME)
        return
    else:
        where, found = "containerd config dump", _containerd(host, observe)
    observe(found, _RUNTIME)
    if found is None or found.rpartition("/")[2] != _RUNTIME:
        observe.fail(
            f"{where} has {f'nvidia = {found!r}' if found is not None else 'no runtime nvidia'}, expected {_RUNTIME}"
        )


def _docker(host: Any, observe: Observe) -> str | None:
    text = host.run("cat /etc/docker/daemon.json").stdout
    try:
        return docker_runtime(text)
    except ValueError as error:
        observe.fail(f"/etc/docker/daemon.json is not what dockerd reads: {error}")


def _containerd(host: Any, observe: Observe) -> str | None:
    done = host.run("containerd config dump")
    try:
        if done.rc == 0:
            return containerd_runtime(done.stdout)
        said = done.stderr.strip() or f"it ended with {done.rc}"
    except ValueError as error:
        said = str(error)
    observe.fail(f"containerd config dump: {said}")


@pytest.mark.tier("T0")
def test_specification_is_written_at_boot(host: Any, plan: Any, observe: Observe) -> None:
    """The CDI specification is made anew at each boot: one from the build would name the builder's GPUs."""
    _require_cdi(plan)
    unit = "nvidia-cdi-refresh.service"
    enabled = host.run("systemctl is-enabled %s", unit).stdout.strip()
    kept = host.run("grep -ls %s /etc/cdi/*.yaml /etc/cdi/*.json", _CDI).stdout.split()
    observe([enabled, kept], ["enabled", []])
    if enabled != "enabled":
        observe.fail(f"{unit} is {enabled or 'not there'}, expected enabled")
    if kept:
        observe.fail(f"{', '.join(kept)} is written once for all; whatever the instance type, it says the same")


@pytest.mark.tier("T3")
def test_every_gpu_has_a_name(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """CDI offers each GPU of the instance type by index and by UUID, and all of them together."""
    _require_cdi(plan)
    count = plan.instance_type(machine.instance_type)["gpu_count"]
    done = host.run("nvidia-ctk cdi list")
    names = re.findall(rf"^{re.escape(_CDI)}=(\S+)$", done.stdout, re.MULTILINE)
    observe(names, f"0 to {count - 1}, their UUIDs, all")
    wanted = {str(index) for index in range(count)} | ({"all"} if count else set())
    missing = sorted(wanted - set(names))
    more = sorted(name for name in names if name.isdecimal() and name not in wanted)
    uuids = [name for name in names if name.startswith("GPU-")]
    if missing or more or len(uuids) != count:
        observe.fail(
            f"nvidia-ctk cdi list: {machine.instance_type} has {count} GPUs; missing {', '.join(missing) or 'none'}, "
            f"too many {', '.join(more) or 'none'}, {len(uuids)} by UUID"
        )


@pytest.mark.tier("T3")
def test_device_nodes_are_there(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Every device node that the specification hands to a container exists: one that does not stops the container."""
    import yaml

    _require_cdi(plan)
    text = output(host, f"for f in $(grep -lsr {_CDI} {_SPECIFICATIONS}); do cat $f; echo; echo ---; done")
    edits = [
        edit
        for document in yaml.safe_load_all(text)
        if isinstance(document, dict)
        for edit in [
            document.get("containerEdits"),
            *(one.get("containerEdits") for one in document.get("devices", [])),
        ]
    ]
    nodes = sorted(
        {node.get("hostPath", node["path"]) for edit in edits if edit for node in edit.get("deviceNodes", [])}
    )
    observe(nodes, "device nodes that exist")
    if not nodes and plan.instance_type(machine.instance_type)["gpu_count"] == 0:
        return
    if not nodes:
        observe.fail(f"no CDI specification of {_CDI} in {_SPECIFICATIONS} names a device node")
    there = host.run(f"ls -d -- {' '.join(['%s'] * len(nodes))}", *nodes).stdout.split()
    gone = sorted(set(nodes) - set(there))
    if gone:
        observe.fail(f"the CDI specification names what is not there: {', '.join(gone)}")


def _require_cdi(plan: Any) -> None:
    if not plan["container_toolkit"]["cdi"]:
        unproven(f"container toolkit {plan['container_toolkit']['version']} is planned without CDI")


@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: Any, observe: Observe) -> None:
    """The toolkit's packages have exactly the planned versions."""
    packages.check_installed(host, plan, "container_toolkit", observe)


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: Any, observe: Observe) -> None:
    """An upgrade of the system does not move the toolkit."""
    packages.check_held(host, plan, "container_toolkit", observe)
