"""The recipe's keys: those of the image as a whole, here, and the section of each component, of its declaration."""

from __future__ import annotations

from gpu_ami.recipes.components import Registry, build_order, components
from gpu_ami.recipes.facts import ARCHITECTURES, Facts
from gpu_ami.recipes.rules import NO_KEYS
from validator.schema import Choice, Integer, Keys, ListOf, Named, Text

# What a recipe must say itself; everything else may come from the layers below it.
OF_THE_RECIPE = ("flag", "os", "instance_types")


def recipe_keys(facts: Facts, registry: Registry, nodes: tuple[str, ...]) -> Keys:
    """The grammar, with the names that facts and node families have, and the sections of the components."""
    instance_type = Named("instance type", facts.instance_types["instance_types"], "g5.12xlarge")
    of_site = [name for name in registry if name not in components()]
    series = Text('"6.1"', r"\d+\.\d+")
    return Keys(
        {
            "description": Text("one line about the image", r"[^\n]{1,200}"),
            "flag": Text("debian12-gpu", r"[a-z0-9][a-z0-9.-]{0,63}", "at most 64 of a-z, 0-9, dots and dashes,"),
            "os": Choice(tuple(facts.operating_systems)),
            "architecture": Choice(tuple(ARCHITECTURES), {"amd64": "x86_64", "aarch64": "arm64", "arm": "arm64"}),
            "node": Choice(nodes),
            "node_version": Text('"1.33"', r"\d+(\.\d+){0,2}"),
            "node_variant": Choice(
                tuple(sorted({name for row in facts.node_families.values() for name in row.get("variants", ())}))
            ),
            "kernel": Keys({"version": series}, needed=("version",)),
            "instance_types": ListOf(instance_type),
            "roles": ListOf(Choice((*sorted(build_order()), *of_site))),
            "ansible": Keys({"core": Choice(tuple(facts.ansible["releases"]))}, needed=("core",)),
            "accept": ListOf(Choice(tuple(facts.incompatibilities["rows"]))),
            "source_ami": _source_ami(),
            "build": Keys(
                {"instance_type": _builder(facts), "root_volume_gib": Integer(4, 16384, "GiB")},
                needed=("instance_type", "root_volume_gib"),
            ),
            **{name: one.grammar(facts) for name, one in components().items() if one.keys is not NO_KEYS},
            "telemetry": _telemetry(facts),
            **{name: registry[name].grammar(facts) for name in of_site},
        },
        needed=(*OF_THE_RECIPE, "architecture", "node", "build", "roles", "ansible", "cloudwatch_agent", "telemetry"),
    )


def _builder(facts: Facts) -> Named:
    """Any instance type can build an image; of accelerated families the facts know them all."""
    table = facts.instance_types
    others = rf"(?!({'|'.join(table['families'])})\.)[a-z][a-z0-9-]*\.[a-z0-9-]+"
    return Named("instance type", table["instance_types"], "g5.12xlarge", others)


def _source_ami() -> Keys:
    return Keys(
        {
            "id": Text("ami-0123456789abcdef0", r"ami-[0-9a-f]{8,17}"),
            "owner": Text('"136693071363"', r"\d{12}|[a-z][a-z-]*"),
            "name": Text("debian-12-amd64-*", r"\S.*"),
            "ssm": Text("/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64", r"/[\w./-]+"),
        }
    )


def _telemetry(facts: Facts) -> Keys:
    """What is published: metrics and logs. Further logs are keys of the components that write them."""
    group = Text("/ec2/accelerated/accel-event-log", r"[\w./#-]{1,512}")
    return Keys(
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
    )
