"""The record: states, text, and steps of earlier runs.

What is published: tags that stay, the version in a parameter's name, one token for one copy.
"""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import Cloud
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.publish import record
from gpu_ami.publish.record import Record, RegionRecord
from gpu_ami.publish.release import Image, Release, as_time, read_release
from gpu_ami.publish.steps import Step
from tests.json_documents import valid
from tests.publish.conftest import OTHER, Account

IMAGE = {"ami": "ami-1", "name": "v1", "version": "v1", "recipe": "demo"}


def a_record(file: Path | None, *outcomes: str) -> Record:
    region = RegionRecord("us-east-1", "ami-1")
    region.expect([Step(1, f"step-{number}", f"text {number}") for number in range(len(outcomes))])
    region.outcomes = list(outcomes)
    return Record("publish", dict(IMAGE), "0" * 64, [region], file)


def test_states(tmp_path: Path) -> None:
    file = tmp_path / "publication.json"
    assert a_record(None, record.TO_DO).state == "planned"
    assert a_record(file, record.TO_DO, record.DONE).state == "incomplete"
    assert a_record(file, record.DONE).state == "published"
    ended = a_record(file, record.DONE)
    ended.is_interrupted = True
    assert ended.state == "interrupted"


def test_a_failed_region_is_shown_with_its_remedy(tmp_path: Path) -> None:
    shown = a_record(tmp_path / "p.json", record.DONE, record.FAILED)
    shown.regions[0].notices.append("a notice")
    shown.regions[0].fail(CloudError("broken", details=["because"], hint="mend it"))
    valid(shown.to_json(), "publish")
    assert shown.text().splitlines() == [
        "us-east-1  ami-1",
        "  done    text 0",
        "  failed  text 1",
        "  notice  a notice",
        "  failed  broken",
        "          because",
        "          → mend it",
        "",
        "INCOMPLETE: v1: us-east-1 failed; run the same command again, it goes on from here",
    ]


def test_steps_of_earlier_runs_of_the_same_image_are_kept(tmp_path: Path) -> None:
    file = tmp_path / "publication.json"
    first = a_record(file, record.DONE, record.TO_DO)
    first.write()
    second = a_record(file, record.DONE)
    second.resume()
    assert [row["text"] for row in second.regions[0].earlier] == ["text 0"] and second.started == first.started
    second.write()
    other = a_record(file)
    other.image["ami"] = "ami-2"
    other.resume()
    assert other.regions[0].earlier == []
    file.write_text("{")
    other.resume()


DAY = datetime.date(2026, 11, 22)


def release(**changes: Any) -> Release:
    image = Image("ami-1", changes.pop("name", "gpu-ami-1"))
    return Release(image, "us-east-1", "demo", {"a": "1"}, {}, is_encrypted=False)


def test_a_version_is_the_name_in_the_characters_of_a_parameter() -> None:
    assert release(name="gpu ami (x)/1.2").version == "gpu_ami__x__1.2"


def test_a_copy_names_its_source() -> None:
    assert release().tags_in("us-east-1") == {"a": "1"}
    assert release().tags_in("eu-west-1") == {"a": "1", "gpu-ami:source-ami": "ami-1"}


def test_a_token_stands_for_one_copy_of_a_day() -> None:
    token = release().token("eu-west-1", "", (), DAY)
    assert token == release().token("eu-west-1", "", (), DAY) and len(token) <= 64
    others = {
        release().token("eu-west-2", "", (), DAY),
        release().token("eu-west-1", "key", (), DAY),
        release().token("eu-west-1", "", ("ami-failed",), DAY),
        release().token("eu-west-1", "", (), DAY + datetime.timedelta(days=1)),
    }
    assert len(others | {token}) == 5


def test_times_are_read_as_aws_and_our_tags_write_them() -> None:
    assert as_time("2027-05-01T10:01:00.000Z") == datetime.datetime(2027, 5, 1, 10, 1, tzinfo=datetime.UTC)
    assert as_time("never") is None


def test_a_published_image_does_not_expire(account: Account) -> None:
    account.build()
    read = read_release(Cloud(account.place()), "ami-00000000000000001", "demo")
    assert read.tags["gpu-ami:expires"] == "never" and read.snapshot_tags["/dev/xvda"]["of"] == "snapshot"
    assert read.image.imds == "v2.0" and not read.is_encrypted
    with pytest.raises(UsageError, match="ami-00000000000000001 is no image of this account in eu-central-1"):
        read_release(Cloud(account.place(region=OTHER)), "ami-00000000000000001", "demo")
    account.world.ec2.set_image_state(account.world.ec2.images()["ami-00000000000000001"], "pending")
    with pytest.raises(UsageError, match="is pending, expected available"):
        read_release(Cloud(account.place()), "ami-00000000000000001", "demo")


def test_a_layer_image_is_not_published(account: Account) -> None:
    account.build()
    ami, tag = "ami-00000000000000001", {"Key": "gpu-ami:layer", "Value": "driver"}
    account.client("ec2").create_tags(Resources=[ami], Tags=[tag])
    with pytest.raises(UsageError, match="is the image of layer driver, not a finished image"):
        read_release(Cloud(account.place()), ami, "demo")
