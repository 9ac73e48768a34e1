"""AWS's EFA installer: kernel module, rdma-core, libfabric, Open MPI and, on some systems, aws-ofi-nccl."""

from __future__ import annotations

import re
from typing import cast

from gpu_ami.recipes.facts import NEWEST, Row, Sources
from gpu_ami.recipes.rules import (
    NETWORK_RULES,
    PRESENCE,
    Assignment,
    Component,
    Observed,
    ResolveContext,
    TemplateVariable,
    Understood,
    bundled_plugin,
    file,
    kernel_module_rule,
    package,
    plain,
    record,
    versioned,
)
from validator.plan_document import Efa, EfaContents
from validator.schema import Choice, Flag


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> Efa:
    facts = context.facts.efa
    row = facts["releases"][versions["efa"]]
    url = f"{facts['base_url']}/aws-efa-installer-{versions['efa']}.tar.gz"
    sources.add("the EFA installer's key", facts)
    section: Efa = {
        "version": versions["efa"],
        "mode": context.section("efa").get("mode", "full"),
        "url": url,
        "signature_url": f"{url}.sig",
        "key_url": facts["key_url"],
        "key_fingerprint": facts["key_fingerprint"],
        "contents": _contents(row, bundled_plugin(context, versions["efa"])),
    }
    if "nvidia" not in context.accelerators:
        section["unwanted"] = [facts["nvidia_package"]["name"]]
        sources.add("the EFA installer's package for NVIDIA drivers", facts["nvidia_package"])
    return section


def _contents(row: Row, plugin: str | None) -> EfaContents:
    contents = {key: row[key] for key in ("kernel_module", "libfabric", "rdma_core") if key in row}
    return cast(EfaContents, contents | ({"ofi_nccl": plugin} if plugin else {}))


def _understood(text: str) -> Understood:
    """A file name: `aws-efa-installer-1.25.1.tar.gz`, `aws-efa-installer-latest.tar.gz`."""
    version = re.search(r"(\d+\.\d+\.\d+)", text)
    if version:
        return Understood(version[1])
    return (
        Understood(NEWEST, (f"'latest' becomes {NEWEST}; the lock will pin it",)) if "latest" in text else plain(text)
    )


COMPONENT = Component(
    "efa",
    "EFA",
    layer="libraries",
    after=("nccl",),
    is_chosen=True,
    keys=versioned("1.38.0", mode=Choice(("full", "minimal")), gda=Flag()),
    meanings={
        "version": "version of the EFA installer; exact, a branch, or `newest`",
        "gda": "true: refuse a plan on which EFA-GDA (network operations that GPUs start) does not work",
        "mode": "`minimal`: only the kernel module and rdma-core, without libfabric and Open MPI",
    },
    section=Efa,
    write=_section,
    rules=(*NETWORK_RULES, kernel_module_rule("efa")),
    observed=Observed(
        (
            record("/opt/amazon/efa_installed_packages", r"(?m)^# EFA installer version: *(\d+\.\d+\.\d+)"),
            package(r"efa-config|efa-profile|libfabric1?-aws(-bin)?", PRESENCE),
            file("/opt/amazon/efa/bin/fi_info", PRESENCE),
        )
    ),
    size_gib=0.6,
    version_tag="efa_version",
    is_promised=True,
    template=TemplateVariable(r"(aws_)?efa(_installer)?(_pkg|_version|_package|_installer)?", _understood),
)
