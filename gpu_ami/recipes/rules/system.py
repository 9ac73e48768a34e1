"""Rules of the image as a whole: instance types, architecture, system, node family, accelerators, root volume."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from gpu_ami.recipes.facts import ARCHITECTURES, Row, at_least, at_most, parts
from gpu_ami.recipes.rules.component import OwnLog
from gpu_ami.recipes.rules.driver import BOTH_MODULES, apart_by_driver
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext

_NOT_KEPT = ("dev", "proc", "sys", "run", "tmp")  # directories below / in which no log file is kept


def types_are_built_for(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    for name in context.values["instance_types"]:
        if not context.is_built_for(name):
            family = context.family(name)
            yield Conflict("instance_types", f"no image is built for {name}: {family['refused']}", family["source"])


def types_have_architecture(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    architecture = context.values["architecture"]
    named = [(name, "instance_types", row) for name, row in context.instance_types.items()]
    builder = str(context.values["build"]["instance_type"])
    row = context.facts.instance_types["instance_types"].get(builder)
    for name, path, facts in [*named, *([(builder, "build.instance_type", row)] if row else [])]:
        if facts["architecture"] != architecture:
            text = f"{name} is {facts['architecture']}, the image is {architecture}"
            nearest = f"architecture {facts['architecture']}, or instance types of {architecture}"
            if path == "build.instance_type":
                nearest = f"build.instance_type {_builder_of(context, architecture)}"
            yield Conflict(path, text, facts["source"], nearest=nearest)


def _builder_of(context: ResolveContext, architecture: str) -> str:
    """An instance type that can build an image: the first of the recipe's, else of the facts."""
    table = context.facts.instance_types["instance_types"]
    names = [*context.values["instance_types"], *table]
    return next((str(name) for name in names if table[name]["architecture"] == architecture), architecture)


