"""Menus of GRUB as update-grub writes them, and what their defaults choose; checked in test_planted_traces, too."""

from __future__ import annotations

import pytest

from tests.scripted_host import table_host
from tests.validator.checks.test_planted_traces import grub
from validator.probes import boot_entries


def chosen(default: str, environment: str = "") -> list[tuple[str, str | None, str]]:
    host = table_host({"for d in*": f"\x01/boot/grub\n{grub(default)}\n\x02# GRUB\n{environment}"})
    found = boot_entries.choices(host) or []
    return [
        (row.value, row.entry.title if row.entry else None, row.entry.release if row.entry else "") for row in found
    ]


@pytest.mark.parametrize(
    ("default", "title", "release"),
    [
        ("0", "Debian GNU/Linux", "6.1.0-56-cloud-amd64"),
        ("1", "Linux 6.1.0-56", "6.1.0-56-cloud-amd64"),  # of a submenu the first
        ("1>2", "Linux 6.12.9", "6.12.9"),
        ("Advanced options>gnulinux-6.12.9-advanced-1", "Linux 6.12.9", "6.12.9"),
        ("gnulinux-6.12.9-advanced-1", None, ""),  # an entry of a submenu needs the submenu's id
        ("7", None, ""),
    ],
)
def test_default_chooses(default: str, title: str | None, release: str) -> None:
    assert chosen(default) == [(default, title, release)]


def test_next_entry_comes_beside_the_default() -> None:
    assert [row[:2] for row in chosen("0", "next_entry=1>1\n")] == [
        ("1>1", "Linux 6.1.0-56 (recovery mode)"),
        ("0", "Debian GNU/Linux"),
    ]


def test_no_configuration_chooses_nothing() -> None:
    assert boot_entries.choices(table_host({"for d in*": ""})) is None
