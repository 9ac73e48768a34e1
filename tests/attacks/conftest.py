"""gpu-ami as a process, in a folder that belongs to the attacker."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.validator.conftest import sshd  # noqa: F401  (a fixture)

Started = subprocess.CompletedProcess[bytes]
GpuAmi = Callable[..., Started]


@pytest.fixture
def gpu_ami(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GpuAmi:
    """`gpu_ami("validate", …, cwd=…, env=…)`: as typed in a shell; both outputs as bytes."""
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path / "home"))

    def start(*words: object, cwd: Path = tmp_path, env: dict[str, str] | None = None, **more: object) -> Started:
        command = [str(Path(sys.executable).with_name("gpu-ami")), *map(str, words)]
        options: dict[str, object] = {"capture_output": True, "stdin": subprocess.DEVNULL, "timeout": 120} | more
        return subprocess.run(command, cwd=cwd, env=os.environ | (env or {}), **options)  # type: ignore[call-overload,no-any-return]

    return start
