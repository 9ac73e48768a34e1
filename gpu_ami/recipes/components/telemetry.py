"""What reports of an instance: the CloudWatch agent's package, the event parser, the drain hook.

The agent's configuration is made of the sections that are published (../agent.py). The event parser parses Xid and SXid
lines of the kernel into events; its section in the plan is the recipe's. The drain hook runs scripts at notices of
interruption and termination, where the recipe asks for it.
"""

from __future__ import annotations

from gpu_ami.recipes.facts import ARCHITECTURES, NEWEST, Sources, parts
from gpu_ami.recipes.rules import (
    PRESENCE,
    TELEMETRY_RULES,
    Assignment,
    Component,
    Observed,
    OwnLog,
    ResolveContext,
    content,
    file,
    package,
)
from validator.plan_document import AgentPackage, CloudWatchAgent, DrainHook, EventParser, package_system
from validator.schema import Choice, Flag, Integer, Keys, ListOf, Text


def _agent_section(context: ResolveContext, _versions: Assignment, sources: Sources) -> AgentPackage:
    facts, asked = context.facts.cloudwatch_agent, str(context.section("cloudwatch_agent")["version"])
    if asked == NEWEST:  # of the releases whose build number is known, so that the plan stays pinned
        asked = max(facts["versions"], key=parts)
    version, build, _ = asked.partition("b")
    # A release that the facts do not know is planned all the same: its version is compared when it is installed.
    release = facts["versions"].get(version, facts["other_versions"])
    if build:
        release = {"directory": asked, "source": "build number in the recipe", "date": facts["date"]}
    kind = package_system(context.os)
    folder = (
        f"{context.os['cloudwatch_agent']}/{ARCHITECTURES[context.values['architecture']].deb}/{release['directory']}"
    )
    url = f"{facts['base_url']}/{folder}/amazon-cloudwatch-agent.{kind}"
    sources.add(f"CloudWatch agent {version}", release)
    sources.add("the CloudWatch agent's signing key", facts)
    return {
        "version": version,
        "url": url,
        "signature_url": f"{url}.sig",
        "key_url": facts["key_url"],
        "key_fingerprint": facts["key_fingerprint"],
    }


_CLOUDWATCH_AGENT = Component(
    "cloudwatch_agent",
    observed=Observed(
        (
            package(r"amazon-cloudwatch-agent", r"^(\d+\.\d+\.\d+)"),
            content("/opt/aws/amazon-cloudwatch-agent/bin/CWAGENT_VERSION", r"(\d+\.\d+\.\d+)"),
        )
    ),
    layer="telemetry",
    early={"node": "package"},
    after=("tuning",),
    is_in_every_plan=True,
    keys=Keys({"version": Text("1.300071.0", rf"{NEWEST}|\d+\.\d+\.\d+(b\d+)?")}, needed=("version",)),
    meanings={"version": "`newest` or a release; with a build number (`1.300071.0b1766`) exactly that file"},
    section=CloudWatchAgent,
    write=_agent_section,
    rules=TELEMETRY_RULES,
)


_LOG_FILE = Text("/var/log/gpuevent.log", r"/[\w./+-]+")

_EVENT_PARSER = Component(
    "event_parser",
    observed=Observed((file("/opt/aws/cloudwatch/nvidia/hwevents/main.py", PRESENCE),)),
    layer="telemetry",
    early={"kernel": "boot_loader", "node": "files"},
    after=("cloudwatch_agent",),
    is_in_every_plan=True,
    keys=Keys(
        {
            "raw_log": _LOG_FILE,
            "json_log": _LOG_FILE,
            "log_buf_len": Text("4M", r"\d+[KMG]?"),
            "seed_metrics_s": Integer(1, 3600, "seconds"),
        },
        needed=("raw_log", "json_log"),
    ),
    meanings={
        "raw_log": "file with the kernel's Xid and SXid lines",
        "json_log": "file with the events as JSON lines",
        "log_buf_len": "size of the kernel's log buffer",
        "seed_metrics_s": "seconds between points of `AcceleratorMetrics` and `EFAMetrics`; default: not published",
    },
    section=EventParser,
)


# What it can act on; the recipe chooses.
NOTICES = ("spot-interruption", "autoscaling-termination", "rebalance-recommendation", "maintenance-event")


def _drain_hook_section(context: ResolveContext, _versions: Assignment, _sources: Sources) -> DrainHook | None:
    asked = context.values["drain_hook"]
    if not asked["enabled"]:
        return None
    return {
        "notices": [name for name in NOTICES if name in asked["notices"]],
        "timeout_s": asked["timeout_s"],
        "log": asked["log"],
        "log_group": asked["log_group"],
    }


_DRAIN_HOOK_LOG = OwnLog(
    "/var/log/gpu-ami-drain.jsonl", "/ec2/accelerated/drain", "notices and what the scripts did, as JSON lines"
)

_DRAIN_HOOK = Component(
    "drain_hook",
    observed=Observed((file("/etc/systemd/system/gpu-ami-drain-hook.service", PRESENCE),)),
    layer="telemetry",
    early={"node": "files"},
    after=("neuron_monitor",),
    keys=Keys(
        {
            "enabled": Flag(),
            "notices": ListOf(Choice(NOTICES)),
            "timeout_s": Integer(1, 7200, "seconds"),
            **_DRAIN_HOOK_LOG.keys(),
        },
        needed=("enabled", "notices", "timeout_s", *_DRAIN_HOOK_LOG.keys()),
    ),
    meanings={
        "enabled": "true: a service runs the scripts of `/etc/gpu-ami/drain.d` at notices ([fleet](fleet.md))",
        "notices": "notices that run the scripts; a recommendation or an event does not always lead to an interruption",
        "timeout_s": "seconds for all scripts of a notice together",
        **_DRAIN_HOOK_LOG.meanings("drain_hook"),
    },
    section=DrainHook,
    write=_drain_hook_section,
    own_log=_DRAIN_HOOK_LOG,
)

COMPONENTS = (_CLOUDWATCH_AGENT, _EVENT_PARSER, _DRAIN_HOOK)
