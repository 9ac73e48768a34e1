"""What small files record that programs write, each line against the base AMI's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from validator.file_account import Entry, Inventory
from validator.file_account.recorded import RECORDED

NEW = frozenset({"planned"})
GRUBENV = "/boot/grub/grubenv"
OLD = ("/usr/bin/vi", "/usr/bin/vi.dist", "vim")
PLAIN = ("root", "crontab", "2755", "/usr/bin/crontab")
FILES = {path: Entry(path, "f", 0o755, "root", "root", packages=(package,)) for path, package in (
    ("/usr/bin/crontab", "cron"), ("/usr/bin/planned", "planned"),
)}  # fmt: skip
BASE = Inventory(FILES, grubenv={GRUBENV: {"saved_entry": "0"}}, diversions=(OLD,), overrides=(PLAIN,))


@pytest.mark.parametrize(
    ("changes", "entries", "found"),
    [
        ({"saved_entry": "0", "boot_success": "1", "recordfail": "1"}, {}, []),
        ({"saved_entry": "", "next_entry": ""}, {}, []),
        ({"next_entry": "rescue"}, {}, ["next_entry=rescue, base none: another entry boots"]),
        ({"saved_entry": "2"}, {}, ["saved_entry=2, base 0: another entry boots"]),
        ({"saved_entry": "id-6.1"}, {"/boot/loader/entries/id-6.1.conf": FILES["/usr/bin/planned"]}, []),
        ({"next_entry": "id-6.1"}, {"/boot/loader/entries/id-6.1.conf": FILES["/usr/bin/planned"]},
         ["next_entry=id-6.1, base none: another entry boots"]),
    ],
)  # fmt: skip
def test_the_boot_loader_s_choice(changes: dict[str, str], entries: dict[str, Entry], found: list[str]) -> None:
    image = replace(BASE, entries={**FILES, **entries}, grubenv={GRUBENV: changes})
    assert RECORDED["grubenv"](GRUBENV, image, BASE, NEW) == found


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (("/usr/bin/x", "/usr/bin/x.distrib", "planned"), []),
        (("/usr/bin/x", "/usr/bin/x.distrib", ":"), ["/usr/bin/x diverted to /usr/bin/x.distrib by hand"]),
        (("/usr/bin/x", "/usr/bin/x.old", "vim"), ["/usr/bin/x diverted to /usr/bin/x.old by vim"]),
    ],
)
def test_diversions(row: tuple[str, str, str], found: list[str]) -> None:
    image = replace(BASE, diversions=(OLD, row))
    assert RECORDED["diversions"]("", image, BASE, NEW) == found


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (("root", "root", "4755", "/usr/bin/planned"), []),
        (("root", "adm", "4750", "/usr/bin/crontab"), ["override root:adm 4750 of /usr/bin/crontab"]),
        (("root", "root", "4755", "/opt/none"), ["override root:root 4755 of /opt/none"]),
    ],
)
def test_overrides(row: tuple[str, str, str, str], found: list[str]) -> None:
    image = replace(BASE, overrides=(PLAIN, row))
    assert RECORDED["overrides"]("", image, BASE, NEW) == found


@pytest.mark.parametrize("name", RECORDED)
def test_a_base_inventory_that_does_not_record_it_explains_it(name: str) -> None:
    image = replace(
        BASE,
        grubenv={GRUBENV: {"next_entry": "x"}},
        diversions=(("/a", "/b", ":"),),
        overrides=(("a", "b", "1", "/c"),),
    )
    assert RECORDED[name](GRUBENV, image, BASE, NEW) != []
    assert RECORDED[name](GRUBENV, image, Inventory(FILES), NEW) == []
