"""Ids of checks: the file, the function, the parameters; unique within a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.validator.conftest import Run, folder_of
from validator import identity


def test_no_check_hides_another_of_its_name(run: Run, tmp_path: Path) -> None:
    """A red check must not be overwritten by a green one: of another class, another file, or another host."""
    classes = "".join(
        f"class Test{name}:\n    def test_it(self, host):\n        assert host.run('{name}').rc == 0\n"
        for name in ("false", "true")
    )
    twin = "def test_it(host):\n    assert host.run('{}').rc == 0\n"
    local = "import testinfra\n\ndef test_here():\n    assert testinfra.get_host('local://').exists('sh')\n"
    files = {"test_a.py": classes, "x/test_b.py": twin.format("false"), "y/test_b.py": twin.format("true") + local}
    outcome = run(folder_of(tmp_path, files))
    assert {one["id"]: one["verdict"] for one in outcome.document["checks"]} == {
        "test_a::Testfalse::test_it": "FAIL",
        "test_a::Testtrue::test_it": "PASS",
        "test_b::test_it": "FAIL",
        "mine/y/test_b::test_it": "PASS",
        "test_b::test_here": "PASS",  # it asks no host, and belongs to the only one
    }


@pytest.mark.parametrize(
    ("case", "shown"),
    [
        ("ssh://ip-10-0-0-7.ec2.internal:22", ""),
        ("ssh://ip-10-0-0-7.ec2.internal:22-raw-log", "[raw-log]"),
        ("raw-log-ssh://ip-10-0-0-7.ec2.internal:22", "[raw-log]"),
    ],
)
def test_host_is_not_a_parameter_of_the_id(case: str, shown: str) -> None:
    backend = SimpleNamespace(get_pytest_id=lambda: "ssh://ip-10-0-0-7.ec2.internal:22")
    callspec = SimpleNamespace(id=case, params={"_testinfra_host": SimpleNamespace(backend=backend)})
    assert identity._parameters(SimpleNamespace(callspec=callspec)) == shown  # type: ignore[arg-type]
