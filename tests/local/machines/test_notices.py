"""Notices that a tag plants, as the drain hook reads them from the metadata service of an instance."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_ami.local.machines.metadata import build_tree, look_up
from gpu_ami.local.machines.notices import NOTICE_TAG
from tests.drain_hook.programs import hook_module
from tests.local.machines.test_metadata import VIEW

ALL = ("spot-interruption", "rebalance-recommendation", "autoscaling-termination", "maintenance-event")
notices = hook_module("notices")


class Tree:
    """The metadata of the instance with the tag, without HTTP."""

    def __init__(self, value: str | None) -> None:
        self.tree = build_tree(replace(VIEW, tags={} if value is None else {NOTICE_TAG: value}))

    def get(self, category: str) -> str | None:
        return look_up(self.tree, f"meta-data/{category}")


def test_without_the_tag_there_is_no_notice() -> None:
    assert notices.read(Tree(None), ALL) == ([], [])
    assert Tree(None).get("events/maintenance/scheduled") == "[]"
    assert Tree(None).get("spot/instance-action") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("spot-interruption@2026-11-23T10:02:00Z", [("spot-interruption", "terminate", "2026-11-23T10:02:00Z")]),
        ("spot-interruption", [("spot-interruption", "terminate", "2026-11-21T12:00:00Z")]),
        ("rebalance-recommendation@T", [("rebalance-recommendation", "rebalance", "T")]),
        ("autoscaling-termination", [("autoscaling-termination", "terminate", "")]),
        ("maintenance-event@T", [("maintenance-event", "system-reboot", "T")]),
        ("rebalance-recommendation@T, spot-interruption@U", [
            ("spot-interruption", "terminate", "U"), ("rebalance-recommendation", "rebalance", "T"),
        ]),
        ("nothing-of-the-kind", []),
    ],
)  # fmt: skip
def test_a_planted_notice_is_read(value: str, expected: list[tuple[str, str, str]]) -> None:
    found, problems = notices.read(Tree(value), ALL)
    assert ([tuple(notice[:3]) for notice in found], problems) == (expected, [])


def test_every_planted_category_is_listed() -> None:
    listing = look_up(Tree(",".join(ALL)).tree, "meta-data/") or ""
    assert {"events/", "spot/", "autoscaling/"} <= set(listing.split("\n"))
