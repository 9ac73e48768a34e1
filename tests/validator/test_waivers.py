"""Waivers: what they cover, what they say, and each mistake in their file."""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from validator import waivers
from validator.results import Check

DAY = datetime.date(2026, 11, 21)
WHERE = {"image": "debian12-gpu", "instance_type": "p4d.24xlarge"}


def check(name: str = "hygiene::test_no_shell_history", verdict: str = "FAIL") -> Check:
    return Check(name, name.partition("::")[0], "T1", "", verdict, message="histories: /root/.bash_history")


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
        (waiver(scope=(("instance_type", "p4d.*"),)), check(), "used", True),
        (waiver(), check(verdict="UNPROVEN"), "used", True),
        (waiver(expires=DAY - datetime.timedelta(days=1)), check(), "expired", False),
        (waiver(), check(verdict="PASS"), "unused", False),
        (waiver(), check("hygiene::test_no_password_lets_in"), "unused", False),
        (waiver(scope=(("instance_type", "g5.*"),)), check(), "unused", False),
        (waiver(scope=(("image", "other"),)), check(), "unused", False),
    ],
)
def test_cover(given: waivers.Waiver, one: Check, state: str, waived: bool) -> None:
    verdict = one.verdict
    (told,) = waivers.apply([given], [one], WHERE, DAY)
    assert (told["state"], one.waived is not None, one.verdict) == (state, waived, verdict)
    assert ("expired on 2026-11-20" in one.message) == (state == "expired")


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
        "- {check: '*::*', reason: '', owner: me, expires: 2027-01-31, until: 1}\n"
        "- {check: a::b, reason: why, owner: me, expires: 2027-01-31, scope: {region: x}}\n- text\n"
    )
    with pytest.raises(ValueError) as caught:
        waivers.load(path)
    assert str(caught.value).replace(str(path), "w") == "\n".join([
        "w[0]: check 'test_x' is no id like hygiene::test_no_shell_history",
        "w[0]: expires 'soon' is no date like 2027-01-31",
        "w[1]: unknown key 'until', known are check, reason, owner, expires, scope",
        "w[1]: reason is missing",
        "w[1]: check '*::*' names no role before its ::",
        "w[2]: unknown scope 'region', known are image, instance_type",
        "w[3]: expected an object, found str",
    ])  # fmt: skip
    path.write_text("a: 1\n")
    with pytest.raises(ValueError, match="expected a list of waivers, found dict"):
        waivers.load(path)
