"""Waivers: what they cover, what they say, and each mistake in their file."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from validator import waivers
from validator.results import CheckRecord, Verdict, WaiverRecord, WaiverState

DAY = datetime.date(2026, 11, 21)
WHERE = {"image": "debian12-gpu", "instance_type": "p4d.24xlarge"}


def check(name: str = "hygiene::test_no_shell_history", verdict: str = "FAIL") -> CheckRecord:
    return CheckRecord(
        name, name.partition("::")[0], "T1", "", Verdict(verdict), message="histories: /root/.bash_history"
    )


def waiver(**others: object) -> waivers.Waiver:
    values: dict[str, object] = {
        "check": "hygiene::test_no_shell_history", "reason": "base image", "owner": "me", "expires": DAY,
    }  # fmt: skip
    return waivers.Waiver(**(values | others))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "one", "state", "waived"),
    [
        (waiver(), check(), "used", True),
        (waiver(check="hygiene::*history"), check(), "used", True),
        (waiver(check="a::test_b[/etc/x-1]"), check("a::test_b[/etc/x-1]"), "used", True),
        (waiver(check="a::test_b[*]"), check("a::test_b[/etc/x-1]"), "used", True),
        (waiver(check="a::test_b[x]"), check("a::test_bx"), "unmatched", False),
        (waiver(scope=(("instance_type", "p4d.*"),)), check(), "used", True),
        (waiver(), check(verdict="UNPROVEN"), "used", True),
        (waiver(expires=DAY - datetime.timedelta(days=1)), check(), "expired", False),
        (waiver(), check(verdict="PASS"), "unused", False),
        (waiver(), check("hygiene::test_no_password_lets_in"), "unmatched", False),
        (waiver(scope=(("instance_type", "g5.*"),)), check(), "unused", False),
        (waiver(scope=(("image", "other"),)), check(), "unused", False),
    ],
)
def test_cover(given: waivers.Waiver, one: CheckRecord, state: str, waived: bool) -> None:
    (record,), (waiver_record,) = waivers.apply([given], [one], WHERE, DAY)
    assert (waiver_record.state, record.waived is not None, record.verdict) == (state, waived, one.verdict)
    assert ("expired on 2026-11-20" in record.message) == (state == "expired")


def test_file_in_yaml_and_json(tmp_path: Path) -> None:
    text = "- check: hygiene::test_x\n  reason: why\n  owner: me\n  expires: 2027-01-31\n  scope: {image: a*}\n"
    (tmp_path / "w.yml").write_text(text)
    entry = {
        "check": "hygiene::test_x",
        "reason": "why",
        "owner": "me",
        "expires": "2027-01-31",
        "scope": {"image": "a*"},
    }
    (tmp_path / "w.json").write_text(json.dumps([entry]))
    assert waivers.load(tmp_path / "w.yml") == waivers.load(tmp_path / "w.json") == [
        waivers.Waiver("hygiene::test_x", "why", "me", datetime.date(2027, 1, 31), (("image", "a*"),))
    ]  # fmt: skip


def test_all_mistakes_at_once(tmp_path: Path) -> None:
    path = tmp_path / "w.yml"
    path.write_text(
        "- {check: test_x, reason: why, owner: me, expires: soon}\n"
        "- {check: '*::*', reason: '', owner: me, expires: 2027-01-31, expired: 1}\n"
        "- {check: a::b, reason: why, expires: 2027-01-31, scope: {instance: x}}\n- text\n"
    )
    with pytest.raises(ValueError) as caught:
        waivers.load(path)
    assert str(caught.value).replace(str(path), "w") == "\n".join([
        "w:1: [0].check: expected something like hygiene::test_no_shell_history, got 'test_x'",
        "w:1: [0].expires: expected a date such as 2027-01-31, got 'soon'",
        "w:2: [1].check: expected something like hygiene::test_no_shell_history, got '*::*'",
        "w:2: [1].reason: expected something like base image carries one; ticket 1234, got ''",
        "w:2: [1].expired: unknown key; did you mean expires?; allowed: check, reason, owner, expires, scope",
        "w:3: [2].scope.instance: unknown key; did you mean instance_type?; allowed: image, instance_type",
        "w:3: [2].owner: missing: expected text such as gpu-images@example.com",
        "w:4: [3]: expected keys and values, got 'text'; allowed: check, reason, owner, expires, scope",
    ])  # fmt: skip
    path.write_text("a: 1\n")
    with pytest.raises(ValueError, match="expected a list of waivers, got dict"):
        waivers.load(path)
    path = tmp_path / "deep.json"
    path.write_text("[" * 100_000)
    with pytest.raises(ValueError, match="nested too deeply"):
        waivers.load(path)


def record(state: str, check: str = "hygiene::test_x") -> WaiverRecord:
    return WaiverRecord(check, "why", "me", "2026-11-20", {}, WaiverState(state))


@pytest.mark.parametrize(
    ("records", "remark"),
    [
        ([record("used"), record("unused")], None),
        ([record("used"), record("expired")], None),
        (
            [record("expired"), record("unmatched")],
            "hygiene::test_x: expired on 2026-11-20; ask me to renew or remove it",
        ),
        ([record("unused")], "hygiene::test_x: not needed, no check that it names failed; remove it"),
        (
            [record("unmatched", "hygiene::test_no_shell_historie")],
            "hygiene::test_no_shell_historie: matches no check that ran; did you mean hygiene::test_no_shell_history?;"
            " `gpu-ami checks` lists the ids",
        ),
    ],
)
def test_remarks_name_waivers_without_effect(records: list[WaiverRecord], remark: str | None) -> None:
    expected = [remark] if remark else []
    assert waivers.remarks(records, ["hygiene::test_no_shell_history", "boot::test_a"]) == expected
