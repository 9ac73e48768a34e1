"""What GRUB boots next: the entries of grub.cfg and of /boot/loader/entries, and the one that its variables choose.

Sources: GRUB manual, sections "default", "menuentry" and "The GRUB environment block"; grub-core/normal/menu.c: a
default that names no entry is the first one. https://uapi-group.org/specifications/specs/boot_loader_specification/
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

_READ = """\
for d in /boot/grub /boot/grub2; do [ -f $d/grub.cfg ] || continue
printf '\\001%s\\n' $d; cat $d/grub.cfg; printf '\\n\\002'; cat $d/grubenv 2>/dev/null; done
for f in /boot/loader/entries/*.conf; do [ ! -f "$f" ] || { printf '\\003%s\\n' "$f"; cat "$f"; }; done"""
_HEAD = re.compile(r"(menuentry|submenu)\s+(?:'([^']*)'|\"([^\"]*)\"|(\S+))(.*)\{$")
_ID = re.compile(r"(?:--id|\$\{?menuentry_id_option\}?)[\s=]+(?:'([^']*)'|\"([^\"]*)\"|(\S+))")
_DEFAULT = re.compile(r"set\s+default=[\"']?([^\"']*)[\"']?$")
_RECOVERY = re.compile(r"single|recovery|emergency|rescue|[1sS]|systemd\.unit=(?:rescue|emergency)\.target")


@dataclass
class Entry:
    """A menu entry, or a submenu with entries of its own. files: kernel and initial ramdisks as they are written."""

    title: str
    id: str = ""
    files: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)

    @property
    def is_recovery(self) -> bool:
        """Whether it boots without network and logins."""
        of_rescue = any("-rescue" in path for path in self.files)
        return of_rescue or any(_RECOVERY.fullmatch(option) for option in self.options)

    @property
    def release(self) -> str:
        """The kernel's release by the name of its file; "" where that does not say it."""
        names = [path.rpartition("/")[2] for path in self.files]
        return next((name.partition("-")[2] for name in names if name.startswith("vmlinuz-")), "")


@dataclass(frozen=True)
class Choice:
    """What a setting chooses. where: file and setting; entry: None if it names none, and the first one boots."""

    where: str
    value: str
    entry: Entry | None


def choices(host: Any) -> list[Choice] | None:
    """What each configuration of GRUB chooses; None if there is no configuration."""
    configurations, *loader = host.run(_READ, pure=True).stdout.split("\003")
    of_loader = [_loader_entry(text) for text in loader]
    parts = configurations.split("\001")[1:]
    return [choice for part in parts for choice in _choices(part, of_loader)] if parts else None


def _choices(part: str, of_loader: list[Entry]) -> Iterator[Choice]:
    folder, _, text = part.partition("\n")
    config, _, environment = text.partition("\002")
    lines = [line.strip() for line in config.splitlines()]
    entries = _menu(lines) + (of_loader if "blscfg" in lines else [])
    variables = dict(line.partition("=")[::2] for line in environment.splitlines() if not line.startswith("#"))
    for line in lines:
        if not (match := _DEFAULT.match(line)):
            continue
        name = re.fullmatch(r"\$\{?(\w+)\}?", match[1])
        value = variables.get(name[1], "") if name else match[1]
        where = f"{folder}/grubenv: {name[1]}" if name else f"{folder}/grub.cfg: default"
        if value:
            yield Choice(where, value, _chosen(entries, value))
        elif not name or name[1] == "saved_entry":
            yield Choice(where, "0", _chosen(entries, "0"))


def _menu(lines: list[str]) -> list[Entry]:
    """The entries at the top."""
    root = Entry("")
    open_blocks: list[Entry | None] = [root]  # None: of a function
    for line in lines:
        menus = [block for block in open_blocks if block is not None]
        if head := _HEAD.match(line):
            found = _ID.search(head[5])
            name = next((word for word in found.groups() if word), "") if found else ""
            entry = Entry(head[2] or head[3] or head[4] or "", name)
            menus[-1].entries.append(entry)
            open_blocks.append(entry)
        elif line.endswith("{") and not line.endswith("${"):
            open_blocks.append(None)
        elif line == "}" and len(open_blocks) > 1:
            open_blocks.pop()
        elif len(menus) > 1:
            _add_files(menus[-1], line)
    return root.entries


def _add_files(entry: Entry, line: str) -> None:
    command, *words = line.split()[:64] or [""]
    if re.fullmatch(r"linux(?:16|efi)?", command) and words:
        entry.files.insert(0, words[0])
        entry.options += words[1:]
    elif re.fullmatch(r"initrd(?:16|efi)?", command):
        entry.files += words
    elif command == "options":
        entry.options += words


def _loader_entry(text: str) -> Entry:
    path, _, content = text.partition("\n")
    entry = Entry("", path.rpartition("/")[2].removesuffix(".conf"))
    for line in content.splitlines():
        if line.startswith("title "):
            entry.title = line.partition(" ")[2].strip()
        _add_files(entry, line.strip())
    return entry


def _chosen(entries: list[Entry], value: str) -> Entry | None:
    """The entry of a default (`0`, a title, an id, `1>2`); of a submenu its first entry."""
    chosen: Entry | None = None
    for part in value.split(">"):
        numbered = entries[int(part)] if part.isdecimal() and int(part) < len(entries) else None
        chosen = numbered or next((entry for entry in entries if part in (entry.title, entry.id)), None)
        if chosen is None:
            return None
        entries = chosen.entries
    while chosen is not None and chosen.entries:
        chosen = chosen.entries[0]
    return chosen
