"""From what a region has to the steps: a table of differences."""

from __future__ import annotations

import datetime
from dataclasses import replace
from typing import Any

import pytest

from gpu_ami.cloud import image_parameters
from gpu_ami.publish import steps
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.release import TAG_PUBLISHED, TAG_VERSION, Image, Release, as_time
from gpu_ami.publish.sharing import Key
from gpu_ami.publish.steps import View

NOW = datetime.datetime(2026, 11, 22, 12, 0, tzinfo=datetime.UTC)
PUBLISHED = {TAG_PUBLISHED: "2026-11-22T12:00:00Z", TAG_VERSION: "v1"}
SOURCE = Image("ami-1", "v1", imds="v2.0")
RELEASE = Release(SOURCE, "us-east-1", "demo", {"a": "1"}, {"/dev/a": {"s": "1"}, "/dev/b": {"s": "2"}}, False)
POLICY = ReleasePolicy(
    (RegionPolicy("us-east-1"),), ("111122223333",), prefix="/p", deprecate_after=10, deregistration_protection=True,
    keep=1, retire_after=5,
)  # fmt: skip
COMPLETE = View(
    "us-east-1",
    replace(
        SOURCE, tags={"a": "1", **PUBLISHED}, snapshots={"/dev/a": "snap-a", "/dev/b": "snap-b"}, is_protected=True,
        deprecated_at="2026-12-02T12:00:00.000Z",
    ),
    snapshot_tags=RELEASE.snapshot_tags,
    shared=frozenset({"111122223333"}),
    parameters={"/p/v1": image_parameters.Parameter("ami-1"), "/p/latest": image_parameters.Parameter("ami-1")},
)  # fmt: skip
OLD = Image("ami-0", "v0", tags={TAG_PUBLISHED: "2026-10-01T00:00:00Z", TAG_VERSION: "v0"})
GONE = replace(OLD, deprecated_at="2026-11-01T00:00:00.000Z")


def of_image(**changes: Any) -> View:
    assert COMPLETE.image
    return replace(COMPLETE, image=replace(COMPLETE.image, **changes))


TABLE: dict[str, tuple[View, list[str]]] = {
    "complete": (COMPLETE, []),
    "pending": (of_image(state="pending"), ["wait"]),
    "without a tag": (of_image(tags=PUBLISHED), ["tag"]),
    "another value of a tag": (of_image(tags={"a": "2", **PUBLISHED}), ["tag"]),
    "without the tags of a snapshot": (replace(COMPLETE, snapshot_tags={"/dev/a": {"s": "1"}}), ["tag"]),
    "without IMDSv2": (of_image(imds=""), ["imds"]),
    "not protected": (of_image(is_protected=False), ["protect"]),
    "another deprecation date": (of_image(deprecated_at="2027-12-02T12:00:00.000Z"), ["deprecate"]),
    "not shared": (replace(COMPLETE, shared=frozenset()), ["share"]),
    "not marked": (of_image(tags={"a": "1"}), ["wait", "mark"]),
    "not pinned": (replace(COMPLETE, parameters={"/p/latest": image_parameters.Parameter("ami-1")}), ["pin"]),
    "latest names another": (
        replace(COMPLETE, parameters={**COMPLETE.parameters, "/p/latest": image_parameters.Parameter("ami-0")}),
        ["latest"],
    ),
    "an older image is surplus": (replace(COMPLETE, older=(OLD,)), ["deprecate"]),
    "an older image is due": (replace(COMPLETE, older=(GONE,)), ["retire"]),
    "an older image is due and in use": (replace(COMPLETE, older=(GONE,), users={"ami-0": ["instance i-1"]}), []),
    "a copy that failed beside a good one": (
        replace(COMPLETE, failed=(Image("ami-f", "v1", "failed", reason="no key"),)), ["deregister"]),
}  # fmt: skip


@pytest.mark.parametrize("name", TABLE)
def test_each_difference_has_its_step(name: str) -> None:
    view, names = TABLE[name]
    assert [step.name for step in steps.plan(RELEASE, POLICY, view, NOW)] == names


def test_a_region_without_the_image_gets_all_in_order() -> None:
    failed = Image("ami-f", "v1", "failed")
    view = View("eu-west-1", key=Key("arn:key"), failed=(failed,))
    planned = steps.plan(RELEASE, POLICY, view, NOW)
    assert [(step.phase, step.name) for step in planned] == [
        (1, "copy"), (2, "wait"), (2, "deregister"), (2, "tag"), (2, "tag"), (2, "imds"), (2, "protect"),
        (2, "deprecate"), (2, "share"), (2, "mark"), (2, "pin"), (3, "latest"),
    ]  # fmt: skip
    assert planned[0].text == "copy ami-1 from us-east-1 as v1, encrypted with arn:key"
    assert planned[0].values == ("arn:key", "ami-f")
    assert planned[-4].text == "share it with 111122223333"


def test_of_two_published_within_a_second_the_later_one_is_the_newer() -> None:
    moments = [NOW + datetime.timedelta(milliseconds=1), NOW + datetime.timedelta(milliseconds=300)]
    marks = [
        step.tags[TAG_PUBLISHED]
        for now in moments
        for step in steps.plan(RELEASE, POLICY, View("eu-west-1"), now)
        if step.name == "mark"
    ]
    assert marks == ["2026-11-22T12:00:00.001Z", "2026-11-22T12:00:00.300Z"] == sorted(marks)
    assert [as_time(mark) for mark in marks] == moments


def test_tags_that_all_snapshots_share_come_with_the_copy() -> None:
    assert steps.common(RELEASE) == {}
    same = replace(RELEASE, snapshot_tags={"/dev/a": {"s": "1", "t": "2"}, "/dev/b": {"s": "1"}})
    assert steps.common(same) == {"s": "1"}
    assert steps.common(replace(RELEASE, snapshot_tags={})) == {}


def test_retiring_takes_the_pinned_parameter_with_it() -> None:
    (step,) = steps.plan(RELEASE, POLICY, replace(COMPLETE, older=(GONE,)), NOW)
    assert step.text == "retire ami-0 (v0): deregister it, delete its snapshots and /p/v0" and step.values == ("/p/v0",)


def test_notices_name_users_and_strangers() -> None:
    users = {"ami-0": [f"instance i-{number}" for number in range(5)]}
    view = replace(COMPLETE, older=(GONE,), users=users, shared=frozenset({"111122223333", "all"}))
    assert list(steps.notices(POLICY, view, NOW)) == [
        "ami-0 (v0) is not retired: used by instance i-0, instance i-1, instance i-2 and 2 more",
        "ami-1 is also shared with all, whom the policy does not name",
    ]


def test_contradictions_are_named() -> None:
    rows = {"/p/v1": image_parameters.Parameter("ami-9"), "/p/latest": image_parameters.Parameter("ami-1", "text")}
    assert list(steps.contradictions(RELEASE, POLICY, replace(COMPLETE, parameters=rows))) == [
        "/p/v1 names ami-9, not ami-1: it is never moved",
        "/p/latest has the data type text, which cannot be changed to aws:ec2:image: delete it",
    ]
    assert list(steps.contradictions(RELEASE, POLICY, COMPLETE)) == []
