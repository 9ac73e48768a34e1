"""The wrong base AMI is refused before anything is made of it. The tasks run on this machine, as far as the refusal."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.roles.test_roles_refuse import play

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("files", "units", "said"),
    [
        (
            ["{there}", "{folder}/kubelet"],
            [],
            "expected an EKS 1.33 node as base AMI: {folder}/kubelet: No such file or directory. Build on the base AMI",
        ),
        (
            ["{there}"],
            ["nodeadm-of-nobody.service"],
            "an EKS 1.33 node enables nodeadm-of-nobody.service; systemctl is-enabled prints",
        ),
    ],
)
def test_another_base_ami_is_refused(tmp_path: Path, files: list[str], units: list[str], said: str) -> None:
    there = tmp_path / "there"
    there.write_text("as the base AMI brought it\n", encoding="utf-8")
    names = {"there": str(there), "folder": str(tmp_path)}
    done = play(
        tmp_path,
        "node_base",
        "main",
        node_base_name="an EKS 1.33 node",
        node_base_files=[name.format(**names) for name in files],
        node_base_units=units,
        ansible_python_interpreter=sys.executable,
        __node_base_record=str(tmp_path / "record"),
    )
    assert done.returncode == 2
    assert said.format(**names) in " ".join((done.stdout + done.stderr).split())
    assert not (tmp_path / "record").exists()
