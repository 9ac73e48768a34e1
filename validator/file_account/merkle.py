"""A Merkle tree over the entries of an inventory: its root is what a certificate signs of them.

The tree is that of RFC 6962, section 2.1, with SHA-256; its leaves are the entries in the order of their paths (as
UTF-8, surrogates as they are). A leaf is the entry's canonical JSON without times, which differ between copies.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from validator.file_account.inventory import Entry, Inventory


def leaf(entry: Entry) -> bytes:
    """The hash of an entry: everything that the inventory has of it but its times."""
    content = {
        "path": entry.path,
        "kind": entry.kind,
        "mode": entry.mode,
        "owner": entry.owner,
        "group": entry.group,
        "size": entry.size,
        "sha256": entry.sha256,
        "target": entry.target,
        "device": list(entry.device),
        "attributes": dict(entry.attributes),
        "packages": sorted(entry.packages),
    }
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(b"\0" + text.encode("ascii")).digest()


def root(inventory: Inventory) -> str:
    """The root over all entries, 64 hexadecimal digits."""
    return _root([leaf(entry) for entry in _ordered(inventory)]).hex()


def _ordered(inventory: Inventory) -> list[Entry]:
    return [inventory.entries[path] for path in sorted(inventory.entries, key=_key)]


def _key(path: str) -> bytes:
    return path.encode("utf-8", "surrogatepass")


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def _split(count: int) -> int:
    """The largest power of two below count."""
    return 1 << (count - 1).bit_length() - 1


def _root(leaves: Sequence[bytes]) -> bytes:
    if not leaves:
        return hashlib.sha256(b"").digest()
    if len(leaves) == 1:
        return leaves[0]
    middle = _split(len(leaves))
    return _node(_root(leaves[:middle]), _root(leaves[middle:]))
