"""Compares initial ramdisks with the image: each file in one is a file of the image, or one that its tools generate.

Known are the ramdisks of initramfs-tools (Debian, Ubuntu). dracut strips programs and writes files of its own, so that
digests do not tell: its ramdisks are not compared, and are named.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from validator.file_account.inventory import Entry, Inventory, Ramdisk

# What initramfs-tools itself writes (mkinitramfs, hook-functions, scripts/functions), and depmod for the modules in it.
_GENERATED = re.compile(
    r"etc/ld\.so\.cache|usr/lib/modules/[^/]+/modules\.[\w.]+|lib/modules/[^/]+/modules\.[\w.]+"
    r"|kernel/x86/microcode/(AuthenticAMD|GenuineIntel)\.bin"
)
_TEXTS: Sequence[tuple[re.Pattern[str], re.Pattern[str]]] = (
    (
        re.compile(r"scripts/[\w-]+/ORDER"),
        re.compile(r'(/scripts/[\w-]+/[\w.-]+ "\$@"|\[ -e /conf/param\.conf \] && \. /conf/param\.conf)?'),
    ),
    (re.compile(r"conf/arch\.conf"), re.compile(r"DPKG_ARCH=[\w-]+|")),
    (re.compile(r"conf/modules"), re.compile(r"(#.*|[\w-]+( [\w.]+=\S+)*)?\s*")),
)
# Programs of a boot: only the files from which initramfs-tools copies them are the right ones.
_SCRIPTS = re.compile(r"init|scripts/.+")
_SOURCES = ("/usr/share/initramfs-tools/", "/etc/initramfs-tools/")
_DRACUT = re.compile(r"(usr/)?lib/dracut/.+")


class InvalidRamdisk(ValueError):
    """Not what onhost/initial_ramdisk.py writes."""


def not_compared(ramdisk: Ramdisk) -> str:
    """Why its files are not compared; "" if they are."""
    return ramdisk.unknown or ("made by dracut" if _is_of_dracut(ramdisk) else "")


def _is_of_dracut(ramdisk: Ramdisk) -> bool:
    return any(_DRACUT.fullmatch(row[0]) for row in ramdisk.files)


def read_ramdisks(text: str) -> dict[str, Ramdisk]:
    """The ramdisks of a host, by path. InvalidRamdisk."""
    try:
        rows = [json.loads(line) for line in text.splitlines()]
        found = [Ramdisk(row["ramdisk"], row["files"], row["texts"], row["error"], row["unknown"]) for row in rows]
    except (ValueError, LookupError, TypeError) as error:
        raise InvalidRamdisk(f"the list of a ramdisk's files could not be read: {error}") from error
    return {ramdisk.path: ramdisk for ramdisk in found}


def unexplained(ramdisk: Ramdisk, image: Inventory) -> list[str]:
    """What in the ramdisk is no file of the image, and is not generated; nothing where it cannot be compared."""
    if not_compared(ramdisk):
        return []
    wrong = list(_unexplained(ramdisk, _by_digest(image)))
    return [*wrong, ramdisk.error] if ramdisk.error else wrong


def _by_digest(image: Inventory) -> Mapping[str, list[Entry]]:
    found: dict[str, list[Entry]] = {}
    for entry in image.entries.values():
        if entry.sha256:
            found.setdefault(entry.sha256, []).append(entry)
    return found


def _unexplained(ramdisk: Ramdisk, by_digest: Mapping[str, list[Entry]]) -> Iterator[str]:
    names = {row[0] for row in ramdisk.files}
    links = {row[0]: row[3] for row in ramdisk.files if row[1] == "l"}
    for name, kind, mode, content, size in ramdisk.files:
        if mode & 0o6000:
            yield f"{name}: mode {mode:04o}"
        elif kind == "f" and (problem := _file_problem(name, content, size, ramdisk.texts, by_digest)):
            yield f"{name}: {problem}"
        elif kind == "l" and _end_of(name, links) not in names and not content.startswith(("/proc/", "/run/")):
            yield f"{name}: link to {content}, which the ramdisk does not have"
        elif kind == "n" and not name.startswith("dev/"):
            yield f"{name}: neither file, directory nor link"


def _file_problem(
    name: str, digest: str, size: int, texts: Mapping[str, str], by_digest: Mapping[str, list[Entry]]
) -> str:
    """Why nothing explains a file; "" if something does."""
    for pattern, line in _TEXTS:
        if pattern.fullmatch(name):
            wrong = [text for text in texts.get(name, "unknown").splitlines() if not line.fullmatch(text)]
            return f"line {wrong[0]!r}, which update-initramfs does not write" if wrong else ""
    if _GENERATED.fullmatch(name) or not size:
        return ""
    same = [entry.path for entry in by_digest.get(digest, ())]
    if not same:
        return "no file of the image has this content"
    if _SCRIPTS.fullmatch(name) and not any(f"{source}{name}" in same for source in _SOURCES):
        return f"not as {_SOURCES[0]}{name}"
    return ""


def _end_of(name: str, links: Mapping[str, str]) -> str:
    """Where a name leads in the ramdisk, links of its folders included; as far as 20 links lead."""
    path = name
    for _ in range(20):
        parts = path.split("/")
        folders = ["/".join(parts[: count + 1]) for count in range(len(parts))]
        link = next((folder for folder in folders if folder in links), None)
        if link is None:
            return path
        target = posixpath.join(posixpath.dirname(link), links[link]) if links[link][:1] != "/" else links[link]
        path = posixpath.normpath(f"{target}{path[len(link) :]}").lstrip("/")
    return ""
