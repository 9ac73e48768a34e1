"""AWS's client of FSx for Lustre."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import (
    PRESENCE,
    Assignment,
    Component,
    Conflict,
    Observed,
    ResolveContext,
    file,
    module,
    package,
    refusal,
)
from validator.plan_document import Lustre
from validator.schema import Keys, Text


def _section(context: ResolveContext, _versions: Assignment, sources: Sources) -> Lustre | None:
    row = context.facts.lustre["clients"].get(context.os_name)
    if "lustre" not in context.values or row is None:
        return None
    sources.add(f"Lustre client of {context.os_name}", row)
    section: Lustre = {"package": row["package"]}
    if "repository" in row:
        key, named = context.facts.lustre["key"], context.section("lustre").get("key_fingerprint", "")
        if not named:
            sources.add("the key of AWS's repository of the Lustre client", key)
        section["repository"] = {
            "url": row["repository"]["url"],
            "components": row["repository"]["components"],
            "key_url": row["repository"]["key_url"],
            "suite": context.os["codename"],
            "key_fingerprint": (named or key["fingerprint"]).upper(),
        }
    return section


def client_is_built(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """AWS builds the client for some systems, and for some kernel series of them."""
    if "lustre" not in context.values:
        return
    row = context.facts.lustre["clients"].get(context.os_name)
    source = context.facts.lustre["source"]
    if row is None:
        able = ", ".join(context.facts.lustre["clients"])
        yield Conflict("lustre", f"no Lustre client is built for {context.os_name}", source, nearest=f"os {able}")
    if row is not None and context.kernel not in row.get("kernels", [context.kernel]):
        what = f"Lustre client of {context.os_name} with kernel {context.kernel}"
        nearest = " or ".join(f'kernel.version "{series}"' for series in row["kernels"]) + ", or leave out lustre"
        yield from refusal(context, "lustre-client-kernel", what, nearest)


COMPONENT = Component(
    "lustre",
    "Lustre client",
    layer="node",
    after=("neuron",),
    keys=Keys({"key_fingerprint": Text("0123456789ABCDEF0123456789ABCDEF01234567", r"[0-9A-Fa-f]{40}")}),
    meanings={"key_fingerprint": "fingerprint of the repository's key that you trust (Ubuntu; default: the facts')"},
    section=Lustre,
    write=_section,
    rules=(((), client_is_built),),
    observed=Observed(
        (
            package(r"lustre-client(-utils|-modules-[\w.-]+)?", r"^(\d+\.\d+(?:\.\d+)?)"),
            *module("lustre", r"^(\d+\.\d+(?:\.\d+)?)"),
            file("/usr/bin/lfs", PRESENCE),
        )
    ),
    size_gib=0.1,
)
