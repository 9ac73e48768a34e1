"""What the nvidia-smi replica lets one set, and that it shows it afterwards."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import A10G, A100
from .test_nvidia_smi import smi

Machine = Callable[..., str]


@pytest.fixture
def divisible(machine: Machine) -> str:
    """Two A100."""
    root = machine(A100)
    for board in Path(root).glob("proc/driver/nvidia/gpus/*/board"):
        board.write_text(board.read_text().replace("compute_capability: 8.6", "compute_capability: 8.0"))
    return root


def query(root: str, *fields: str) -> list[str]:
    return smi(root, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")[1].splitlines()


def test_clocks_are_set_for_one_gpu(machine: Machine) -> None:
    root = machine()
    assert smi(root, "-i", "1", "-ac", "6250,1500") == (
        0,
        'Applications clocks set to "(MEM 6250, SM 1500)" for GPU 00000000:00:1C.0\nAll done.\n',
    )
    assert query(root, "clocks.applications.memory", "clocks.applications.gr") == ["6251, 1710", "6251, 1500"]
    assert smi(root, "-rac")[0] == 0
    assert query(root, "clocks.applications.graphics") == ["1710", "1710"]


def test_clocks_that_a_board_has_not_are_a_warning(machine: Machine) -> None:
    """The original ends with 0 too: who sets clocks has to read them back."""
    root = machine()
    code, text = smi(root, "--applications-clocks=5001,1590")
    assert code == 0 and "is not supported" in text and "Treating as warning and moving on." in text
    assert query(root, "clocks.applications.memory") == ["6251", "6251"]


def test_persistence_mode_is_shown(machine: Machine) -> None:
    root = machine()
    assert query(root, "persistence_mode") == ["Disabled", "Disabled"]
    assert smi(root, "-pm", "1")[1].startswith("Enabled persistence mode for GPU 00000000:00:1B.0.")
    assert query(root, "persistence_mode") == ["Enabled", "Enabled"]


def test_the_persistence_daemon_holds_the_mode(machine: Machine) -> None:
    root = machine()
    daemon = Path(root, "run/nvidia-persistenced/mode")
    daemon.parent.mkdir(parents=True)
    daemon.touch()
    assert query(root, "persistence_mode") == ["Enabled", "Enabled"]
    smi(root, "-pm", "0", "-i", "1")
    assert query(root, "persistence_mode") == ["Enabled", "Disabled"]


def test_power_limit_lasts_and_knows_its_bounds(machine: Machine) -> None:
    root = machine()
    whole = query(root, "power.default_limit")[0]
    code, text = smi(root, "-i", "0", "-pl", "125.5")
    assert code == 0 and text.startswith("Power limit for GPU 00000000:00:1B.0 was set to 125.50 W from "), text
    assert query(root, "power.limit") == ["125.50", whole]
    assert query(root, "power.default_limit") == [whole, whole]
    code, text = smi(root, "-pl", "5000")
    assert code == 2 and "is not a valid power limit which should be between" in text
    assert query(root, "power.limit") == ["125.50", whole]


def test_mig_wants_a_reset_and_then_divides(divisible: str) -> None:
    assert "pending enable state" in smi(divisible, "-mig", "1")[1]
    assert query(divisible, "mig.mode.current", "mig.mode.pending") == ["Disabled, Enabled"] * 2
    assert smi(divisible, "mig", "-lgi") == (6, "No MIG-enabled devices found.\n")
    assert "was successfully reset" in smi(divisible, "--gpu-reset")[1]
    assert smi(divisible, "mig", "-lgi") == (6, "No GPU instances found: Not Found\n")
    code, text = smi(divisible, "mig", "-cgi", "3g.20gb,3g.20gb", "-C")
    assert code == 0 and text.count("Successfully created GPU instance") == 4
    listed = smi(divisible, "-L")[1]
    assert listed.count("  MIG 3g.20gb     Device") == 4
    assert len(set(re.findall(r"UUID: (?:GPU|MIG)-(.*)\)", listed))) == 6
    assert smi(divisible, "mig", "-cgi", "3g.20gb") == (19, "Failed to create GPU instances: Insufficient Resources\n")


def test_mig_of_a_board_that_cannot(machine: Machine) -> None:
    code, text = smi(machine(A10G), "-mig", "1")
    assert code == 0 and "Not Supported" in text


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["-ac"], 1),
        (["-ac", "fast"], 2),
        (["-pm", "2"], 2),
        (["-pl", "much"], 2),
        (["-mig", "1", "--nonsense"], 1),
        (["-pm", "1", "-i", "9"], 6),
    ],
)
def test_wrong_settings(machine: Machine, words: list[str], code: int) -> None:
    assert smi(machine(), *words)[0] == code


def test_without_the_right_to_set(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError

    monkeypatch.setattr("os.makedirs", refuse)
    code, text = smi(machine(), "-pm", "1")
    assert code == 4 and "Insufficient Permissions" in text
