"""Intel's Math Kernel Library."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NotRequired

from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import (
    Assignment,
    Component,
    Conflict,
    Observed,
    ResolveContext,
    TemplateVariable,
    Understood,
    file,
    package,
    versioned,
)
from validator import plan_document
from validator.plan_document import Repository


class Mkl(plan_document.Component):
    """Intel's Math Kernel Library."""

    package: NotRequired[str]
    repository: NotRequired[Repository]


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> Mkl:
    facts = context.facts.mkl
    family = context.os["family"]
    repository = facts["repositories"][family]
    sources.add("the MKL repository's key", facts)
    return {
        "version": versions["mkl"],
        "package": facts["releases"][versions["mkl"]]["package"],
        "repository": {
            "url": f"{repository['url']}/mkl/",
            "suite": "all" if family == "debian" else "./",
            "components": ["main"] if family == "debian" else [],
            "key_url": f"{repository['url']}/intel-gpg-keys/{repository['key']}",
            "key_fingerprint": facts["key_fingerprint"],
        },
    }


def has_architecture(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    allowed = context.facts.mkl["architectures"]
    if context.values["architecture"] not in allowed:
        text = f"MKL {chosen['mkl']} is for {', '.join(allowed)}, the image is {context.values['architecture']}"
        yield Conflict("mkl", text, context.facts.mkl["source"], nearest="leave out mkl")


def _understood(text: str) -> Understood:
    version = re.search(r"(\d{4}\.\d+-\d+)", text)
    if version:
        return Understood(version[1], ("carried over, although no template of the former pipeline installed it",))
    return Understood(None, others=(text,))


COMPONENT = Component(
    "mkl",
    "MKL",
    layer="kernel",  # it needs no driver
    after=("neuron",),
    before=("lustre",),
    is_chosen=True,
    keys=versioned("2020.0-088"),
    section=Mkl,
    write=_section,
    rules=((("mkl",), has_architecture),),
    observed=Observed(
        (
            package(r"intel-mkl(-64bit)?(-20[\d.]+(-\d+)?)?", r"^(20\d\d\.\d+-\d+)"),
            package(r"intel-oneapi-mkl(-core|-classic)?(-20[\d.]+)?", r"^(20\d\d\.\d+)"),
            file("libmkl_rt.so.*", r"/mkl/(20\d\d\.\d+)", "library file"),
        )
    ),
    size_gib=5,
    version_tag="intel_mkl_version",
    is_promised=True,
    template=TemplateVariable(r"(intel_)?mkl(_version)?", _understood),
)
