"""The recipe's keys. One table: what it does not name is not a recipe's key."""

from __future__ import annotations

from gpu_ami.recipes.facts import Facts
from gpu_ami.recipes.schema import Choice, Integer, Keys, ListOf, Named, Text, version_text

ARCHITECTURES = ("x86_64", "arm64")
FLAVOURS = ("open", "proprietary")


def _versioned(example: str, **more: Text | Choice) -> Keys:
    return Keys({"version": version_text(example), **more}, needed=("version",))


def recipe_keys(facts: Facts, roles: tuple[str, ...], nodes: tuple[str, ...]) -> Keys:
    """The grammar, with the names that the facts and folders know."""
    absolute = Text("/var/log/gpuevent.log", r"/[\w./+-]+")
    group = Text("/ec2/accelerated/accel-event-log", r"[\w./#-]{1,512}")
    instance_type = Named("instance type", facts.instance_types, "g5.12xlarge")
    measurement = Choice(tuple(facts.cloudwatch_agent["measurements"]))
    return Keys(
        {
            "description": Text("one line about the image", r"[^\n]{1,200}"),
            "flag": Text("debian12-gpu", r"[a-z0-9][a-z0-9.-]{0,63}"),
            "os": Choice(tuple(facts.operating_systems)),
            "architecture": Choice(ARCHITECTURES),
            "node": Choice(nodes),
            "instance_types": ListOf(instance_type),
            "roles": ListOf(Choice(roles)),
            "source_ami": Keys(
                {
                    "id": Text("ami-0123456789abcdef0", r"ami-[0-9a-f]{8,17}"),
                    "owner": Text('"136693071363" or amazon', r"\d{12}|[a-z][a-z-]*"),
                    "name": Text("debian-12-amd64-*", r"\S+"),
                    "ssm": Text("/aws/service/ami-amazon-linux-latest/…", r"/[\w./-]+"),
                }
            ),
            "build": Keys(
                {
                    "instance_type": instance_type,
                    "root_volume_gib": Integer(4, 16384, "GiB"),
                },
                needed=("instance_type", "root_volume_gib"),
            ),
            "nvidia_driver": _versioned("550.163.01", flavour=Choice(FLAVOURS)),
            "cuda": _versioned('"12.4"'),
            "cudnn": _versioned("9.1.0"),
            "nccl": _versioned("2.21.5"),
            "efa": _versioned("1.38.0"),
            "mkl": _versioned("2020.0-088"),
            "cloudwatch_agent": _versioned("1.300071.0"),
            "event_parser": Keys(
                {"raw_log": absolute, "json_log": absolute, "log_buf_len": Text("4M", r"\d+[KMG]?")},
                needed=("raw_log", "json_log"),
            ),
            "telemetry": Keys(
                {
                    "profile": Choice(tuple(facts.telemetry)),
                    "measurements": ListOf(measurement),
                    "interval_s": Integer(1, 3600, "seconds"),
                    "namespace": Text("CWAgent", r"[\w./#:-]{1,255}"),
                    "raw_log_group": group,
                    "json_log_group": group,
                    "log_stream": Text('"{instance_id}"', r"[^:*\s]{1,512}"),
                    "retention_days": Choice(tuple(facts.cloudwatch_agent["retention_days"])),
                },
                needed=("profile", "interval_s", "namespace", "raw_log_group", "json_log_group", "log_stream"),
            ),
        },
        needed=("flag", "os", "instance_types", "build", "roles", "telemetry"),
    )