def os_has_architecture(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    if context.values["architecture"] not in context.os["architectures"]:
        text = f"{context.os_name} has no AMI for {context.values['architecture']}"
        yield Conflict(
            "architecture", text, context.os["source"], nearest=f"{' or '.join(context.os['architectures'])}"
        )


def source_ami_is_found_in_one_way(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    asked = context.values.get("source_ami") or {}
    if asked and set(asked) not in ({"id"}, {"owner", "name"}, {"ssm"}, {"owner", "name", "ssm"}):
        text = f"an AMI cannot be found by {' and '.join(sorted(asked))}"
        nearest = "id alone, or ssm alone, or owner and name (with ssm: asked first)"
        yield Conflict("source_ami", text, "docs/recipes.md, source_ami", nearest=nearest)


def node_has_os(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    allowed = context.node["operating_systems"]
    if context.os_name not in allowed:
        if other := context.node.get("of_others", {}).get(context.os_name):
            yield _of_others(context, other)
            return
        ended = context.node.get("ended", {}).get(context.os_name)
        text = f"{context.node_name} has no base AMI with {context.os_name}" + (f": {ended}" if ended else "")
        yield Conflict("os", text, context.node["source"], nearest=f"os {' or '.join(allowed)}, or node ec2")


def _of_others(context: ResolveContext, other: Row) -> Conflict:
    """A base AMI that is there and that the family's role and checks do not know."""
    deb = ARCHITECTURES[context.values["architecture"]].deb
    name = other["name"].format(version=context.node_version, release=context.os["version"], deb=deb)
    nearest = (
        f"os {' or '.join(context.node['operating_systems'])}; or node ec2 without node_version, with source_ami.owner "
        f'"{other["owner"]}", source_ami.name "{name}" and container_toolkit.runtime containerd: then nothing proves '
        "that it joins a cluster"
    )
    text = f"{context.node_name} has no base AMI with {context.os_name} of its own: {other['why']}"
    return Conflict("os", text, other["source"], nearest=nearest)


def node_has_version(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    known = context.node.get("versions")
    if known is None:
        if context.node_version is not None:
            text = f"node {context.node_name} takes no node_version, got {context.node_version}"
            pin = "" if context.node_name == "ec2" else " (source_ami.name pins a release of its AMI)"
            yield Conflict("node_version", text, context.node["source"], nearest=f"leave out node_version{pin}")
    elif row := context.node.get("ended_versions", {}).get(context.node_version):
        text = f"{context.node['orchestrator']} {context.node_version}: {row['why']}"
        yield Conflict("node_version", text, row["source"], nearest=f"node_version {next(iter(known))}")
    elif context.node_version not in known:
        label = context.node["orchestrator"]
        problem = (
            f"no {label} version is given"
            if context.node_version is None
            else f"{label} {context.node_version} is unknown"
        )
        text = f"{problem}; node {context.node_name} supports {', '.join(known)}"
        if context.node_version is not None and parts(context.node_version) > parts(list(known)[-1]):
            text = f"{text}. If there is such a release, {_row_of_node(context)}"
        yield Conflict("node_version", text, context.node["source"], nearest=f"node_version {list(known)[-1]}")


def _row_of_node(context: ResolveContext) -> str:
    """How the row of a release of a node family gets into a site."""
    if context.node_name == "eks":
        return f"gpu-ami facts --add eks {context.node_version} --set source=… writes its row into site/facts/"
    return "add its row to site/facts/node_families.yml (docs/site.md)"


def kernel_is_there(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    asked = context.section("kernel").get("version")
    if not asked:
        return
    if context.base_kernel and asked != context.base_kernel:
        base = f"{context.node_name} {context.node_version or ''}".strip()
        text = f"kernel {asked} on {base}: its base AMI boots {context.base_kernel}"
        source = str(context.node_release.get("source", context.node["source"]))
        yield Conflict("kernel.version", text, source, nearest=f"leave out kernel, or kernel {context.base_kernel}")
    elif asked not in context.os["kernels"]:
        text = f"{context.os_name} has no kernel {asked}: it has {', '.join(context.os['kernels'])}"
        yield Conflict("kernel.version", text, context.os["source"], nearest=f"kernel {context.os['kernels'][0]}")


def ansible_finds_python(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    core = str(context.values["ansible"]["core"])
    row = context.facts.ansible["releases"][core]
    first, last = row["python"]["first"], row["python"]["last"]
    if python_for(context) is None:
        available = ", ".join(context.os["python"])
        text = f"ansible-core {core} needs Python {first} to {last}; {context.os_name} has {available}"
        able = [
            version
            for version, other in context.facts.ansible["releases"].items()
            if any(at_least(python, other["python"]["first"]) for python in context.os["python"])
        ]
        yield Conflict(
            "ansible.core", text, row["source"], nearest=f"ansible-core {able[-1]}" if able else "another os"
        )


def python_for(context: ResolveContext) -> str | None:
    """The system's first Python that the recipe's ansible-core can use."""
    bounds = context.facts.ansible["releases"][str(context.values["ansible"]["core"])]["python"]
    first, last = bounds["first"], bounds["last"]
    return next((python for python in context.os["python"] if at_least(python, first) and at_most(python, last)), None)


def accelerators_have_drivers(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """An image is for one accelerator vendor, and has its driver."""
    types = ", ".join(context.values["instance_types"])
    if len(context.accelerators) > 1:
        text = f"{' and '.join(sorted(context.accelerators))} accelerators in one image: {types}"
        why = "event parser and agent are configured for one vendor"
        yield Conflict("instance_types", text, why, nearest="build an image for each")
        return
    for vendor, component in (("nvidia", "nvidia_driver"), ("neuron", "neuron")):
        has = "version" in context.section(component) or component in context.provided
        label = context.label(component)
        if vendor in context.accelerators and not has:
            text = f"{types}: {vendor} accelerators, and no {label} version is given"
            why = "an accelerator cannot be used or measured without its driver"
            nearest = _first_driver(context) if component == "nvidia_driver" else f"{component}.version newest"
            yield Conflict(f"{component}.version", text, why, nearest=nearest)
        elif has and context.accelerators and vendor not in context.accelerators:
            text = f"a {label}, but none of {types} has {vendor} accelerators"
            why = "a driver fails at boot without its device"
            yield Conflict(component, text, why, nearest=f"leave out {component}")


def _first_driver(context: ResolveContext) -> str:
    """What the next plan does not refuse: the newest driver, the last branch of older GPUs, or an image for each."""
    if apart := apart_by_driver(context):
        return apart
    limits = [row.get("driver", {}).get("last") for gpu in context.gpus for row in (gpu.architecture, gpu.model)]
    oldest = min((str(last) for last in limits if last), default="")
    if not oldest:
        return "nvidia_driver.version newest"
    flavours = frozenset.intersection(*(frozenset(gpu.architecture["flavours"]) for gpu in context.gpus))
    module = f"flavour {min(flavours)}" if flavours else BOTH_MODULES
    needed = "" if context.flavour in flavours else f" with nvidia_driver.{module}"
    return f'nvidia_driver.version "{oldest}"{needed}'


def telemetry_is_of_the_accelerator(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    profile = str(context.values["telemetry"]["profile"])
    vendor = context.facts.telemetry[profile]["accelerator"]
    if len(context.accelerators) == 1 and vendor not in context.accelerators:
        accelerator = next(iter(context.accelerators))
        fitting = [name for name, row in context.facts.telemetry.items() if row["accelerator"] == accelerator]
        text = f"telemetry profile {profile} measures {vendor}, the image is for {accelerator}"
        source = context.facts.telemetry[profile]["source"]
        yield Conflict("telemetry.profile", text, source, nearest=f"profile {' or '.join(fitting)}")


def base_keeps_its_own(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """A base AMI's components are those that its orchestrator was tested with: the recipe must not replace them."""
    for component, provided in context.provided.items():
        version = chosen.get(component, provided)
        by_branch = component == "nvidia_driver" and context.driver_branches  # another rule's: base_chooses_the_driver
        if version != provided and not by_branch:
            label = context.label(component)
            text = f"{label} {version} on {context.base_ami}, whose base AMI has {provided}"
            nearest = f"leave out {component}, or {label} {provided}, or node ec2"
            yield Conflict(f"{component}.version", text, context.base_ami_source, nearest=nearest)


def has_packages(component: str) -> Callable[[ResolveContext, Assignment], Iterator[Conflict]]:
    """A release must be packaged for the image's system, where the facts list the systems."""

    def rule(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
        row = context.facts.releases(component)[chosen[component]]
        systems = row.get("operating_systems")
        if systems and context.os_name not in systems and component not in context.provided:
            text = f"{context.label(component)} {chosen[component]} is not packaged for {context.os_name}"
            nearest = f"os {' or '.join(systems)}"
            source = row["settled" if context.os_name in row.get("not_for", ()) else "source"]
            yield Conflict(f"{component}.version", text, source, (component,), nearest)

    return rule


def _own_logs(context: ResolveContext) -> dict[str, OwnLog]:
    """Components with a log of their own → its usual names."""
    return {name: one.own_log for name, one in context.components.items() if one.own_log}


def logs_are_apart(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    parser, telemetry = context.values["event_parser"], context.values["telemetry"]
    source = "two writers of one file or stream mix raw lines with JSON"
    writers = dict.fromkeys((parser["raw_log"], parser["json_log"]), "the event parser")
    groups = dict.fromkeys((telemetry["raw_log_group"], telemetry["json_log_group"]), "the event parser")
    for section, usual in _own_logs(context).items():
        values = context.values[section]
        if values["log"] in writers:
            text = f"log is {values['log']}, which {writers[values['log']]} writes"
            yield Conflict(f"{section}.log", text, source, nearest=f"log {usual.file}")
        if values["log_group"] in groups:
            text = f"log_group is {values['log_group']}, that of {groups[values['log_group']]}'s log"
            yield Conflict(f"{section}.log_group", text, source, nearest=f"log_group {usual.group}")
        writers[values["log"]] = groups[values["log_group"]] = section
    if parser["raw_log"] == parser["json_log"]:
        text = f"raw_log and json_log are both {parser['raw_log']}"
        yield Conflict("event_parser.json_log", text, source, nearest="json_log /var/log/gpuevent.jsonl")
    if telemetry["raw_log_group"] == telemetry["json_log_group"]:
        text = f"raw_log_group and json_log_group are both {telemetry['raw_log_group']}"
        nearest = "json_log_group /ec2/accelerated/accel-event-json"
        yield Conflict("telemetry.json_log_group", text, source, nearest=nearest)


def logs_are_kept(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    for section, key, usual in (
        ("event_parser", "raw_log", "/var/log/gpuevent.log"),
        ("event_parser", "json_log", "/var/log/gpuevent.jsonl"),
        *((section, "log", own.file) for section, own in _own_logs(context).items()),
    ):
        path = PurePosixPath(str(context.values[section][key]))
        if path.parts[1] in _NOT_KEPT or ".." in path.parts:
            folders = ", ".join(f"/{name}" for name in _NOT_KEPT)
            text = f"{key} is {path}; a log needs a path without .. and outside {folders}"
            source = "Filesystem Hierarchy Standard 3.0: these are of devices, the kernel, or emptied at boot"
            yield Conflict(f"{section}.{key}", text, source, nearest=f"{key} {usual}")


def hygiene_is_last(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    roles = list(context.values["roles"])
    if "hygiene" in roles[:-1]:
        after = ", ".join(roles[roles.index("hygiene") + 1 :])
        text = (
            f"hygiene runs before {after}: it removes the builder's keys, and what later roles leave stays in the image"
        )
        yield Conflict("roles", text, "roles/hygiene/tasks/main.yml", nearest="hygiene as the last of roles")


def event_parser_is_there(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """Both programs use modules that the event parser's role installs."""
    roles, values = list(context.values["roles"]), context.values
    asked = {"drain_hook": values["drain_hook"]["enabled"], "neuron_monitor": values.get("neuron")}
    for role in (name for name, is_asked in asked.items() if is_asked and name in roles):
        if "event_parser" not in roles[: roles.index(role)]:
            text = f"{role} uses modules of event_parser, which is not before it in roles"
            yield Conflict("roles", text, f"onhost/{role}", nearest=f"event_parser before {role}")


def namespace_is_not_reserved(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    for section, own in (("telemetry", "CWAgent"), ("neuron_monitor", "GpuAmi/Neuron")):
        namespace = str(context.values[section]["namespace"])
        if namespace.startswith("AWS/"):
            text = f"namespace {namespace}: CloudWatch reserves namespaces that begin with AWS/ for AWS services"
            source = "https://docs.aws.amazon.com/AmazonCloudWatch/latest/APIReference/API_PutMetricData.html"
            yield Conflict(f"{section}.namespace", text, source, nearest=f"{own}, or a name of your own")


def log_groups_are_not_reserved(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    own = {(section, "log_group"): usual.group for section, usual in _own_logs(context).items()}
    events = "/ec2/accelerated/accel-event"
    keys = {("telemetry", "raw_log_group"): f"{events}-log", ("telemetry", "json_log_group"): f"{events}-json", **own}
    for (section, key), usual in keys.items():
        group = str(context.values[section][key])
        if group.startswith("aws/"):
            text = f"{key} is {group}: CloudWatch Logs creates no group whose name begins with aws/"
            source = "https://docs.aws.amazon.com/AmazonCloudWatchLogs/latest/APIReference/API_CreateLogGroup.html"
            yield Conflict(f"{section}.{key}", text, source, nearest=f"/{group}, or {usual}")


# Checked once: they do not depend on the chosen versions.
IMAGE_RULES = (
    types_are_built_for,
    types_have_architecture,
    os_has_architecture,
    source_ami_is_found_in_one_way,
    node_has_os,
    node_has_version,
    kernel_is_there,
    ansible_finds_python,
    accelerators_have_drivers,
    telemetry_is_of_the_accelerator,
    logs_are_apart,
    logs_are_kept,
    hygiene_is_last,
    event_parser_is_there,
    namespace_is_not_reserved,
    log_groups_are_not_reserved,
)


def installed_gib(context: ResolveContext) -> dict[str, float]:
    """GiB by what takes them: the base AMI, each component that the plan installs, and a reserve."""
    sizes = context.facts.installed_sizes
    base = "-".join(filter(None, [context.node_name, context.node_variant]))
    taken = {f"base AMI ({base})": float(sizes["base_ami"].get(base, sizes["base_ami"][context.node_name])["gib"])}
    for name, component in context.components.items():
        # Layers below the recipe set keys of components that it does not have.
        is_asked = context.section(name).get("version") if component.is_chosen else name in context.values
        if component.size_gib and is_asked:
            of_site = sizes.get("components", {}).get(name)
            taken[context.label(name)] = float(of_site["gib"]) if of_site else component.size_gib
    taken["reserve"] = float(sizes["reserve"]["gib"])
    return taken


def least_gib(context: ResolveContext) -> int:
    """The smallest root volume for the plan, in whole GiB."""
    needed = math.ceil(sum(installed_gib(context).values()))
    with_cuda = int(context.facts.installed_sizes["minimum_with_cuda"]["gib"])
    return max(needed, with_cuda) if context.section("cuda").get("version") else needed


def volume_has_room(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    size, least = int(context.values["build"]["root_volume_gib"]), least_gib(context)
    if size < least:
        taken = ", ".join(f"{name} {gib:g}" for name, gib in installed_gib(context).items())
        text = f"a root volume of {size} GiB is too small: expected at least {least} ({taken} GiB)"
        source = "variables/facts/installed_sizes.yml"
        yield Conflict("build.root_volume_gib", text, source, nearest=f"build.root_volume_gib {least}")
