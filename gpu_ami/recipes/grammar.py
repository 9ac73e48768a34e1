"""The recipe's keys. One table: what it does not name is not a recipe's key."""

from __future__ import annotations

from gpu_ami.recipes.facts import ARCHITECTURES, NEWEST, Facts
from validator.schema import Choice, Flag, Integer, Keys, Kind, ListOf, MapOf, Named, Text

FLAVOURS = ("open", "proprietary", "boot")
# NVIDIA's repository, the operating system's own archive, or AWS's bucket with NVIDIA's GRID driver.
DRIVER_SOURCES = ("vendor", "distribution", "grid")
# Of neuron-monitor's metrics; each further one makes more series.
NEURON_DIMENSIONS = ("instance_id", "instance_type", "ami_id", "neuron_runtime_tag")
# What the drain hook can act on; the recipe chooses.
NOTICES = ("spot-interruption", "autoscaling-termination", "rebalance-recommendation", "maintenance-event")
# What a recipe must say itself; everything else may come from the layers below it.
OF_THE_RECIPE = ("flag", "os", "instance_types")


def _versioned(example: str, **more: Kind) -> Keys:
    """An exact version, a branch of it (`580`, `12`), or `newest`: the newest that fits."""
    constraint = Text(example, rf"{NEWEST}|\d+(\.\d+){{0,3}}(-[0-9A-Za-z.]+)?", f"a version, a branch or {NEWEST},")
    return Keys({"version": constraint, **more}, needed=("version",))


def recipe_keys(facts: Facts, roles: tuple[str, ...], nodes: tuple[str, ...]) -> Keys:
    """The grammar, with the names that the facts and folders know."""
    instance_type = Named("instance type", facts.instance_types["instance_types"], "g5.12xlarge")
    agent_release = Text("1.300071.0", rf"{NEWEST}|\d+\.\d+\.\d+(b\d+)?")
    series = Text('"6.1"', r"\d+\.\d+")
    return Keys(
        {
            "description": Text("one line about the image", r"[^\n]{1,200}"),
            "flag": Text("debian12-gpu", r"[a-z0-9][a-z0-9.-]{0,63}", "at most 64 of a-z, 0-9, dots and dashes,"),
            "os": Choice(tuple(facts.operating_systems)),
            "architecture": Choice(tuple(ARCHITECTURES), {"amd64": "x86_64", "aarch64": "arm64", "arm": "arm64"}),
            "node": Choice(nodes),
            "node_version": Text('"1.33"', r"\d+(\.\d+){0,2}"),
            "kernel": Keys({"version": series}, needed=("version",)),
            "instance_types": ListOf(instance_type),
            "roles": ListOf(Choice(roles)),
            "ansible": Keys({"core": Choice(tuple(facts.ansible["releases"]))}, needed=("core",)),
            "source_ami": _source_ami(),
            "build": Keys(
                {"instance_type": _builder(facts), "root_volume_gib": Integer(4, 16384, "GiB")},
                needed=("instance_type", "root_volume_gib"),
            ),
            # Its version is not needed: layers below set the flavour also where there is no NVIDIA driver.
            "nvidia_driver": Keys(
                {
                    **_versioned("550.163.01").keys,
                    "flavour": Choice(FLAVOURS),
                    "gsp": Flag(),
                    "source": Choice(DRIVER_SOURCES),
                    "sha256": Text("0123456789abcdef" * 4, r"[0-9a-f]{64}", "64 hexadecimal digits"),
                    "virtual_applications": Flag(),
                }
            ),
            "fabric_manager": Keys({"version": Text("550.163.01", r"\d+(\.\d+){1,3}")}),
            "imex": Keys({"version": Text("550.163.01", r"\d+(\.\d+){1,3}")}),
            "cuda": _versioned('"12.4"', forward_compatibility=Flag()),
            "cudnn": _versioned("9.1.0"),
            "nccl": _versioned("2.21.5"),
            "efa": _versioned("1.38.0", mode=Choice(("full", "minimal"))),
            "ofi_nccl": _versioned("1.14.0"),
            "gdrcopy": _versioned('"2.5"'),
            "dcgm": _versioned("4.4.2"),
            "container_toolkit": _versioned("1.18.1", runtime=Choice(tuple(facts.container_toolkit["runtimes"]))),
            "neuron": _versioned("2.33.0"),
            "mkl": _versioned("2020.0-088"),
            "lustre": Keys({"key_fingerprint": Text("0123456789ABCDEF0123456789ABCDEF01234567", r"[0-9A-Fa-f]{40}")}),
            "tuning": _tuning(),
            "cloudwatch_agent": Keys({"version": agent_release}, needed=("version",)),
            **_observed(facts),
        },
        needed=(*OF_THE_RECIPE, "architecture", "node", "build", "roles", "ansible", "cloudwatch_agent", "telemetry"),
    )


