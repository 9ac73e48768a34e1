"""Findings on an image as it is found: the rules that `plan` has, run over what is there, and what a plan cannot have.

Each has its source. What the facts do not know is said (level NOTE), never refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from gpu_ami.observe.captures import (
    ADVICE,
    Capture,
    capture_of,
    effective_config,
    places,
    sends_gpu_metrics,
    shippers,
    unsent,
)
from gpu_ami.observe.observation import Found, Observation, same
from gpu_ami.recipes import remark_found
from gpu_ami.recipes.facts import Facts, Sources, at_least, branch
from gpu_ami.recipes.rules import Conflict, ResolveContext, Rule, runtime_advisories

# Rules on where a build takes its packages from and how: an image that is there has them already.
_OF_BUILDS = frozenset(
    {
        "repository_has_driver", "repository_has_cuda", "repository_has_architecture", "distribution_has_driver",
        "distribution_has_release", "client_is_built", "agent_reads_power_draw",
    }
)  # fmt: skip
_MANUALS = {
    "fabric": "https://docs.nvidia.com/datacenter/tesla/fabric-manager-user-guide/ (one version with the driver)",
    "imex": "https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/ (IMEX and driver: one version)",
    "cgroups": (
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/troubleshooting.html"
        " (Containers losing access to GPUs); NVIDIA/nvidia-container-toolkit#48"
    ),
    "nouveau": "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/ (Disable nouveau)",
    "kernels": "https://docs.nvidia.com/datacenter/tesla/driver-installation-guide/ (kernel headers, DKMS)",
    "agent": "https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/create-cloudwatch-agent-configuration-file.html",
    "translator": "aws/amazon-cloudwatch-agent translator/cmdutil (GenerateMergedJsonConfigMap)",
    "dmesg": "https://man7.org/linux/man-pages/man1/dmesg.1.html; aws-efa-nccl-baseami-pipeline d8b0211",
    "observed": "what was read of this image",
    "firmware": "https://download.nvidia.com/XFree86/Linux-x86_64/580.95.05/README/gsp.html (GSP firmware)",
    "rootless": "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
    "stubs": "https://docs.nvidia.com/cuda/cuda-c-best-practices-guide/ (stub libraries are for linking alone)",
    "credentials": "https://docs.aws.amazon.com/AmazonCloudWatch/latest/monitoring/install-CloudWatch-Agent-commandline-fleet.html",
    "lint": "docs/lint-agent.md",
    "pcluster": "aws-parallelcluster-cookbook, aws-parallelcluster-environment (cloudwatch, action configure)",
    "dpkg": "https://man7.org/linux/man-pages/man1/dpkg.1.html (package states)",
}
_AGENT = "/opt/aws/amazon-cloudwatch-agent"
# Services whose component does nothing while a boot cannot start them.
_SERVICES = {
    "nvidia-fabricmanager.service": "fabric_manager", "nvidia-imex.service": "imex",
    "nvidia-persistenced.service": "nvidia_driver", "nvidia-dcgm.service": "dcgm",
    "docker.service": "container_toolkit", "containerd.service": "container_toolkit", "ecs.service": "node_ecs",
    "kubelet.service": "node_eks", "gdrdrv.service": "gdrcopy",
}  # fmt: skip


class Level(StrEnum):
    """How much a finding means for the image."""

    PROBLEM = "problem"  # something does not work, or will not
    WARNING = "warning"  # it works now, and something common breaks it, or it is blind to something
    NOTE = "note"  # something to know; what the facts do not know


@dataclass(frozen=True)
class Finding:
    """id: stable, of the rule. component: "" for the image as a whole. source: where the rule stands."""

    id: str
    level: Level
    component: str
    text: str
    source: str
    advice: str = ""

    def to_json(self) -> dict[str, str]:
        return {key: str(value) for key, value in asdict(self).items()}


def findings_of(observation: Observation, facts: Facts, context: ResolveContext | None) -> list[Finding]:
    """All findings, the worst first. context: of the nearest recipe; None where the facts lack the system."""
    found = [
        *_sources_agree(observation),
        *_driver(observation),
        *_modules(observation),
        *_companions(observation),
        *_containers(observation),
        *_runtimes(observation, facts),
        *_agent(observation, facts),
        *_configuration(observation),
        *_captures(observation),
        *_held(observation),
        *_environments(observation),
        *_unknown(observation, facts),
        *(_rules(observation, facts, context) if context else ()),
    ]
    unique = {(one.id, one.component, one.text): one for one in found}
    return sorted(unique.values(), key=lambda one: list(Level).index(one.level))


def _sources_agree(observation: Observation) -> Iterator[Finding]:
    for component in observation.found.values():
        if component.disagreement:
            yield Finding(
                "sources-differ", Level.PROBLEM, component.name,
                f"{component.label}: its sources name different versions: {component.disagreement}",
                _MANUALS["observed"], "install one version of all its parts",
            )  # fmt: skip


def _driver(observation: Observation) -> Iterator[Finding]:
    driver = observation.found.get("nvidia_driver")
    if driver is None:
        return
    sources = set(driver.by_source)
    trees = "driver tree" in sources
    without = observation.kernels_without("nvidia_driver")
    closed = observation.closed("/lib/modules", "/usr/lib/modules")
    if without and not trees and not closed:
        every = len(without) == len(observation.document["kernels"])
        booted = observation.kernel in without
        text = f"no kernel module of the driver for kernel {', '.join(without)}"
        if booted and not every:
            text += ", which the image boots" if observation.running else ", the newest, which a boot takes"
        yield Finding(
            "module-missing", Level.PROBLEM if booted or every else Level.WARNING, "nvidia_driver", text,
            _MANUALS["kernels"], "install the kernel's headers and build the module (DKMS), or remove the kernel",
        )  # fmt: skip
    for row in observation.document["readings"]["nvidia_driver"]:
        if row.get("error"):
            yield Finding(
                "module-unread", Level.WARNING, "nvidia_driver",
                f"{row['where']} could not be read: {row['error']}: its version and kernel are not known",
                _MANUALS["observed"], "run modinfo on it",
            )  # fmt: skip
    if not observation.document["kernels"] and not trees and "module loaded" not in sources and not closed:
        yield Finding(
            "no-kernel", Level.NOTE, "nvidia_driver",
            "no kernel is installed in these files: modules were not looked for", _MANUALS["observed"],
        )  # fmt: skip
    if observation.running and not trees and "module loaded" not in sources and observation.document["devices"]:
        text = "the driver's module is not loaded, although the machine has a device for it"
        yield Finding("module-not-loaded", Level.PROBLEM, "nvidia_driver", text, _MANUALS["kernels"], "see dmesg")
    for module, having in observation.settings["of_linux_for"].items():
        if not having or observation.settings["blacklisted_in"][module] or trees:
            continue
        text = f"{module} of kernel {', '.join(having)} is not blacklisted: it may bind a GPU before the driver"
        advice = f"write `blacklist {module}` into /etc/modprobe.d/ and rebuild the initial ramdisk"
        yield Finding("nouveau", Level.WARNING, "nvidia_driver", text, _MANUALS["nouveau"], advice)
    if "package database" not in sources and observation.document["package_database"] and not trees:
        yield Finding(
            "no-package", Level.WARNING, "nvidia_driver",
            f"driver {driver.version} is of no package ({driver.where}): nothing upgrades or verifies it",
            _MANUALS["observed"], "" if "DKMS" in sources else "a new kernel has no module: register it with DKMS",
        )  # fmt: skip


def _modules(observation: Observation) -> Iterator[Finding]:
    """Parts of an installed driver that do not fit each other."""
    driver = observation.found.get("nvidia_driver")
    for name in observation.document.get("unfinished", []):
        text = f"the installation of {name} was not finished"
        yield Finding(
            "unfinished", Level.PROBLEM, "", text, _MANUALS["dpkg"], "dpkg --configure -a, and read its errors"
        )
    if driver is None:
        return
    on_disk = [row for row in driver.readings if row.get("kernel")]
    for row in on_disk:
        # weak-modules (RHEL, SUSE) links a module to the kernels that have all its symbols: they load it.
        is_linked = "/weak-updates/" in row["where"]
        if row.get("built_for") and row["built_for"] != row["kernel"] and not is_linked:
            text = f"{row['where']} was built for kernel {row['built_for']}: {row['kernel']} does not load it"
            yield Finding("module-kernel", Level.PROBLEM, "nvidia_driver", text, _MANUALS["kernels"], "build it again")
    if on_disk and not {"library file", "driver tree"} & set(driver.by_source):
        text = "the driver's module is there without its libraries (libcuda.so.1, libnvidia-ml.so.1): nothing computes"
        advice = "install the driver's compute package; an image for NVIDIA's driver container needs no module either"
        yield Finding("no-libraries", Level.WARNING, "nvidia_driver", text, _MANUALS["observed"], advice)
    built_by_dkms = [name for name in driver.packages if name.endswith("-dkms")]
    if on_disk and built_by_dkms and not {"DKMS", "driver tree"} & set(driver.by_source):
        text = f"{built_by_dkms[0]} is installed, and DKMS does not know the driver: a new kernel gets no module of it"
        advice = f"dkms add -m nvidia -v {driver.version}, or reinstall {built_by_dkms[0]}"
        yield Finding("dkms", Level.WARNING, "nvidia_driver", text, _MANUALS["kernels"], advice)
    with_uvm = observation.settings.get("uvm_for")
    if with_uvm is not None and (lacking := sorted({str(row["kernel"]) for row in on_disk} - set(with_uvm))):
        text = f"kernel {', '.join(lacking)} has the module nvidia and not nvidia-uvm: CUDA ends with error 999"
        yield Finding("no-uvm", Level.PROBLEM, "nvidia_driver", text, _MANUALS["kernels"], "build all of its modules")
    if not observation.settings.get("nvidia_smi", True) and "driver tree" not in driver.by_source:
        reads = sends_gpu_metrics(effective_config(observation))
        text = "nvidia-smi is not installed" + (
            ": the agent, which reads it, publishes no metric of GPUs" if reads else ""
        )
        level = Level.PROBLEM if reads else Level.WARNING
        yield Finding("no-smi", level, "nvidia_driver", text, _MANUALS["agent"], "install the driver's tools")
    firmware = observation.settings.get("firmware", [])
    if observation.flavour == "open" and firmware and driver.version not in firmware:
        text = (
            f"GSP firmware of {', '.join(firmware)}, and none of driver {driver.version}: the open module starts no GPU"
        )
        yield Finding("firmware", Level.PROBLEM, "nvidia_driver", text, _MANUALS["firmware"], "install its firmware")
    options = [line for line in observation.settings["nvidia_options"] if "NVreg_EnableGpuFirmware=0" in line]
    if observation.flavour == "open" and options:
        text = f"`{options[0]}` with the open module, which starts no GPU without its GSP firmware"
        yield Finding("gsp-off", Level.PROBLEM, "nvidia_driver", text, _MANUALS["firmware"], "remove the option")


def _companions(observation: Observation) -> Iterator[Finding]:
    """Programs that need a driver of exactly their own version, and services that a boot must start."""
    driver = observation.found.get("nvidia_driver")
    masked = observation.settings.get("masked", [])
    for unit, name in _SERVICES.items():
        if unit in masked and name in observation.found:
            text = f"{unit} is masked: no boot starts it"
            yield Finding("masked", Level.PROBLEM, name, text, _MANUALS["observed"], f"systemctl unmask {unit}")
    for folder in observation.settings.get("loader_stubs", []):
        text = f"{folder} is in the loader's path: programs load the stub of libcuda.so.1, and find no GPU"
        yield Finding("stubs", Level.PROBLEM, "cuda", text, _MANUALS["stubs"], "remove it from /etc/ld.so.conf.d/")
    for name, rule in (("fabric_manager", "fabric"), ("imex", "imex")):
        one = observation.found.get(name)
        if driver and one and driver.version and one.version and not same(driver.version, one.version):
            text = f"{one.label} {one.version} with driver {driver.version}: it stops, and no GPU behind it is usable"
            advice = f"install {one.label} {driver.version}"
            yield Finding(f"{name}-version", Level.PROBLEM, name, text, _MANUALS[rule], advice)


def _containers(observation: Observation) -> Iterator[Finding]:
    toolkit = observation.found.get("container_toolkit")
    if toolkit is None:
        return
    settings = observation.settings
    mode = settings["runtime_mode"] or "auto"
    is_old = bool(toolkit.version) and not at_least(str(toolkit.version), "1.18")  # one without a version may be any
    legacy = mode == "legacy" or (mode == "auto" and is_old)
    if legacy and "docker" in settings["has_runtime"]:
        text = (
            f"container toolkit {toolkit.version} in mode {mode} adds GPUs behind systemd's back: after `systemctl"
            " daemon-reload` running containers lose them"
        )
        advice = 'use CDI: mode = "cdi" in /etc/nvidia-container-runtime/config.toml, or toolkit 1.18 or newer'
        yield Finding("daemon-reload", Level.WARNING, "container_toolkit", text, _MANUALS["cgroups"], advice)
    if settings["has_runtime"] and not settings["runtimes"] and observation.node[0] == "ec2":
        names = " and ".join(settings["has_runtime"])
        text = f"no configuration of {names} names the runtime nvidia: containers get no GPU but by CDI"
        text += ", or by Docker's --gpus" if "docker" in settings["has_runtime"] else ""
        advice = "nvidia-ctk runtime configure"
        yield Finding("runtime", Level.WARNING, "container_toolkit", text, _MANUALS["cgroups"], advice)
    if settings["no_cgroups"]:
        text = (
            "no-cgroups = true in /etc/nvidia-container-runtime/config.toml: containers of root get no access to GPUs"
        )
        advice = "set it to false; it is for rootless containers alone"
        yield Finding("no-cgroups", Level.WARNING, "container_toolkit", text, _MANUALS["rootless"], advice)


def _runtimes(observation: Observation, facts: Facts) -> Iterator[Finding]:
    """Container runtimes without the fix of a security bulletin, or of which it is not known that they have it."""
    packages = observation.settings.get("runtime_packages") or {}  # an earlier version did not read them
    system = observation.system(facts)[0]
    lacking = list(runtime_advisories(facts, system, packages))
    for name in dict.fromkeys(package for package, *_ in lacking):
        for certain in (True, False):
            of_name = [one for one in lacking if one[0] == name and one[2] is certain]
            if not of_name:
                continue
            shown = "; ".join(text for _, text, *_ in of_name)
            text = f"{name} {packages[name]} lacks fixes of security bulletins: {shown}"
            if not certain:
                text = f"{name} {packages[name]} is older than releases with fixes of security bulletins: {shown}"
            advice = (
                "upgrade it" if certain else "look it up in the vendor's security tracker: the fixes may be backported"
            )
            source = "; ".join(dict.fromkeys(row["source"] for *_, row in of_name))
            level = Level.WARNING if certain else Level.NOTE
            yield Finding("runtime-advisory", level, "container_toolkit", text, source, advice)


def _agent(observation: Observation, facts: Facts) -> Iterator[Finding]:
    agent = observation.found.get("cloudwatch_agent")
    if agent is None:
        others = [str(one["name"]) for one in shippers(observation) if not one["off"]]
        if observation.accelerator and others:
            text = f"no CloudWatch agent: what leaves an instance goes through {', '.join(others)}"
            yield Finding("no-agent", Level.NOTE, "cloudwatch_agent", text, _MANUALS["agent"])
        elif observation.accelerator:
            text = "no CloudWatch agent: neither metrics of GPUs nor logs leave an instance"
            yield Finding("no-agent", Level.WARNING, "cloudwatch_agent", text, _MANUALS["agent"], ADVICE)
        return
    read = observation.agent
    for mistake in read["mistakes"]:
        text = f"the agent cannot read {mistake}: it does not start"
        yield Finding("agent-config", Level.PROBLEM, "cloudwatch_agent", text, _MANUALS["translator"])
    for path in read.get("unread", ()):
        text = (
            f"the agent does not read {path}: no boot fetches it, and it is not below its etc/amazon-cloudwatch-agent.d"
        )
        advice = f"amazon-cloudwatch-agent-ctl -a fetch-config -m ec2 -c file:{path}"
        level = Level.NOTE if read["parts"] else Level.PROBLEM
        yield Finding("agent-unread", level, "cloudwatch_agent", text, _MANUALS["agent"], advice)
    if not observation.closed(_AGENT):  # else its configuration is not known
        yield from _agent_sends(observation)
    if len(read["parts"]) > 1 and (clash := _clash(read["parts"])):
        text = f"parts of the agent's configuration differ: {clash}: its translator refuses them"
        yield Finding("agent-parts", Level.PROBLEM, "cloudwatch_agent", text, _MANUALS["translator"])
    if read.get("masked"):
        text = "amazon-cloudwatch-agent.service is masked: no boot starts it"
        advice = "systemctl unmask amazon-cloudwatch-agent"
        yield Finding("agent-disabled", Level.PROBLEM, "cloudwatch_agent", text, _MANUALS["agent"], advice)
    elif not read["enabled"] and not read["fetched_at_boot"] and observation.node[0] != "parallelcluster":
        text = "the agent's unit is not enabled: it does not start at boot"
        advice = "systemctl enable amazon-cloudwatch-agent"
        yield Finding("agent-disabled", Level.WARNING, "cloudwatch_agent", text, _MANUALS["agent"], advice)
    yield from _layout(observation, facts, agent)


def _agent_sends(observation: Observation) -> Iterator[Finding]:
    """An agent without a configuration, or without metrics of GPUs in it."""
    read = observation.agent
    if not read["parts"] and not read["mistakes"]:
        told = "; ".join(f"{row['path']}: {row['command']}" for row in read["fetched_at_boot"])
        if not told and observation.node[0] == "parallelcluster":
            text = "the agent's configuration is written when a cluster starts the node: it is not in the image"
            yield Finding("agent-fetched", Level.NOTE, "cloudwatch_agent", text, _MANUALS["pcluster"])
        elif told:
            text = f"the agent's configuration is fetched at boot ({told}): it is not in the image"
            yield Finding("agent-fetched", Level.NOTE, "cloudwatch_agent", text, _MANUALS["agent"])
        else:
            text = "the agent is not configured: it does not start, or sends memory and disk alone"
            if read.get("translated"):
                text += (
                    "; its etc/amazon-cloudwatch-agent.toml is a translation: it is written anew at each start, of JSON"
                )
            yield Finding("agent-unconfigured", Level.WARNING, "cloudwatch_agent", text, _MANUALS["agent"], ADVICE)
    elif read["parts"] and not sends_gpu_metrics(effective_config(observation)) and observation.accelerator == "nvidia":
        text = f"the agent ({', '.join(places(observation))}) collects no metric of GPUs"
        yield Finding("no-gpu-metrics", Level.WARNING, "cloudwatch_agent", text, _MANUALS["agent"], ADVICE)


def _configuration(observation: Observation) -> Iterator[Finding]:
    """What the agent, or CloudWatch, does not take of the agent's configuration, and whose credentials it uses."""
    from validator.probes.agent import ERROR, lint

    config = effective_config(observation)
    for one in lint(config) if config else ():
        level = Level.PROBLEM if one.severity == ERROR else Level.NOTE
        text = f"the agent's configuration: {one.path or 'as a whole'}: {one.message}"
        yield Finding("agent-lint", level, "cloudwatch_agent", text, _MANUALS["lint"])
    for line in observation.agent["common_config"]:
        if line.startswith(("shared_credential_profile", "shared_credential_file")):
            text = (
                f"common-config.toml has `{line}`: the agent takes these credentials, not those of the instance's role"
            )
            yield Finding("agent-credentials", Level.WARNING, "cloudwatch_agent", text, _MANUALS["credentials"])


