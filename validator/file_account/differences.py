"""The differences between two states of a path: now, and in the base AMI or the certified image."""

from __future__ import annotations

from validator.file_account.inventory import Entry


def differences(now: Entry, before: Entry, hash_since: float = 0.0) -> list[str]:
    """The differences between an entry and what it was before, each with both values; empty if there are none."""
    if now.kind != before.kind:
        return [f"a {kind_name(now.kind)}, was a {kind_name(before.kind)}"]
    found = []
    if now.mode != before.mode and now.kind != "l":
        found.append(f"mode {now.mode:04o}, was {before.mode:04o}")
    if (now.owner, now.group) != (before.owner, before.group):
        found.append(f"owner {now.owner}:{now.group}, was {before.owner}:{before.group}")
    if now.kind == "f" and (now.sha256 or now.changed >= hash_since) and now.sha256 != before.sha256:
        found.append(f"content ({now.size} bytes, was {before.size})")
    if now.target != before.target:
        found.append(f"link to {now.target}, was {before.target}")
    if now.device != before.device:
        found.append(f"device {now.device}, was {before.device}")
    if dict(now.attributes) != dict(before.attributes):
        names = sorted(set(now.attributes.items()) ^ set(before.attributes.items()))
        found.append(f"attributes {', '.join(dict.fromkeys(name for name, _ in names))}")
    return found


def unchanged_package(now: Entry, before: Entry, names: str) -> str:
    """How an entry that is as its package has it differs from the base AMI's, whose package is the same; "" if not.

    Content is no difference where the base AMI's was not the package's own: then the package was installed again.
    """
    found = differences(now, before)
    if before.differs:
        found = [text for text in found if not text.startswith("content")]
    return f"{', '.join(found)} (package {names}, the same as in the base AMI)" if found else ""


def same_mode_and_owner(now: Entry, before: Entry | None) -> bool:
    """Whether an entry was there before with this mode, owner and group."""
    return before is not None and (now.mode, now.owner, now.group) == (before.mode, before.owner, before.group)


def mode_and_owner(entry: Entry) -> str:
    return f"mode {entry.mode:04o}, owner {entry.owner}:{entry.group}"


def kind_name(kind: str) -> str:
    names = {"f": "file", "d": "directory", "l": "link", "p": "fifo", "s": "socket"}
    return names.get(kind, "device")
