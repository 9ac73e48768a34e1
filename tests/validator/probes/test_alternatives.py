"""The database of update-alternatives, as dpkg and chkconfig write it, and as damage leaves it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from validator.probes import alternatives
from validator.probes.alternatives import Alternative

# /var/lib/dpkg/alternatives/awk of Debian 12, without most slaves.
AWK = (
    "\x01awk\n/usr/bin/mawk\nauto\n/usr/bin/awk\nawk.1.gz\n/usr/share/man/man1/awk.1.gz\nnawk\n/usr/bin/nawk\n\n"
    "/usr/bin/gawk\n10\n\n/usr/bin/gawk\n/usr/bin/mawk\n5\n/usr/share/man/man1/mawk.1.gz\n/usr/bin/mawk\n\n"
)
# /var/lib/alternatives/ld of Amazon Linux 2023.
LD = "\x01ld\n/usr/bin/ld.bfd\nauto\n/usr/bin/ld\n\n/usr/bin/ld.bfd\n50\n/usr/bin/ld.gold\n30\n"


def host(stdout: str) -> Any:
    return SimpleNamespace(run=lambda *_, **__: SimpleNamespace(rc=0, stdout=stdout))


def test_candidates_are_the_registered_paths() -> None:
    assert alternatives.read(host(AWK + LD)) == [
        Alternative("awk", "/usr/bin/mawk", frozenset({"/usr/bin/gawk", "/usr/bin/mawk"})),
        Alternative("ld", "/usr/bin/ld.bfd", frozenset({"/usr/bin/ld.bfd", "/usr/bin/ld.gold"})),
    ]
    assert alternatives.read(host("")) == []


@pytest.mark.parametrize("damaged", ["\x01awk\n\n", "\x01awk\n/bin/x\nauto", "\x01\n"])
def test_cut_off_file_registers_nothing(damaged: str) -> None:
    (read,) = alternatives.read(host(damaged))
    assert read.candidates == frozenset()
