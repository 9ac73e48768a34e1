"""Planned and installed versions: what is equal, what is held, and what a * at the end leaves open."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.scripted_host import table_host
from validator.observe import Observe
from validator.plan import as_plan
from validator.probes import packages
from validator.results import CheckRecord, RunningCheck


def judged(check: Any, family: str, planned: Mapping[str, str], answers: Mapping[str, str]) -> str:
    """The failure's message; empty where there is none."""
    plan = as_plan({"os": {"family": family}, "efa": {"version": "1", "packages": dict(planned)}})
    host = table_host({f"{program} *": reply for program, reply in answers.items()})
    try:
        check(host, plan, "efa", Observe(RunningCheck(CheckRecord("efa::x", "efa", "T1", ""))))
    except pytest.fail.Exception as failure:
        return str(failure)
    return ""


DEB = "a installed 1:1.0-1\nb installed 2.35.30.0-0abc\n"
RPM = "a 1:1.0-1\nb 0:2.35.30.0_abc-1\npackage c is not installed\n"


@pytest.mark.parametrize(
    ("family", "planned", "wrong"),
    [
        ("debian", {"a": "1:1.0-1", "b": "2.35.30.0*"}, ""),
        ("debian", {"a": "1:1.0-1", "b": "2.35.30.0"}, "2.35.30.0-0abc"),
        ("debian", {"b": "2.35.31.0*"}, "2.35.31.0*"),
        ("redhat", {"a": "1:1.0-1", "b": "2.35.30.0*"}, ""),
        ("redhat", {"b": "2.35.3.0*"}, "2.35.30.0_abc-1"),
        ("redhat", {"c": "1*"}, "missing"),
    ],
)
def test_installed_is_planned(family: str, planned: dict[str, str], wrong: str) -> None:
    message = judged(packages.check_installed, family, planned, {"dpkg-query": DEB, "rpm": RPM})
    assert bool(message) == bool(wrong) and wrong in message


@pytest.mark.parametrize(
    ("lock", "message"),
    [
        ("b-0:2.35.30.0_abc-1.*", ""),
        ("b-0:2.35.31.0_abc-1.*", "not held, so an upgrade would change them: b"),
        ("bb-0:2.35.30.0_abc-1.*", "not held, so an upgrade would change them: b"),
        ("", "not held, so an upgrade would change them: b"),
    ],
)
def test_held_is_locked_to_the_planned_version(lock: str, message: str) -> None:
    assert judged(packages.check_held, "redhat", {"b": "2.35.30.0*"}, {"cat": lock}) == message


@pytest.mark.parametrize(
    ("origin", "reason"),
    [
        ({}, "the plan names no packages of nvidia_driver"),
        ({"origin": "observed"}, "nvidia_driver is of no package of this image"),
    ],
)
def test_reason_is_about_an_image_as_found(origin: dict[str, str], reason: str) -> None:
    """Nobody who observed an image has a plan of it."""
    plan = as_plan({"os": {"family": "debian"}, "nvidia_driver": {"version": "580.95.05"}, **origin})
    with pytest.raises(pytest.skip.Exception, match=reason):
        packages.planned(plan, "nvidia_driver")
