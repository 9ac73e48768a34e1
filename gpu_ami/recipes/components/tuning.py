"""Settings for GPU work: limits, sysctl, application clocks and MIG, where the recipe asks for them."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import Row, Sources, at_least
from gpu_ami.recipes.rules import Assignment, Component, Conflict, ResolveContext
from validator.plan_document import Tuning
from validator.schema import Flag, Keys, MapOf, Text

_PROFILE = r"\d+g\.\d+gb(\+[a-z.]+)?"


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> Tuning | None:
    if "tuning" not in context.values:
        return None
    asked, facts = context.section("tuning"), context.facts.tuning
    names = [gpu.row["name"] for gpu in context.gpus] if asked.get("clocks", True) else []
    end, driver = facts["clocks_end_before"], str(versions.get("nvidia_driver") or "")
    if names and driver and at_least(driver, end["driver"]):
        sources.note(f"driver {driver} has no application clocks, as none from R{end['driver']} on: none are set")
        names = []
    known = {name: facts["clocks"][name] for name in names if name in facts["clocks"]}
    for name, row in known.items():
        sources.add(f"clocks of {name}", row)
    for name in names:
        if name not in known:
            sources.note(f"not established: the highest application clocks of {name}; they are not set")
    settings = dict(asked.get("sysctl", {}))
    if asked.get("network", True):
        sources.add("network settings", facts["sysctl"])
        settings = dict(facts["sysctl"]["values"]) | settings
    for name in asked.get("mig", {}):
        gpu = context.instance_types[name]["gpu"]["name"]
        sources.add(f"MIG profiles of {gpu}", facts["mig"]["gpus"][gpu])
    section: Tuning = {
        "sysctl": settings,
        "clocks": {name: list(row["mhz"]) for name, row in known.items()},
        "mig": dict(asked.get("mig", {})),
    }
    if asked.get("memlock", True):
        sources.add("limit of locked memory", facts["memlock"])
        section["memlock"] = facts["memlock"]["value"]
    return section


def mig_is_possible(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """The GPUs of each type must support the MIG profiles of the recipe."""
    facts = context.facts.tuning["mig"]
    for name, asked in context.section("tuning").get("mig", {}).items():
        path = f"tuning.mig.{name}"
        if name not in context.instance_types:
            text = f"{name} is not among the recipe's instance types"
            yield Conflict(path, text, "a profile is applied by instance type", nearest="leave it out")
            continue
        gpu = context.instance_types[name].get("gpu", {}).get("name")
        row = facts["gpus"].get(gpu)
        if row is None:
            text = f"{gpu or 'no GPU'} ({name}) cannot be divided into MIG instances"
            yield Conflict(path, text, facts["sources"]["guide"]["source"], nearest="leave it out")
            continue
        problem = _mig_problem(row, asked.split(","))
        if problem:
            fitting = ", ".join(f"{most} x {profile}" for profile, (_, most) in row["profiles"].items())
            yield Conflict(
                path, f"{gpu} ({name}) {problem}", row["source"], nearest=f"one of {fitting}, or a mix of them"
            )


def _mig_problem(row: Row, profiles: list[str]) -> str:
    """Why a GPU cannot be divided into these profiles; empty if it can. Each uses compute and memory slices."""
    known = row["profiles"]
    unknown = sorted({name for name in profiles if name not in known})
    if unknown:
        return f"has no MIG profile {' or '.join(unknown)}"
    for name in sorted(set(profiles)):
        if profiles.count(name) > known[name][1]:
            return f"takes at most {known[name][1]} x {name}, not {profiles.count(name)}"
    compute = sum(int(name.partition("g.")[0]) for name in profiles)
    memory = sum(known[name][0] for name in profiles)
    if compute > row["slices"][0] or memory > row["slices"][1]:
        needed = f"{compute} compute and {memory} memory slices"
        return f"cannot hold {','.join(profiles)}: needs {needed}, has {row['slices'][0]} and {row['slices'][1]}"
    return ""


COMPONENT = Component(
    "tuning",
    layer="node",
    after=("lustre",),
    keys=Keys(
        {
            "clocks": Flag(),
            "memlock": Flag(),
            "network": Flag(),
            "sysctl": MapOf(r"[a-z0-9_]+([./][\w-]+)+", "net.core.rmem_max", Text('"67108864"', r"[^\n]{1,200}")),
            "mig": MapOf(
                r"[a-z][a-z0-9-]*\.[a-z0-9-]+", "p4d.24xlarge", Text("3g.20gb,3g.20gb", rf"{_PROFILE}(,{_PROFILE})*")
            ),
        }
    ),
    meanings={
        "clocks": "false: leave the application clocks as they are",
        "memlock": "false: leave the limit of locked memory as it is",
        "network": "false: leave the network's sysctl settings as they are",
        "sysctl": "further kernel settings",
        "mig": "MIG profiles of each GPU, by instance type; `gpu-ami plan` lists those that fit",
    },
    section=Tuning,
    write=_section,
    rules=(((), mig_is_possible),),
)
