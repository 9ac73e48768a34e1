"""Attach and detach on machines that really run what they are sent: a machine is afterwards as it was before."""

from __future__ import annotations

import time

import pytest

from gpu_ami.cloud import systems_manager
from gpu_ami.cloud.systems_manager import Limits, Selection
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.fleet import payload
from gpu_ami.fleet.attachment import Attachment, plan_steps, require_future
from gpu_ami.progress import Progress
from localregion.backends import Refused
from localregion.backends.systems_manager.ssm import PluginResult
from tests.fleet.service_machines import Fleet, files, read_json, units

ALL = Selection(tags={"fleet": "train"})
PARTS = "opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d"


def attachment(in_service: Fleet, limits: Limits | None = None) -> Attachment:
    found = systems_manager.find(in_service.cloud, ALL)
    return Attachment(
        in_service.cloud, payload.bundle(in_service.plan), found, limits or Limits("10", "100%"), Progress("quiet")
    )


def made(in_service: Fleet) -> list[str]:
    """Documents, parameters and associations that are there."""
    ssm = in_service.cloud.client("ssm")
    found = [row["Name"] for row in ssm.list_documents()["DocumentIdentifiers"]]
    found += [row["Name"] for row in ssm.describe_parameters()["Parameters"]]
    return sorted(found + [row["AssociationName"] for row in ssm.list_associations()["Associations"]])


def test_attach_and_detach_leave_a_machine_as_it_was(in_service: Fleet) -> None:
    plain, own_agent, gpu = in_service.add(), in_service.add(agent=True), in_service.add(gpu=True)
    in_service.wait()
    before = {machine.instance_id: (files(machine.root), units(machine.root)) for machine in in_service.machines}
    outcomes = attachment(in_service).attach()
    assert {outcome.status for outcome in outcomes.values()} == {"Success"}, outcomes
    for machine in (plain, own_agent, gpu):
        answer = outcomes[machine.instance_id].answer
        assert (answer["plan"], answer["agent"], answer["parser"]) == (in_service.plan.digest, "active", "active")
        installed = machine.root / "opt" / "aws" / "cloudwatch" / "nvidia"
        assert (installed / "hwevents" / "service.py").is_file() and (installed / "hwevents" / "__pycache__").is_dir()
    assert sorted(path.name for path in (gpu.root / PARTS).iterdir()) == [
        f"ssm_AmazonCloudWatch-gpu-ami-telemetry-debian12-gpu-{name}" for name in ("base", "gpu")
    ]  # fmt: skip
    assert len(list((plain.root / PARTS).iterdir())) == 1
    kept = sorted(path.name for path in (own_agent.root / PARTS).iterdir())  # the fleet's own logs go on
    assert kept == ["file_mine.json", "ssm_AmazonCloudWatch-gpu-ami-telemetry-debian12-gpu-base"]
    assert outcomes[own_agent.instance_id].answer["kept"] == ["file_mine.json"]
    assert outcomes[plain.instance_id].answer["kept"] == []
    assert read_json(own_agent.root / "var" / "lib" / "gpu-ami-fleet" / "attached.json")["agent"] == "present"
    outcomes = attachment(in_service).detach()
    assert {outcome.status for outcome in outcomes.values()} == {"Success"}, outcomes
    after = {machine.instance_id: (files(machine.root), units(machine.root)) for machine in in_service.machines}
    changed = {
        (name, path)
        for name in before
        for path in before[name][0].keys() | after[name][0].keys()
        if before[name][0].get(path) != after[name][0].get(path)
    }
    assert changed == set() and after == before
    assert made(in_service) == []


@pytest.mark.slow
def test_a_second_attach_changes_nothing(in_service: Fleet) -> None:
    machine = in_service.add()
    in_service.wait()
    attachment(in_service).attach()
    first = files(machine.root)
    outcomes = attachment(in_service).attach()
    assert outcomes[machine.instance_id].status == "Success"
    changing = ("run/gpu-ami", "var/log", "__pycache__")
    again = {path: text for path, text in files(machine.root).items() if not any(each in path for each in changing)}
    assert [path for path, text in again.items() if first.get(path) != text] == []


def test_a_failure_is_told_in_the_machine_s_own_words(in_service: Fleet) -> None:
    image, fine, silent = in_service.add(), in_service.add(), in_service.add(start=False)
    (image.root / "opt" / "aws" / "cloudwatch" / "nvidia").mkdir(parents=True)
    in_service.wait()
    outcomes = attachment(in_service).attach()
    of_image = outcomes[image.instance_id]
    assert of_image.status == "Failed" and "has the event parser of its image" in of_image.text
    assert of_image.text.startswith("prepare: ")
    assert outcomes[fine.instance_id].status == "Success"
    assert outcomes[silent.instance_id].status == "Silent"
    assert "does not manage it" in outcomes[silent.instance_id].text
    assert not (image.root / "var" / "lib" / "gpu-ami-fleet").exists()


