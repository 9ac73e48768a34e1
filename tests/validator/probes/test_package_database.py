"""A damaged database is one finding: no package is "missing" for it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_host import table_host
from validator.probes import packages

DPKG, RPM = "dpkg-query -W -f*Status-Status* dpkg", "rpm -q rpm"
DAMAGED = (
    "dpkg-query: error: parsing file '/var/lib/dpkg/status' near line 2 package 'x':\n field name must be followed"
)
NO_DATABASE = "error: cannot open Packages database in /var/lib/rpm\n"


@pytest.mark.parametrize(
    ("family", "reply", "said"),
    [
        ("debian", (0, "installed", ""), ""),
        ("debian", (2, "", DAMAGED), "parsing file '/var/lib/dpkg/status' near line 2 package 'x':; field name"),
        ("debian", (1, "", "dpkg-query: no packages found matching dpkg\n"), "no packages found matching dpkg"),
        ("redhat", (0, "rpm-4.16.1.3", ""), ""),
        ("redhat", (1, "package rpm is not installed\n", NO_DATABASE), "cannot open Packages database"),
        ("redhat", (1, "", ""), "exit status 1 without output"),
    ],
)
def test_trouble(family: str, reply: tuple[int, str, str], said: str) -> None:
    host = table_host({DPKG: reply, RPM: reply})
    found = packages.trouble(host, family)
    assert said in found and bool(found) is bool(said)
    assert not found or found.startswith("the package database cannot be read: /var/lib/")


def test_query_without_any_answer_is_unproven_where_the_database_is_damaged() -> None:
    table: dict[str, Any] = {DPKG: (2, "", DAMAGED), "dpkg-query*": (2, "", DAMAGED), "apt-mark*": (100, "", "E: no")}
    host = table_host(table)
    for ask in (packages.installed, packages.held):
        with pytest.raises(pytest.skip.Exception, match="the package database cannot be read"):
            ask(host, {"cuda-toolkit-12-4": "12.4.1-1"}, "debian")


def test_package_that_is_missing_is_missing_where_the_database_can_be_read() -> None:
    host = table_host({DPKG: "installed", "dpkg-query*": (1, "", "no packages found"), "apt-mark*": ""})
    assert packages.installed(host, {"a": "1"}, "debian") == {"a": packages.MISSING}
    assert packages.held(host, {"a": "1"}, "debian") == set()


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="no dpkg here")
@pytest.mark.parametrize("status", ["Package: x\nStatus: install ok installed\nVersion 1\n", ""])
def test_the_programs_own_answers(status: str, tmp_path: Path) -> None:
    for name in ("info", "updates"):
        (tmp_path / name).mkdir()
    (tmp_path / "status").write_text(status)

    def ask(_: str) -> tuple[int, str, str]:
        done = subprocess.run(
            ["dpkg-query", f"--admindir={tmp_path}", "-W", "-f", "${db:Status-Status}", "dpkg"],
            capture_output=True, text=True, timeout=30,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    assert packages.trouble(table_host({DPKG: ask}), "debian")
