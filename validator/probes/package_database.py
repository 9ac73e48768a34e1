"""Whether the package manager's database can be read. Where it cannot, no package is missing: nothing is known of them.

dpkg-query ends with status 2 and `error: parsing file …` for a damaged /var/lib/dpkg/status, and finds no package in
one that is empty; rpm says `cannot open Packages database`, or that rpm itself is not installed. Observed with
dpkg 1.21 and rpm 4.18 (2026-11-25).
"""

from __future__ import annotations

from typing import Any

from validator.observe import unproven

UNREADABLE = "the package database cannot be read"
CHECK = "system::test_package_database_can_be_read"
QUERIES = {"debian": "dpkg-query -W -f '${db:Status-Status}' dpkg", "redhat": "rpm -q rpm"}
_PATHS = {"debian": "/var/lib/dpkg/status", "redhat": "/var/lib/rpm"}


def trouble(host: Any, family: str) -> str:
    """What keeps the database from being read; "" where it lists the package manager itself."""
    done = host.run(QUERIES["debian" if family == "debian" else "redhat"])
    if done.rc == 0:
        return ""
    lines = [line.strip() for line in f"{done.stderr}\n{done.stdout}".splitlines() if line.strip()]
    said = "; ".join(lines[:3]) or f"exit status {done.rc} without output"
    path = _PATHS["debian" if family == "debian" else "redhat"]
    return f"{UNREADABLE}: {path}: {said}"


def require_readable(host: Any, family: str) -> None:
    """UNPROVEN where the database cannot be read, so a query found nothing: it is a finding of one check alone."""
    said = trouble(host, family)
    if said:
        unproven(f"{said} ({CHECK})")
