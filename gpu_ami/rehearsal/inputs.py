"""A digest of all that decides what a rehearsal finds: plan, roles, base image, packages, checks.

A recipe whose digest an earlier run has judged is not rehearsed again. What the digest does not know, such as Debian's
archive or the host's kernel, `--fresh` is for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import gpu_ami
import validator
from gpu_ami.build import layers
from gpu_ami.data import data_root
from gpu_ami.local.images import rootfs_layers

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.local.images import Base
    from gpu_ami.plan import Plan

_PROGRAM = Path(gpu_ami.__file__).parent
# What builds, judges and boots; a base image's own files are in its digest.
_SUITE = ("build", "validate")
_BASE_IMAGES = "*_ami"


def digest(plan: Plan, base: Base, place: Place, instance_type: str) -> str:
    """`sha256:…` of the rehearsal of a plan on a base image. instance_type: that is booted, "" for files alone."""
    stack = layers.cut(plan, rootfs_layers.digest(base), place, data_root())
    checks = layers.files_digest([plan.site / "checks"]) if plan.site else ""
    parts = (plan.digest, stack[-1].digest, _local_region(), _suite(), checks, instance_type)
    return f"sha256:{hashlib.sha256(repr(parts).encode()).hexdigest()}"


@cache
def _local_region() -> str:
    """Of the local region's programs and replicas, without the base images."""
    return layers.files_digest(_region_files())


def _region_files() -> list[Path]:
    local = _PROGRAM / "local"
    replicas = local / "replicas"
    images = set(replicas.glob(_BASE_IMAGES))
    files = [path for path in local.iterdir() if path != replicas]
    return sorted([*files, *(path for path in replicas.iterdir() if path not in images)])


def region_files(base: Base) -> Iterator[Path]:
    """Folders and files of the local region that decide what is built on a base image: those of others do not."""
    yield from _region_files()
    replicas = _PROGRAM / "local" / "replicas"
    yield replicas / rootfs_layers.system_folder(base.system).name
    yield from (replicas / f"{name}_ami" for name in ("debian", base.family))


@cache
def _suite() -> str:
    """Of what builds and judges."""
    return layers.files_digest([Path(validator.__file__).parent, *(_PROGRAM / name for name in _SUITE)])
