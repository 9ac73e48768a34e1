"""The DCGM replica: the host engine counts what the driver shows, dcgmi prints it as the real one does."""

from __future__ import annotations

import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from localregion.mirror.table import REPLICAS
from tests.replicas.conftest import A10G
from validator.checks import dcgm

BIN = REPLICAS / "dcgm" / "rootfs" / "usr" / "bin"


def program(name: str, **constants: Any) -> ModuleType:
    found = ModuleType(name.replace("-", "_"))
    code = SourceFileLoader(name, str(BIN / name)).get_data(str(BIN / name)).decode().replace("@VERSION@", "4.4.2")
    exec(compile(code, name, "exec"), found.__dict__)
    found.__dict__.update(constants)
    return found


@pytest.fixture
def engine(machine: Callable[..., str]) -> ModuleType:
    return program("nv-hostengine", PROC=machine(A10G, 2) + "/proc/driver/nvidia/gpus")


@pytest.fixture
def served(engine: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where one answer of the host engine is waiting; a socket's path may not be long."""
    import json
    import tempfile

    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as folder:
        server = engine.listen(Namespace(domain_socket=f"{folder}/s", bind_interface="", port=0))
        told = json.dumps({"version": "4.4.2", "gpus": engine.gpus(), "switches": 6}).encode()

        def answer() -> None:
            client, _ = server.accept()
            with client:
                client.sendall(told)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"unix://{folder}/s"
        thread.join(timeout=10)
        server.close()


def test_engine_counts_what_the_driver_shows(engine: ModuleType) -> None:
    assert [gpu["bus"] for gpu in engine.gpus()] == ["00000000:00:1B.0", "00000000:00:1C.0"]
    assert {gpu["name"] for gpu in engine.gpus()} == {"NVIDIA A10G"}


def test_engine_without_a_driver_counts_nothing(tmp_path: Path) -> None:
    assert program("nv-hostengine", PROC=str(tmp_path / "nothing")).gpus() == []


def test_dcgmi_prints_what_the_check_reads(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    dcgmi = program("dcgmi")
    dcgmi.show(dcgmi.ask(served))
    shown = capsys.readouterr().out
    assert shown.startswith("2 GPUs found.\n+--------+")
    assert dcgm.discovered(shown) == ["00000000:00:1B.0", "00000000:00:1C.0"]
    assert "6 NvSwitches found." in shown
    assert len({len(line) for line in shown.splitlines() if line.startswith(("|", "+---")) and len(line) > 20}) == 1


def test_dcgmi_without_an_engine_says_what_the_real_one_says(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="unable to establish a connection to the specified host"):
        program("dcgmi").ask(f"unix://{tmp_path}/nobody")


def test_dcgmi_of_another_major_version_is_refused(served: str) -> None:
    with pytest.raises(SystemExit, match="API version mismatch"):
        program("dcgmi", VERSION="3.3.6").ask(served)
