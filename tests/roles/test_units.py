"""The units that roles install are confined: `systemd-analyze security` below 4.0, or the unit says why not."""

from __future__ import annotations

import subprocess
from pathlib import Path

import jinja2
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
UNITS = sorted([*ROOT.glob("roles/*/files/*.service"), *ROOT.glob("roles/*/templates/*.service.j2")])
_REASON = "# Not confined"
# systemd.resource-control(5): without DevicePolicy in the unit, each bars all devices that it does not list
# (systemd/systemd#18142, until 253).
_BAR_DEVICES = ("ProtectClock=yes", "DeviceAllow=")


def text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".j2":
        lenient = jinja2.Environment(undefined=jinja2.ChainableUndefined)
        lenient.filters |= {"bool": bool, "dirname": lambda _: "/var/log"}
        text = lenient.from_string(text).render()
    if path.name == "nvidia-persistenced.service":
        tasks = yaml.safe_load((ROOT / "roles/nvidia_driver/tasks/persistence.yml").read_text(encoding="utf-8"))
        text += next(task["ansible.builtin.copy"]["content"] for task in tasks if "ansible.builtin.copy" in task)
    return text


def exposure_is_below(text: str, folder: Path, tenths: int) -> bool:
    unit = folder / "the.service"
    unit.write_text(text, encoding="utf-8")
    command = ["systemd-analyze", "security", "--offline=true", "--no-pager", f"--threshold={tenths}", str(unit)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name.partition(".")[0])
def test_a_unit_is_confined_or_says_why_not(path: Path, tmp_path: Path) -> None:
    text = text_of(path)
    assert exposure_is_below(text, tmp_path, 39) or _REASON in text
    assert not exposure_is_below("[Service]\nExecStart=/bin/true\n", tmp_path, 39)


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name.partition(".")[0])
def test_no_option_bars_the_devices_of_a_driver(path: Path) -> None:
    """neuron-metrics had ProtectClock: on systemd 252 it bars /dev/neuron*."""
    text = text_of(path)
    if "DevicePolicy=" not in text:
        assert [line for line in text.splitlines() if line.startswith(_BAR_DEVICES)] == []


def test_units_that_use_the_driver_may_do_what_it_asks_for() -> None:
    """NV_IS_SUSER is capable(CAP_SYS_ADMIN); nvidia-modprobe loads modules and makes nodes."""
    for name in ("nvidia-clocks", "nvidia-mig", "nvidia-cdi-refresh", "nvidia-persistenced"):
        text = text_of(next(path for path in UNITS if path.name == f"{name}.service"))
        (allowed,) = [line for line in text.splitlines() if line.startswith("CapabilityBoundingSet=")]
        assert {"CAP_SYS_ADMIN", "CAP_SYS_MODULE", "CAP_MKNOD"} <= set(allowed.partition("=")[2].split())
        assert "@module" in text and "PrivateDevices" not in text and "ProtectKernelModules" not in text