@pytest.mark.slow
def test_a_half_failed_attachment_goes_on_or_back(in_service: Fleet) -> None:
    """One machine has no room for the agent's package, and one is off: a second attach completes both."""
    fine, full, off = in_service.add(), in_service.add(), in_service.add(start=False)
    in_service.wait()
    before = {machine.instance_id: (files(machine.root), units(machine.root)) for machine in in_service.machines}
    dpkg = (full.root / "bin" / "dpkg").read_text()
    full.program("dpkg", "#!/bin/sh\necho 'No space left on device' >&2; exit 1\n")
    first = attachment(in_service).attach()
    assert [first[each.instance_id].status for each in (fine, full, off)] == ["Success", "Failed", "Silent"]
    assert "No space left on device" in first[full.instance_id].text
    assert read_json(full.root / "var/lib/gpu-ami-fleet/attached.json")["agent"] == "absent"
    taken_back = attachment(in_service).detach()
    assert {taken_back[each.instance_id].status for each in (fine, full)} == {"Success"}, taken_back
    assert [
        each.instance_id for each in (fine, full) if (files(each.root), units(each.root)) != before[each.instance_id]
    ] == []
    attachment(in_service).attach()  # fails on the same machine again
    full.program("dpkg", dpkg)
    off.start()
    in_service.wait()
    second = attachment(in_service).attach()
    assert {outcome.status for outcome in second.values()} == {"Success"}, second
    assert {outcome.answer["plan"] for outcome in second.values()} == {in_service.plan.digest}
    attachment(in_service).detach()
    after = {machine.instance_id: (files(machine.root), units(machine.root)) for machine in in_service.machines}
    assert after == before


def test_after_too_many_errors_the_others_are_left_alone(in_service: Fleet) -> None:
    for _ in range(3):
        machine = in_service.add()
        (machine.root / "opt" / "aws" / "cloudwatch" / "nvidia").mkdir(parents=True)
    in_service.wait()
    outcomes = attachment(in_service, Limits("1", "0")).attach()
    assert sorted(outcome.status for outcome in outcomes.values()) == ["Cancelled", "Cancelled", "Failed"]


@pytest.mark.slow
def test_machines_to_come_get_it_too(in_service: Fleet) -> None:
    in_service.add()
    in_service.wait()
    task = attachment(in_service)
    task.attach()
    task.follow_future(ALL)
    first = [each for each in in_service.world.systems_manager.commands.values() if each.document.endswith("-future")]
    assert [(each.max_concurrency, each.max_errors) for each in first] == [("10", "100%")]
    later = in_service.add(gpu=True)
    in_service.wait()
    service = in_service.world.systems_manager

    def results() -> list[PluginResult]:
        commands = [each for each in service.commands.values() if each.document.endswith("-future")]
        invocations = [
            each.invocations[later.instance_id] for each in commands if later.instance_id in each.invocations
        ]
        return [row for each in invocations for row in each.results]

    ends = time.monotonic() + 90
    while not results():
        assert time.monotonic() < ends, "the association did not run"
        time.sleep(0.1)
    assert [(row.name, row.status) for row in results()][-1] == ("gpus", "Success"), results()
    assert (later.root / "run" / "gpu-ami" / "event-parser.json").exists()
    assert len(list((later.root / PARTS).iterdir())) == 2
    task.remove()
    assert made(in_service) == []


def test_dry_run_makes_nothing(in_service: Fleet) -> None:
    machine = in_service.add(start=False)
    task = attachment(in_service)
    lines = plan_steps(task.bundle, task.machines, future=True)
    assert "document gpu-ami-telemetry-debian12-gpu-files-1" in lines
    assert any(line.startswith(machine.instance_id) and "does not manage it" in line for line in lines)
    assert made(in_service) == []


def test_instances_by_id_have_none_to_come() -> None:
    with pytest.raises(UsageError, match="--future: instances by id"):
        require_future(Selection(("i-0123456789abcdef0",)))


def test_a_refusal_says_nothing_about_a_machine(in_service: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    in_service.add()
    in_service.wait()
    service, plain = in_service.world.systems_manager, in_service.world.systems_manager.answer

    def refuse(name: str, *arguments: object) -> object:
        if name == "ssm:SendCommand":
            raise Refused("AccessDeniedException", "not authorized to perform: ssm:SendCommand")
        return plain(name, *arguments)

    monkeypatch.setattr(service, "answer", refuse)
    with pytest.raises(CloudError) as caught:
        attachment(in_service).attach()
    assert caught.value.exit_code == 4 and "AccessDeniedException" in caught.value.message
