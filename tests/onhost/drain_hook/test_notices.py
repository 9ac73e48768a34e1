"""Which notices follow from the categories of the metadata service."""

from __future__ import annotations

import json

import pytest

from tests.onhost.drain_hook.programs import SPOT, FakeMetadata, hook_module

metadata, notices = hook_module("metadata"), hook_module("notices")
EVENT = {
    "NotBefore": "21 Jan 2026 09:00:43 GMT", "Code": "system-reboot", "Description": "scheduled reboot",
    "EventId": "instance-event-0d59937288b749b32", "NotAfter": "21 Jan 2026 09:17:23 GMT", "State": "active",
}  # fmt: skip


@pytest.mark.parametrize(
    ("categories", "expected"),
    [
        ({}, []),
        (SPOT, [("spot-interruption", "terminate", "2026-11-23T10:02:00Z")]),
        ({"spot/instance-action": '{"action": "hibernate"}'}, [("spot-interruption", "hibernate", "unknown")]),
        (
            {"events/recommendations/rebalance": '{"noticeTime": "2026-11-23T10:00:00Z"}'},
            [("rebalance-recommendation", "rebalance", "2026-11-23T10:00:00Z")],
        ),
        ({"autoscaling/target-lifecycle-state": "InService"}, []),
        ({"autoscaling/target-lifecycle-state": "Terminated"}, [("autoscaling-termination", "terminate", "")]),
        ({"autoscaling/target-lifecycle-state": "Warmed:Stopped"}, []),
        ({"autoscaling/target-lifecycle-state": "Warmed:Terminated"}, [("autoscaling-termination", "terminate", "")]),
        ({"events/maintenance/scheduled": "[]"}, []),
        (
            {"events/maintenance/scheduled": json.dumps([EVENT, EVENT | {"State": "completed"}, 7])},
            [("maintenance-event", "system-reboot", "2026-01-21T09:00:43Z")],
        ),
        (
            {"events/maintenance/scheduled": json.dumps([EVENT | {"NotBefore": "99 Jan 2026 soon"}])},
            [("maintenance-event", "system-reboot", "99 Jan 2026 soon")],
        ),
    ],
)
def test_notices(categories: dict[str, str], expected: list[tuple[str, str, str]]) -> None:
    with FakeMetadata(**categories) as imds:
        found, problems = notices.read(metadata.Metadata(imds.address), list(notices.READERS))
    assert ([tuple(notice[:3]) for notice in found], problems) == (expected, [])


def test_only_what_is_asked_for_is_read() -> None:
    with FakeMetadata(**SPOT) as imds:
        assert notices.read(metadata.Metadata(imds.address), ["autoscaling-termination"]) == ([], [])
        assert imds.asked == ["autoscaling/target-lifecycle-state"]


def test_a_notice_is_known_again_and_a_later_one_is_another() -> None:
    with FakeMetadata(**SPOT) as imds:
        service = metadata.Metadata(imds.address)
        first, again = notices.spot(service), notices.spot(service)
        imds.categories["spot/instance-action"] = SPOT["spot/instance-action"].replace("10:02", "11:02")
        assert first == again and first[0].key != notices.spot(service)[0].key


@pytest.mark.parametrize("text", ["", "{", "[1]", '"x"', "[" * 50_000])
def test_one_unreadable_category_does_not_hide_another(text: str) -> None:
    categories = {"spot/instance-action": text, "autoscaling/target-lifecycle-state": "Terminated"}
    with FakeMetadata(**categories) as imds:
        found, problems = notices.read(metadata.Metadata(imds.address), list(notices.READERS))
    assert [notice.kind for notice in found] == ["autoscaling-termination"]
    assert [problem.partition(", got")[0] for problem in problems] == ["spot/instance-action: expected a JSON object"]


def test_a_dead_service_is_one_problem() -> None:
    with FakeMetadata() as imds:
        address = imds.address
    imds.server_close()
    found, problems = notices.read(metadata.Metadata(address), list(notices.READERS))
    assert found == [] and len(problems) == 1
