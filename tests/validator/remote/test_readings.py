"""One value of a tool: known, absent or unknown, and never a number by mistake."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from validator.remote import readings

UNKNOWN = (
    "GPU is lost",
    "[GPU is lost]",
    "Unknown Error",
    "ERR!",
    "[Not Found]",
    "Not Found",
    "",
    "perhaps",
    "12,5",
    "0x1f",
)


@pytest.mark.parametrize("text", UNKNOWN)
def test_reading_is_no_number(text: str) -> None:
    for read in (readings.read_number, readings.read_flag):
        reading = read(text)
        assert reading.state == readings.UNKNOWN
        with pytest.raises(readings.UnknownValue):
            reading.number()
        with pytest.raises(TypeError):
            bool(reading)
        with pytest.raises(TypeError):
            _ = reading == 0
        assert not reading.is_set() and reading.number_or_none() is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("30 C", 30),
        ("16x", 16),
        ("68.92 W", 68.92),
        ("81559 MiB", 81559),
        ("640 bank(s)", 640),
        ("0 KB/s", 0),
        ("-5 C", -5),
    ],
)
def test_reading_of_a_value(text: str, number: float) -> None:
    assert readings.read_number(text).number() == number


@pytest.mark.parametrize("text", ["N/A", "[N/A]", "[Not Supported]", "Requested functionality has been deprecated"])
def test_what_a_board_does_not_have_is_absent(text: str) -> None:
    assert readings.read_number(text).state == readings.ABSENT
    assert readings.read_number(text).as_unknown().state == readings.UNKNOWN


@pytest.mark.parametrize(
    ("fabric", "faults"),
    [
        ("<state>Completed</state><status>Success</status>", []),
        ("<state>N/A</state><status>N/A</status>", []),
        ("<state>In Progress</state><status>Success</status>", ["state: In Progress"]),
        ("<state>Not Started</state><status>N/A</status>", ["state: Not Started", "status: N/A"]),
        ("<state>Completed</state><status>Unknown Error</status>", ["status: Unknown Error"]),
        ("<state>GPU is lost</state><status>GPU is lost</status>", ["state: GPU is lost", "status: GPU is lost"]),
        ("<state>Completed</state>", ["status: no value"]),
        ("", ["state: no value", "status: no value"]),
    ],
)
def test_fabric(fabric: str, faults: list[str]) -> None:
    assert readings.fabric_faults(ElementTree.fromstring(f"<gpu><fabric>{fabric}</fabric></gpu>")) == faults


@pytest.mark.parametrize(
    ("health", "faults"),
    [
        ("<summary>Healthy</summary><bandwidth>Full</bandwidth><route_unhealthy>False</route_unhealthy>", []),
        ("<summary>N/A</summary><incorrect_configuration>None</incorrect_configuration>", []),
        (
            "<summary>Unhealthy</summary><route_unhealthy>True</route_unhealthy>",
            ["summary: Unhealthy", "route_unhealthy: True"],
        ),
        (
            "<summary>Limited Capacity</summary><bandwidth>Degraded</bandwidth>",
            ["summary: Limited Capacity", "bandwidth: Degraded"],
        ),
        ("<access_timeout_recovery>True</access_timeout_recovery>", ["access_timeout_recovery: True"]),
        (
            "<incorrect_configuration>Incorrect SystemGuid</incorrect_configuration>",
            ["incorrect_configuration: Incorrect SystemGuid"],
        ),
    ],
)
def test_fabric_health(health: str, faults: list[str]) -> None:
    text = f"<gpu><fabric><state>Completed</state><status>Success</status><health>{health}</health></fabric></gpu>"
    assert readings.fabric_faults(ElementTree.fromstring(text)) == faults


def test_gpu_without_a_fabric_section_has_no_fault() -> None:
    assert readings.fabric_faults(ElementTree.fromstring("<gpu/>")) == []