def _clash(parts: Sequence[Mapping[str, Any]]) -> str:
    """The first key that two parts set to different values; lists are joined by the translator."""
    seen: dict[str, tuple[str, object]] = {}
    for part in parts:
        for path, value in _leaves(part["config"], ""):
            before = seen.setdefault(path, (part["path"], value))
            if not isinstance(value, list) and before[1] != value:
                return f"{path}: {before[1]!r} in {before[0]}, {value!r} in {part['path']}"
    return ""


def _leaves(value: object, path: str) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(below, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _layout(observation: Observation, facts: Facts, agent: Found) -> Iterator[Finding]:
    """An agent that does not read what this driver's nvidia-smi prints."""
    driver = observation.found.get("nvidia_driver")
    measured = effective_config(observation)
    if driver is None or not driver.version or not sends_gpu_metrics(measured):
        return
    from validator.probes.agent import config as agent_config

    table = facts.cloudwatch_agent["nvidia_smi"]
    rows = [row for row in table["power_draw"] if at_least(driver.version, row["driver_from"])]
    missing = [row for row in rows if not at_least(agent.version, row["agent_from"])]
    if missing and "power_draw" in agent_config.measurements(measured):
        row = missing[-1]
        text = f"agent {agent.version} publishes no power_draw of driver {driver.version}: needs ≥ {row['agent_from']}"
        yield Finding("agent-power-draw", Level.PROBLEM, "cloudwatch_agent", text, row["source"], "upgrade the agent")
    known = [row for row in table["layouts"] if at_least(driver.version, row["driver_from"])]
    if known and not ("agent_from" in known[-1] and at_least(agent.version, known[-1]["agent_from"])):
        row = known[-1]
        text = (
            f"agent {agent.version} does not know the layout {row['name']} of nvidia-smi {driver.version}: it logs a"
            " warning and reads it as the newest that it knows"
        )
        advice = "check that the metrics of GPUs arrive"
        yield Finding("agent-layout", Level.NOTE, "cloudwatch_agent", text, row["source"], advice)


def _captures(observation: Observation) -> Iterator[Finding]:
    """What captures Xids: one finding, with the advice how to add it."""
    if observation.accelerator != "nvidia":
        return
    ways = capture_of(observation)
    if any(way.captures for way in ways):
        return
    blind = [f"{way.source} → {way.group or way.written_by}: {way.reason}" for way in ways]
    blind += [f"{path} writes where the agent reads nothing" for path in unsent(observation)]
    blind += [f"{path} may not be read" for path in observation.closed()]
    if any(way.captures is None for way in ways) or observation.closed():
        text = f"it is not known whether an Xid is captured: {'; '.join(blind)}"
    elif observation.agent["fetched_at_boot"] and not observation.agent["parts"]:
        text = "whether an Xid is captured is decided by a configuration that is fetched at boot"
        yield Finding("xid-capture", Level.NOTE, "", text, _MANUALS["dmesg"], ADVICE)
        return
    else:
        reason = "; ".join(blind) or "no log of kernel lines is sent anywhere"
        text = f"this image does not capture Xids: {reason}"
    yield Finding("xid-capture", Level.WARNING, "", text, _MANUALS["dmesg"], ADVICE)


def _environments(observation: Observation) -> Iterator[Finding]:
    """GPU libraries that the system does not know: an image that has them there is not without them."""
    rows = observation.settings.get("environments") or ()  # an earlier version did not look for them
    if rows:
        shown = "; ".join(f"{row['path']} ({row['packages']})" for row in rows)
        text = f"environments have GPU libraries of their own, which were not compared with the driver: {shown}"
        yield Finding("environments", Level.NOTE, "", text, _MANUALS["observed"])


def _held(observation: Observation) -> Iterator[Finding]:
    driver = observation.found.get("nvidia_driver")
    if driver and driver.packages and not driver.held:
        text = "no package of the driver is held: an upgrade of the system replaces it under running jobs"
        advice = "apt-mark hold, or dnf versionlock, and release it for a planned upgrade"
        yield Finding("not-held", Level.WARNING, "nvidia_driver", text, _MANUALS["observed"], advice)


def _unknown(observation: Observation, facts: Facts) -> Iterator[Finding]:
    """What the facts do not know."""
    name, row = observation.system(facts)
    if row is None:
        text = f"{name} is not in the facts: rules of systems were not judged"
        yield Finding("unknown-system", Level.NOTE, "", text, "variables/facts/operating_systems.yml")
    for component in observation.found.values():
        known = _releases(facts, component.name)
        if known and component.version and component.version not in known:
            near = [release for release in known if branch(release) == branch(component.version)]
            rest = f"; of its branch it has {', '.join(list(near)[-3:])}" if near else ""
            text = f"{component.label} {component.version} is not in the facts{rest}: rules on it were not judged"
            source = f"variables/facts ({component.name})"
            yield Finding("unknown-version", Level.NOTE, component.name, text, source)
    if closed := observation.closed():
        more = f" and {len(closed) - 8} more" if len(closed) > 8 else ""
        text = f"this user may not read {', '.join(closed[:8])}{more}: what is said to be missing may be there"
        yield Finding("unread", Level.WARNING, "", text, _MANUALS["observed"], "read it as root")
    for error in observation.document["errors"]:
        yield Finding("unread", Level.NOTE, "", f"could not be read: {error}", _MANUALS["observed"])
    if not observation.document["package_database"]:
        text = "no package database could be read: what is there was looked for in files alone"
        yield Finding("no-database", Level.NOTE, "", text, _MANUALS["observed"])


def _releases(facts: Facts, component: str) -> Mapping[str, Any]:
    try:
        return facts.releases(component)
    except (KeyError, AttributeError):
        return {}


def known_versions(observation: Observation, facts: Facts) -> dict[str, str]:
    """Components whose observed version the facts know."""
    return {
        one.name: one.version
        for one in observation.found.values()
        if one.version in _releases(facts, one.name) and observation.registry[one.name].is_chosen
    }


def _rules(observation: Observation, facts: Facts, context: ResolveContext) -> Iterator[Finding]:
    """The rules between versions that `plan` has, over what is there, and the notes that a plan would have."""
    versions = known_versions(observation, facts)
    for names, rule in context.rules:
        if rule.__name__ in _OF_BUILDS or not all(name in versions for name in names):
            continue
        for conflict in _conflicts(rule, context, versions):
            component = conflict.path.partition(".")[0]
            yield Finding(
                rule.__name__.replace("_", "-"), Level.PROBLEM, component, conflict.text, conflict.source,
                conflict.nearest,
            )  # fmt: skip
    sources = Sources()
    remark_found(context, versions, sources)
    for note in sources.notes:
        yield Finding("note", Level.NOTE, "", note, "variables/facts")


def _conflicts(rule: Rule, context: ResolveContext, versions: Mapping[str, str]) -> list[Conflict]:
    """Conflicts of a rule; none where the facts lack a row that it asks for, since a recipe would name it."""
    try:
        return list(rule(context, versions))
    except KeyError:
        return []


__all__ = ["Capture", "Finding", "Level", "findings_of", "known_versions"]
