"""Fixtures of the programs that run on hosts."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.onhost.diagnosis_bench import Bench


@pytest.fixture(scope="session")
def fake_libcuda(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that answers as libcuda.so.1 does (fake_libcuda.c)."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler, "these tests need a C compiler: apt-get install gcc libc6-dev"
    library = tmp_path_factory.mktemp("fake") / "libcuda.so.1"
    source = Path(__file__).with_name("fake_libcuda.c")
    subprocess.run([compiler, "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A machine of files and small tools, which gpu-ami-diagnose examines."""
    return Bench(tmp_path, monkeypatch)
