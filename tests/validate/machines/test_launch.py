"""The launch of a machine and its deadlines."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import Place, load_place, login
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, UsageError
from gpu_ami.recipes import load_facts
from gpu_ami.validate.machines import launch
from gpu_ami.validate.machines.deadlines import Deadlines, deadlines, names, parse_deadlines

# Deadlines by instance type, and the place's own.


@pytest.mark.parametrize(
    ("instance_type", "boot", "stop"),
    [("g5.12xlarge", 1200, 900), ("p5.48xlarge", 1500, 1500), ("g4dn.metal", 2700, 2700), ("p6.metal-1", 2700, 2700)],
)
def test_slow_types_have_longer_deadlines(instance_type: str, boot: float, stop: float) -> None:
    assert deadlines(instance_type) == Deadlines(boot, stop, 900)


def test_place_overrides_them(tmp_path: Path) -> None:
    file = tmp_path / "aws.yml"
    file.write_text("region: eu-central-1\ndeadlines: {boot_seconds: 3600, arrival_seconds: 1200}\n")
    place = load_place(file)
    assert deadlines("p5.48xlarge", place) == Deadlines(3600, 1500, 1200)
    assert deadlines("g5.xlarge", Place("aws", "eu-central-1")) == deadlines("g5.xlarge")


@pytest.mark.parametrize("text", ["{boot: 60}", "{boot_seconds: 0}", "{boot_seconds: soon}", "60"])
def test_mistakes_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "aws.yml"
    file.write_text(f"region: eu-central-1\ndeadlines: {text}\n")
    with pytest.raises(UsageError) as caught:
        load_place(file)
    assert "deadlines" in str(caught.value)


def test_names_of_the_command_line_are_those_of_the_facts() -> None:
    assert {f"{name}_seconds" for name in names()} == {key for key in load_facts().deadlines["default"] if "_" in key}
    assert parse_deadlines(["boot=1500", "arrival=60"]) == {"boot_seconds": 1500, "arrival_seconds": 60}


def test_every_mistake_of_the_command_line_is_named() -> None:
    given = ["bot=900", "login=900", "stop=soon", "stop=0", "stop=90000", "arrival", "boot=1", "boot=2"]
    with pytest.raises(UsageError) as caught:
        parse_deadlines(given)
    said = [caught.value.message, *caught.value.details]
    assert said == [
        "--deadline bot=900: unknown deadline 'bot', expected boot, stop, arrival; did you mean boot?",
        "--deadline login=900: unknown deadline 'login', expected boot, stop, arrival",
        "--deadline stop=soon: expected seconds from 1 to 86400, got 'soon'",
        "--deadline stop=0: expected seconds from 1 to 86400, got '0'",
        "--deadline stop=90000: expected seconds from 1 to 86400, got '90000'",
        "--deadline arrival: expected seconds from 1 to 86400, got ''",
        "--deadline boot=2: boot is given twice",
    ]


# An instance and its key pair: launched, and removed whatever ends their block.


class Ec2:
    place = Place("aws", "us-east-1", log_groups="production")

    def __init__(self, **fails: GpuAmiError) -> None:
        self.fails, self.calls, self.launches = fails, list[str](), list[Any]()

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> list[str]:
            self.calls.append(name)
            self.launches += arguments[:1]
            if name in self.fails:
                raise self.fails[name]
            return ["i-1"]

        return call


def a_run(folder: Path) -> Any:
    return SimpleNamespace(id="run-1", folder=folder, key_file=folder / "id_ed25519")


def launched(ec2: Any, folder: Path, on_leftover: Any = None) -> Any:
    run = a_run(folder)
    one = launch.launch_of(ec2, run, ami="ami-1", instance_type="g5.xlarge", key="key", tags={})
    return launch.launched(ec2, one, run, on_leftover)


def test_machine_is_terminated_with_the_block_and_after_an_error(tmp_path: Path) -> None:
    ec2: Any = Ec2()
    with pytest.raises(ZeroDivisionError), launched(ec2, tmp_path):
        raise ZeroDivisionError
    assert ec2.calls == ["launch_all", "terminate"]
    assert ec2.launches[0].user_data.startswith("#cloud-boothook")


def test_machine_that_cannot_be_terminated_is_reported_and_kept_for_sweep(tmp_path: Path) -> None:
    ec2: Any = Ec2(terminate=CloudError("terminating i-1: RequestLimitExceeded"))
    with pytest.raises(CloudError), launched(ec2, tmp_path):
        pass
    seen = list[GpuAmiError]()
    with launched(ec2, tmp_path, seen.append):
        pass
    assert [error.message for error in seen] == ["terminating i-1: RequestLimitExceeded"]
    assert (tmp_path / "left-behind").exists()


def test_temporary_key_is_made_once_and_deleted(tmp_path: Path) -> None:
    ec2: Any = Ec2()
    with login.temporary_key(ec2, a_run(tmp_path), {}) as name:
        assert name == "gpu-ami-run-1" and (tmp_path / "id_ed25519").stat().st_mode & 0o777 == 0o600
    assert ec2.calls == ["import_key", "delete_key"]


def test_an_error_of_the_block_is_not_hidden_by_what_cannot_be_removed(tmp_path: Path) -> None:
    """The key pair of a builder that EC2 had no capacity for could not be deleted: that alone was said, with 4."""
    ec2: Any = Ec2(delete_key=CloudError("deleting key pair gpu-ami-run-1: UnauthorizedOperation"))
    with pytest.raises(CapacityError) as caught, login.temporary_key(ec2, a_run(tmp_path), {}):
        raise CapacityError("launching m5.xlarge: InsufficientInstanceCapacity", details=["said AWS"])
    assert caught.value.message == "launching m5.xlarge: InsufficientInstanceCapacity" and caught.value.exit_code == 5
    assert caught.value.details == ("said AWS", "not removed: deleting key pair gpu-ami-run-1: UnauthorizedOperation")
    assert (tmp_path / "left-behind").exists(), "`gpu-ami sweep` finds it"
    with pytest.raises(CloudError, match="deleting key pair"), login.temporary_key(ec2, a_run(tmp_path), {}):
        pass
