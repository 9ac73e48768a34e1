"""The version of a module that each installed kernel would load."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.scripted_host import table_host
from validator.observe import Observe
from validator.probes import kernel_modules
from validator.results import RunningCheck


def host(listed: str) -> object:
    return table_host({"for k in *modinfo -k*nvidia*": listed})


def test_versions_by_kernel() -> None:
    listed = "6.1.0-40 580.95.05\n\n6.1.0-41 missing\n6.1.0-42 \n"
    assert kernel_modules.on_disk(host(listed), "nvidia") == {
        "6.1.0-40": "580.95.05",
        "6.1.0-41": kernel_modules.MISSING,
        "6.1.0-42": "",
    }


def test_the_command_itself(tmp_path: Path) -> None:
    """A kernel that has no index of its modules cannot boot and is left out."""
    for kernel in ("6.1.0-40", "6.1.0-41"):
        (tmp_path / "lib" / kernel).mkdir(parents=True)
        (tmp_path / "lib" / kernel / "modules.dep").touch()
    (tmp_path / "lib" / "removed").mkdir()
    modinfo = tmp_path / "modinfo"
    modinfo.write_text('#!/bin/sh\n[ "$*" = "-k 6.1.0-40 -F version nvidia" ] && echo 580.95.05\n')
    modinfo.chmod(0o755)
    command = (kernel_modules.LISTED % "nvidia").replace("/lib/modules", str(tmp_path / "lib"))
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "6.1.0-40 580.95.05\n6.1.0-41 missing\n"


def test_every_kernel_has_the_planned_version(observe: Observe, running: RunningCheck) -> None:
    kernel_modules.check_on_disk(host("a 580.95.05\nb 580.95.05\n"), "nvidia", "580.95.05", observe)
    assert running.record.observed == {"a": "580.95.05", "b": "580.95.05"}
    assert running.record.planned == "580.95.05"


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        ("a 580.95.05\nb 570.1\nc missing\n", "module nvidia on disk: expected 580.95.05, got b: 570.1; c: missing"),
        ("", "module nvidia on disk: expected 580.95.05, got no installed kernel"),
    ],
)
def test_other_versions_fail(observe: Observe, listed: str, message: str) -> None:
    with pytest.raises(pytest.fail.Exception) as failure:
        kernel_modules.check_on_disk(host(listed), "nvidia", "580.95.05", observe)
    assert str(failure.value) == message


def test_versions_that_fit(observe: Observe) -> None:
    fits = "3.1.0g".startswith
    kernel_modules.check_on_disk(table_host({"for k in *": "a 3.1.0\n"}), "efa", "3.1.0", observe, fits)
    with pytest.raises(pytest.fail.Exception, match=r"expected 3.1.0, got a: 3.2"):
        kernel_modules.check_on_disk(table_host({"for k in *": "a 3.2\n"}), "efa", "3.1.0", observe, fits)
