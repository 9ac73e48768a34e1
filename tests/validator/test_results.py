"""Check records: what is written is read back, and a file of another form is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from validator import results
from validator.results import (
    CheckRecord,
    Hop,
    HostResults,
    InvalidRecord,
    JournalWriter,
    MetricSeries,
    Replica,
    Verdict,
    WaiverRecord,
    WaiverState,
    read_journal,
)

WAIVER = WaiverRecord("xid::test_*", "ticket 1", "me", "2027-01-31", {"image": "a*"}, WaiverState.USED)
RECORD = CheckRecord(
    "xid::test_it@reboot", "xid", "T2", "After reboot: An Xid arrives.", Verdict.FAIL, ["a", 1], {"b": None},
    "no event\nnothing in the log", 1.25, 2, "reboot", (Hop("kernel → journal", 0.5),), {"pid": 977}, WAIVER,
    (MetricSeries("nvidia_smi_power_draw", 1, 1200.0, 60, (51.0, None, 52.5)),),
)  # fmt: skip
RESULTS = HostResults(
    "ssh://h", (RECORD, CheckRecord("a::test_b", "a", "T1", "b")), (Replica("cuda", "1", "x"),), {"os": "d"}, (WAIVER,)
)


def test_file_holds_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "checks.json"
    RESULTS.write(path)
    assert HostResults.load(path) == HostResults(**vars(RESULTS) | {"checks": (_listed(RECORD), RESULTS.checks[1])})
    assert [entry.name for entry in path.parent.iterdir()] == ["checks.json"]
    document = json.loads(path.read_text())
    assert (document["schema"], document["checks"][0]["verdict"]) == ("gpu-ami/checks/2", "FAIL")
    assert document["checks"][0]["hops"] == [{"hop": "kernel → journal", "seconds": 0.5}]


def test_series_has_a_gap_where_a_period_has_no_datapoint() -> None:
    series = MetricSeries.of_points("m", 0, 60, {180.0: 3.0, 60.0: 1.00049, 240.0: 4.0})
    assert series == MetricSeries("m", 0, 60.0, 60, (1.0, None, 3.0, 4.0))


def _listed(record: CheckRecord) -> CheckRecord:
    return CheckRecord.from_json(record.to_json())


def test_values_without_a_form_in_json_become_text(tmp_path: Path) -> None:
    record = CheckRecord("a::b", "a", "T1", "", observed={Path("/x"): (Verdict.PASS, Hop("h", 1.0), {1})})
    assert record.to_json()["observed"] == {"/x": ["PASS", {"hop": "h", "seconds": 1.0}, "{1}"]}
    odd = HostResults("h", (CheckRecord("a::b", "a", "T1", "", message="\udcff"),))
    odd.write(tmp_path / "checks.json")  # a byte that is not UTF-8 must not cost a run its results
    assert HostResults.load(tmp_path / "checks.json") == odd


def broken(**changes: Any) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(json.dumps(RESULTS.to_json()))
    first = document["checks"][0]
    for key, value in changes.items():
        if value is None:
            del first[key]
        else:
            first[key] = value
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"schema": "gpu-ami/checks/1"}, "f: expected schema gpu-ami/checks/2, got gpu-ami/checks/1; run the checks"),
        ([], "f: expected schema gpu-ami/checks/2, got None"),
        (
            broken(role=None, id=None, extra=1),
            "f: checks[0]: missing key 'id', missing key 'role', unknown key 'extra'",
        ),
        (broken(verdict="GREEN"), "f: checks[0]: verdict: 'GREEN' is not a valid Verdict"),
        (broken(hops=[{"hop": "x"}]), "f: checks[0].hops[0]: missing key 'seconds'"),
        (broken(waived={}), "f: checks[0].waived: missing key 'check'"),
        (broken(hops={}), "f: checks[0].hops: expected a list, got dict"),
    ],
)
def test_other_form_is_refused(document: Any, message: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        HostResults.from_json(document, "f")
    assert message in str(caught.value)


def test_invalid_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checks.json").write_text("{")
    with pytest.raises(InvalidRecord, match=r"checks\.json: not JSON"):
        HostResults.load(tmp_path / "checks.json")


def test_verdicts_are_their_names() -> None:
    assert [str(verdict) for verdict in Verdict] == ["PASS", "FAIL", "FLAKY", "UNAVAILABLE", "UNPROVEN", "ERROR"]
    assert results.FLAKY is Verdict.FLAKY and f"{Verdict.FAIL}" == "FAIL" and json.dumps(Verdict.PASS) == '"PASS"'


def test_first_line() -> None:
    assert (RECORD.first_line, CheckRecord("a::b", "a", "T1", "", message="").first_line) == ("no event", "UNPROVEN")


def test_journals_have_each_check_at_once(tmp_path: Path) -> None:
    writer, records = JournalWriter(), [CheckRecord(f"a::{name}", "a", "T1", "") for name in "bcd"]
    for record, name in zip(records, ("1.jsonl", "2.jsonl", "1.jsonl"), strict=True):
        writer.append(tmp_path / name, record)
        assert read_journal(tmp_path / name)[-1] == record
    writer.append(tmp_path / "missing" / "3.jsonl", records[0])  # as on a full disk: it costs the run nothing
    writer.append(tmp_path / "2.jsonl", records[2])
    writer.close()
    writer.close()
    assert read_journal(tmp_path / "1.jsonl") == (records[0], records[2])
    assert read_journal(tmp_path / "2.jsonl") == (records[1], records[2])
