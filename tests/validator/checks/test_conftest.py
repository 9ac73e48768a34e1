"""Our checks' own options: what provokes a real fault is left out unless somebody asks for it."""

from __future__ import annotations

import pytest

from tests import forked_pytest

pytestmark = pytest.mark.slow


def collect(*options: str) -> tuple[set[str], str]:
    done = forked_pytest.run(
        [
            "-p", "validator.plugin", "-p", "no:cacheprovider", "--collect-only", "-q",
            "--hosts=ssh://nobody@127.0.0.1:9", *options, "validator/checks/xid.py", "validator/checks/hardware.py",
        ]
    )  # fmt: skip
    lines = done.stdout.splitlines()
    return {line.rpartition("::")[2].partition("[")[0] for line in lines if "::" in line}, done.stdout + done.stderr


@pytest.mark.parametrize(("options", "asked"), [((), False), (("--provoke-xid",), True)])
def test_fault_is_caused_only_with_its_option(options: tuple[str, ...], asked: bool) -> None:
    names, said = collect("--golden=variables/golden", *options)
    assert {
        "test_kernel_xid_arrives_once",
        "test_parser_survives_the_proof",
        "test_gpus_are_linked_as_promised",
    } <= names, said
    assert ("test_real_fault_arrives" in names) == asked, said
    assert "PytestUnknownMarkWarning" not in said
