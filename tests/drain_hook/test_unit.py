"""The unit as the role's template renders it: systemd takes it, and its limits are those that scripts can live with."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml

from tests.drain_hook.programs import ROOT, hook_module

ROLE = ROOT / "roles" / "drain_hook"
HOME = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))["__drain_hook_home"]
# systemd.exec(5): each of them gives the unit a mount namespace of its own.
NAMESPACES = (
    "ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices", "ProtectKernelTunables", "ProtectKernelModules",
    "ProtectKernelLogs", "ProtectControlGroups", "PrivateMounts", "ReadWritePaths", "ReadOnlyPaths", "BindPaths",
    "InaccessiblePaths", "TemporaryFileSystem", "ProtectProc", "ProcSubset", "RootDirectory", "MountFlags",
)  # fmt: skip


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    template = (ROLE / "templates/gpu-ami-drain-hook.service.j2").read_text(encoding="utf-8")
    given = {"notices": ["spot-interruption", "maintenance-event"], "timeout_s": 60, "log": "/var/log/drain.jsonl"}
    named = {f"drain_hook_{name}": value for name, value in given.items()}
    text = jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(template)
    path = tmp_path / "gpu-ami-drain-hook.service"
    path.write_text(text.render(ansible_managed="test", __drain_hook_home=HOME, **named), encoding="utf-8")
    return path


def test_systemd_takes_the_unit(unit: Path) -> None:
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_program_takes_the_options_of_the_unit(unit: Path) -> None:
    [options] = re.findall(r"(?m)^ExecStart=/usr/bin/python3 -sSE \S+gpu-ami-drain-hook.py (.+)$", unit.read_text())
    with pytest.raises(SystemExit) as ended:
        hook_module("service").main([*options.split(), "--help"])
    assert ended.value.code == 0


def test_a_script_may_unmount_a_file_system(unit: Path) -> None:
    """In a mount namespace of the unit's own `umount` would not reach the machine."""
    options = dict(line.partition("=")[::2] for line in unit.read_text().splitlines() if "=" in line)
    assert not set(options) & set(NAMESPACES)
    assert "@mount" not in options["SystemCallFilter"] and "CAP_SYS_ADMIN" not in options["CapabilityBoundingSet"]


def test_paths_of_unit_program_and_footprint_agree(unit: Path) -> None:
    """The state, the status and the scripts of the program are those that unit and footprint name."""
    service, text = hook_module("service"), unit.read_text()
    declared = (ROLE / "meta/footprint.yml").read_text(encoding="utf-8")
    assert f"StateDirectory={Path(service.STATE).parent.relative_to('/var/lib')}" in text.splitlines()
    assert f"RuntimeDirectory={Path(service.STATUS).parent.name}" in text.splitlines()
    assert f"{HOME}/drill.d" == service.DRILL_SCRIPTS
    for path in (service.SCRIPTS, service.STATE, str(Path(service.STATE).parent), f"{service.DRILL_SCRIPTS}/probe"):
        assert path in declared, path
