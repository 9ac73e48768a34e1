"""The record: states, text, and steps of earlier runs."""

from __future__ import annotations

from pathlib import Path

from gpu_ami.errors import CloudError
from gpu_ami.publish import record
from gpu_ami.publish.record import Record, RegionRecord
from gpu_ami.publish.steps import Step
from tests.json_documents import valid

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
