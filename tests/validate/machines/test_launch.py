"""An instance and its key pair: launched, and removed whatever ends their block."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.errors import CloudError, GpuAmiError
from gpu_ami.validate.machines import launch


class Ec2:
    place = SimpleNamespace(log_groups="production", deadlines={})

    def __init__(self, **fails: GpuAmiError) -> None:
        self.fails, self.calls, self.launches = fails, list[str](), list[Any]()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> str:
            self.calls.append(name)
            self.launches += arguments[:1]
            if name in self.fails:
                raise self.fails[name]
            return "i-1"

        return call


def a_run(folder: Path) -> Any:
    return SimpleNamespace(id="run-1", folder=folder, key_file=folder / "id_ed25519")


def test_machine_is_terminated_with_the_block_and_after_an_error(tmp_path: Path) -> None:
    ec2: Any = Ec2()
    with pytest.raises(ZeroDivisionError), launch.launched(ec2, "ami-1", "g5.xlarge", "key", a_run(tmp_path), {}):
        raise ZeroDivisionError
    assert ec2.calls == ["launch", "terminate"]
    assert ec2.launches[0].user_data.startswith("#cloud-boothook")


def test_machine_that_cannot_be_terminated_is_reported_and_kept_for_sweep(tmp_path: Path) -> None:
    ec2: Any = Ec2(terminate=CloudError("terminating i-1: RequestLimitExceeded"))
    with pytest.raises(CloudError), launch.launched(ec2, "ami-1", "g5.xlarge", "key", a_run(tmp_path), {}):
        pass
    seen = list[GpuAmiError]()
    with launch.launched(ec2, "ami-1", "g5.xlarge", "key", a_run(tmp_path), {}, on_leftover=seen.append):
        pass
    assert [error.message for error in seen] == ["terminating i-1: RequestLimitExceeded"]
    assert (tmp_path / "left-behind").exists()


def test_temporary_key_is_made_once_and_deleted(tmp_path: Path) -> None:
    ec2: Any = Ec2()
    with launch.temporary_key(ec2, a_run(tmp_path), {}) as name:
        assert name == "gpu-ami-run-1" and (tmp_path / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert ec2.calls == ["import_key", "delete_key"]