def _builder(facts: Facts) -> Named:
    """Any instance type can build an image; of accelerated families the facts know them all."""
    table = facts.instance_types
    others = rf"(?!({'|'.join(table['families'])})\.)[a-z][a-z0-9-]*\.[a-z0-9-]+"
    return Named("instance type", table["instance_types"], "g5.12xlarge", others)


def _tuning() -> Keys:
    profile = r"\d+g\.\d+gb(\+[a-z.]+)?"
    return Keys(
        {
            "clocks": Flag(),
            "memlock": Flag(),
            "network": Flag(),
            "sysctl": MapOf(r"[a-z0-9_]+([./][\w-]+)+", "net.core.rmem_max", Text('"67108864"', r"[^\n]{1,200}")),
            "mig": MapOf(
                r"[a-z][a-z0-9-]*\.[a-z0-9-]+", "p4d.24xlarge", Text("3g.20gb,3g.20gb", rf"{profile}(,{profile})*")
            ),
        }
    )


def _source_ami() -> Keys:
    return Keys(
        {
            "id": Text("ami-0123456789abcdef0", r"ami-[0-9a-f]{8,17}"),
            "owner": Text('"136693071363"', r"\d{12}|[a-z][a-z-]*"),
            "name": Text("debian-12-amd64-*", r"\S.*"),
            "ssm": Text("/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64", r"/[\w./-]+"),
        }
    )


def _observed(facts: Facts) -> dict[str, Kind]:
    """The keys of event parser, telemetry, Neuron's metrics and the drain hook."""
    absolute = Text("/var/log/gpuevent.log", r"/[\w./+-]+")
    group = Text("/ec2/accelerated/accel-event-log", r"[\w./#-]{1,512}")
    return {
        "event_parser": Keys(
            {
                "raw_log": absolute,
                "json_log": absolute,
                "log_buf_len": Text("4M", r"\d+[KMG]?"),
                "seed_metrics_s": Integer(1, 3600, "seconds"),
            },
            needed=("raw_log", "json_log"),
        ),
        "neuron_monitor": Keys(
            {
                "namespace": Text("GpuAmi/Neuron", r"[\w./#:-]{1,255}"),
                "dimensions": ListOf(Choice(NEURON_DIMENSIONS)),
                "high_resolution": Flag(),
                "log": Text("/var/log/neuron-metrics.jsonl", r"/[\w./+-]+"),
                "log_group": Text("/ec2/accelerated/neuron-metrics", r"[\w./#-]{1,512}"),
            },
            needed=("namespace", "dimensions", "high_resolution", "log", "log_group"),
        ),
        "drain_hook": Keys(
            {
                "enabled": Flag(),
                "notices": ListOf(Choice(NOTICES)),
                "timeout_s": Integer(1, 7200, "seconds"),
                "log": Text("/var/log/gpu-ami-drain.jsonl", r"/[\w./+-]+"),
                "log_group": Text("/ec2/accelerated/drain", r"[\w./#-]{1,512}"),
            },
            needed=("enabled", "notices", "timeout_s", "log", "log_group"),
        ),
        "telemetry": Keys(
            {
                "profile": Choice(tuple(facts.telemetry)),
                "measurements": ListOf(Choice(tuple(facts.cloudwatch_agent["measurements"]))),
                "interval_s": Integer(1, 3600, "seconds"),
                "namespace": Text("CWAgent", r"[\w./#:-]{1,255}"),
                "raw_log_group": group,
                "json_log_group": group,
                "log_stream": Text('"{instance_id}"', r"[^:*\s]{1,512}"),
                "retention_days": Choice(tuple(facts.cloudwatch_agent["retention_days"])),
            },
            needed=("profile", "interval_s", "namespace", "raw_log_group", "json_log_group", "log_stream"),
        ),
    }
