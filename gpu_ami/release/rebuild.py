"""Whether two images of a plan have the same content: all that differs, and what differs between any two builds.

Compared are files, directories, links, packages, accounts and groups of two inventories (docs/file-account.md). Times
are not. What may differ is in ALLOWED with its reason; owner and mode must be the same even there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpu_ami.release import comparison
from gpu_ami.release.comparison import Row
from validator import file_account
from validator.file_account import Entry, Inventory

BUILDER_BOOTS = "/usr/share/gpu-ami/builder-boots.jsonl"
_ONLY = "there"


@dataclass(frozen=True)
class Allowed:
    """Paths whose content any two builds have in common by chance alone. one_sided: only one image may have it."""

    paths: re.Pattern[str]
    reason: str
    one_sided: bool = False


ALLOWED = tuple(
    Allowed(re.compile(paths), reason, one_sided)
    for paths, reason, one_sided in (
        (
            r"/usr/share/gpu-ami/base-inventory\.jsonl\.gz",
            "the base AMI's files as the builder's first boot left them, with their times",
            False,
        ),
        (re.escape(BUILDER_BOOTS), "boots of the builders that began with a layer image", True),
        (r"/boot/initrd\.img-.+", "the archive has times; its files are compared one by one", False),
        (
            r"/(usr/)?lib/modules/[^/]+/(updates|extra)/.+\.ko(\.\w+)?",
            "DKMS signs modules with a key that it makes on each builder",
            False,
        ),
        (r"/var/lib/dkms/.+\.(log|ko)", "DKMS's build log with its times, and its copies of the signed modules", False),
        (r".+/__pycache__/[^/]+\.pyc", "compiled modules have the time of their source", False),
        (r"/etc/(passwd|shadow|group|gshadow)-", "the accounts' backups: before the last first boot's change", False),
        (
            r"/var/lib/chrony/chrony\.drift|/var/log/chrony|/var/lib/cloud(/seed)?|/var/lib/systemd/(linger|timers(/.+)?)",
            "state of services, which run on a booted builder and not in a sandbox",
            True,
        ),
        (r"/var/cache/ldconfig/aux-cache", "the loader's cache has times and inode numbers", False),
    )
)


@dataclass(frozen=True)
class Expected:
    """Paths that differ between any two builds, and why."""

    reason: str
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Judgement:
    """differences: what tells two images apart. expected: what differs between any two builds. compared: paths."""

    differences: tuple[Row, ...]
    expected: tuple[Expected, ...]
    compared: int

    @property
    def is_same(self) -> bool:
        return not self.differences


def judge(before: Inventory, after: Inventory) -> Judgement:
    """Compares everything in two inventories."""
    expected: dict[str, list[str]] = {}
    differences = [*comparison.packages(before, after), *comparison.accounts(before, after)]
    paths = sorted({*before.entries, *after.entries})
    for path in paths:
        row, one_sided = _row(path, before.entries.get(path), after.entries.get(path))
        if row is None:
            continue
        reason = _reason(path, row, one_sided=one_sided)
        if reason:
            expected.setdefault(reason, []).append(path)
        else:
            differences.append(row)
    differences += _ramdisks(before, after)
    rows = tuple(Expected(reason, tuple(found)) for reason, found in expected.items())
    return Judgement(tuple(differences), rows, len(paths))


def _row(path: str, old: Entry | None, new: Entry | None) -> tuple[Row | None, bool]:
    """How a path differs, and whether only one image has it."""
    if old is None or new is None:
        return Row(path, "" if old is None else _ONLY, "" if new is None else _ONLY), True
    found = file_account.differences(new, old)
    return (Row(path, "", "; ".join(found)) if found else None), False


def _reason(path: str, row: Row, *, one_sided: bool) -> str:
    """Why a path may differ; "" if it may not. Where both images have it, only content may."""
    for allowed in ALLOWED:
        if allowed.paths.fullmatch(path):
            only_content = re.fullmatch(r"content \([^)]*\)", row.after) is not None
            return allowed.reason if (allowed.one_sided if one_sided else only_content) else ""
    return ""


def _ramdisks(before: Inventory, after: Inventory) -> Iterator[Row]:
    """Files of initial ramdisks that only one has, or that differ beyond what differs in the image itself."""
    for path in sorted({*before.ramdisks} & {*after.ramdisks}):
        old, new = ({str(row[0]): tuple(row[1:]) for row in image.ramdisks[path].files} for image in (before, after))
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name) and not _may_differ(f"/{name}"):
                yield Row(f"{path}: {name}", _shown(old.get(name)), _shown(new.get(name)))


def _may_differ(path: str) -> bool:
    return any(allowed.paths.fullmatch(path) for allowed in ALLOWED)


def _shown(values: Iterable[object] | None) -> str:
    return " ".join(str(value)[:16] for value in values) if values else ""


def text(judgement: Judgement) -> str:
    """For a terminal: what is the same, what differs, and what differs in any two builds."""
    count = len(judgement.differences)
    lines = [f"{'the same' if judgement.is_same else f'{count} differences'}: {judgement.compared} paths compared"]
    lines += [f"  {row.subject}: {row.before or 'nothing'} → {row.after or 'nothing'}" for row in judgement.differences]
    if judgement.expected:
        lines += ["differ between any two builds:"]
        lines += [f"  {len(row.paths)}: {row.reason} ({row.paths[0]})" for row in judgement.expected]
    return "\n".join(lines)
