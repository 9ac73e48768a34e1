"""Rules of the FSx for Lustre client and of the tuning: systems with a client, GPUs that can be divided (MIG)."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import Row
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext


def lustre_is_there(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """AWS builds the client for some systems; the recipe must name the fingerprint of its key for Ubuntu."""
    if "lustre" not in context.values:
        return
    row = context.facts.lustre["clients"].get(context.os_name)
    source = context.facts.lustre["source"]
    if row is None:
        able = ", ".join(context.facts.lustre["clients"])
        yield Conflict("lustre", f"no Lustre client is built for {context.os_name}", source, nearest=f"os {able}")
    elif "repository" in row and "key_fingerprint" not in context.section("lustre"):
        key_url = row["repository"]["key_url"]
        text = f"the fingerprint of {key_url} is not in the facts, and a key is trusted by its fingerprint only"
        yield Conflict("lustre.key_fingerprint", text, source, nearest="lustre.key_fingerprint as AWS publishes it")


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


SYSTEM_RULES = (lustre_is_there, mig_is_possible)
