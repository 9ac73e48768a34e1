"""The Merkle tree: its shape by RFC 6962, and what a leaf covers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from validator.file_account import Entry, Inventory, merkle_leaf, merkle_root


def inventory(count: int) -> Inventory:
    paths = [f"/usr/{number:02}" for number in range(count)]
    return Inventory({path: Entry(path, "f", 0o644, "root", "root", sha256=path.encode().hex()) for path in paths})


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def test_its_shape_is_that_of_rfc_6962() -> None:
    """Section 2.1.3: of five leaves, four are on the left."""
    taken = inventory(5)
    a, b, c, d, e = (merkle_leaf(entry) for entry in taken.entries.values())
    assert merkle_root(taken) == node(node(node(a, b), node(c, d)), e).hex()
    assert merkle_root(inventory(0)) == hashlib.sha256(b"").hexdigest()
    assert merkle_root(inventory(1)) == merkle_leaf(next(iter(inventory(1).entries.values()))).hex()


CHANGES: dict[str, Callable[[Entry], Entry]] = {
    "mode": lambda entry: replace(entry, mode=0o666),
    "owner": lambda entry: replace(entry, owner="admin"),
    "content": lambda entry: replace(entry, sha256="00"),
    "target": lambda entry: replace(entry, target="/x"),
    "attributes": lambda entry: replace(entry, attributes={"security.capability": "01"}),
    "kind": lambda entry: replace(entry, kind="l"),
    "packages": lambda entry: replace(entry, packages=("x",)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_entry_has_another_root(name: str) -> None:
    taken = inventory(4)
    changed = {**taken.entries, "/usr/02": CHANGES[name](taken.entries["/usr/02"])}
    assert merkle_root(Inventory(changed)) != merkle_root(taken)


def test_order_and_times_do_not_count() -> None:
    taken = inventory(4)
    entries = {path: replace(entry, modified=5, changed=6) for path, entry in reversed(taken.entries.items())}
    assert merkle_root(Inventory(entries)) == merkle_root(taken)


def test_a_name_that_is_no_utf_8_has_a_place() -> None:
    entry = Entry("/usr/\udcff", "f", 0o644, "root", "root")
    taken = Inventory({**inventory(2).entries, entry.path: entry})
    a, b, c = (merkle_leaf(one) for one in taken.entries.values())
    assert merkle_root(taken) == node(node(a, b), c).hex()
