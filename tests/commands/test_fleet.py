"""`gpu-ami fleet`: what it prints, its exit codes, and its JSON."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from gpu_ami.commands import fleet as command
from gpu_ami.errors import UsageError
from gpu_ami.progress import Progress
from gpu_ami.region import provider
from tests.fleet.conftest import in_service
from tests.fleet.service_machines import Fleet
from tests.json_documents import valid
from tests.localregion.conftest import empty_moto, endpoint, world

__all__ = ["empty_moto", "endpoint", "in_service", "world"]


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    return parser.parse_args(["fleet", *words])


@pytest.fixture
def local(in_service: Fleet, monkeypatch: pytest.MonkeyPatch) -> Fleet:
    monkeypatch.setattr(provider(), "running", lambda: in_service.cloud.place)
    return in_service


def run(made: Fleet, verb: str, *words: str) -> Any:
    args = parse(verb, str(made.out), "--tag", "fleet=train", *words)
    outcome = args.execute(args, Progress("quiet"))
    valid(outcome.data, "fleet")
    return outcome


@pytest.mark.slow
def test_a_machine_from_nothing_to_telemetry_and_back(local: Fleet) -> None:
    machine = local.add()
    local.wait()
    dry = run(local, "attach", "--dry-run", "--future")
    assert f"{machine.instance_id} (g5.12xlarge): attach" in dry.text and "association" in dry.text
    attached = run(local, "attach")
    assert attached.exit_code == 0 and attached.text.endswith("1 of 1 machine")
    status = run(local, "status")
    assert f"{machine.instance_id}  g5.12xlarge     ok" in status.text and local.plan.digest in status.text
    local.heartbeat(machine)
    proved = run(local, "prove", "--no-login")
    assert (proved.exit_code, proved.data["machines"][0]["verdict"]) == (0, "PASS")
    detached = run(local, "detach")
    assert detached.exit_code == 0
    later = run(local, "prove", "--no-login")
    assert later.exit_code == 1 and "nothing is attached to it" in later.text


def test_a_silent_machine_is_exit_code_4_and_a_failed_one_1(local: Fleet) -> None:
    silent = local.add(start=False)
    outcome = run(local, "attach")
    assert outcome.exit_code == 4 and f"{silent.instance_id}  g5.12xlarge     Silent" in outcome.text
    failing = local.add()
    (failing.root / "opt" / "aws" / "cloudwatch" / "nvidia").mkdir(parents=True)
    local.wait()
    outcome = run(local, "attach", "--max-errors", "100%")
    assert outcome.exit_code == 1 and "Failed: prepare: the machine has the event parser of its image" in outcome.text


def test_mistakes_are_found_before_anything_is_asked(local: Fleet) -> None:
    args = parse("attach", str(local.out), "--instance-id", "i-0123456789abcdef0", "--future")
    with pytest.raises(UsageError, match="--future"):
        args.execute(args, Progress("quiet"))


@pytest.mark.parametrize("limit", ["ten", "0%", "101%", "-1", "1.5"])
def test_a_limit_is_a_number_or_a_percentage(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("attach", "--max-errors", limit)
    assert "expected a number or a percentage" in capsys.readouterr().err


def test_without_a_region_it_says_what_to_do(in_service: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provider(), "running", lambda: None)
    args = parse("status", str(in_service.out), "--tag", "fleet=train")
    with pytest.raises(UsageError, match="the local region is not up"):
        args.execute(args, Progress("quiet"))
