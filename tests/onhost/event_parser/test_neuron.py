"""Neuron's lines in the kernel log: errors of the runtime, and of the driver itself."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.events.reader import parser_module
from tests.onhost.event_parser.parser_bench import Bench, record

neuron, catalogue = parser_module("neuron"), parser_module("catalogue")
textlog, kmsg = parser_module("textlog"), parser_module("kmsg")
CATALOGUE = catalogue.Catalogue(policy_path=None)
# The line of the Neuron Runtime troubleshooting guide.
GUIDE = (
    "NEURON_HW_ERR=SRAM_UNCORRECTABLE_ERROR instance-id=i-0592464924bd45322 hostname=ip-172-31-61-252 nd-id=3 nc-id=1"
    " serial-num=19fcda00f5ff6eb9 action=TERMINATE_INSTANCE"
)
# pr_err and pr_info of aws-neuron-driver 2.24.7.0 with their format filled in; the first as of 2.7.33 (release notes).
DRIVER = {
    "neuron:ndma_memcpy_wait_for_completion: DMA completion timeout for UDMA_ENG_33 q0": ("DMA_COMPLETION_TIMEOUT", ""),
    "neuron:ndma_memcpy_wait_for_completion: DMA completion timeout on nd02 for nd2-eng33 q0 desc count 64": (
        "DMA_COMPLETION_TIMEOUT", "neuron2",
    ),
    "neuron:nr_reset_thread_fn: nd11: reset request 4 was initiated, but failed to complete": (
        "RESET_INCOMPLETE", "neuron11",
    ),
    "neuron:nr_reset_thread_fn: nd0: reset request 4294967295 failed": ("RESET_FAILED", "neuron0"),
}  # fmt: skip


def events(text: str) -> list[dict[str, Any]]:
    parser = textlog.TextParser(CATALOGUE)
    found = [event for line in textlog.read_lines(io.BytesIO(text.encode())) for event in parser.feed(line)]
    return [*found, *parser.finish()]


def test_the_guide_s_line_has_every_member() -> None:
    fact = neuron.parse_neuron(GUIDE)
    assert fact.code == "SRAM_UNCORRECTABLE_ERROR"
    assert (fact.device, fact.asked) == ("neuron3", "TERMINATE_INSTANCE")
    assert fact.details == {"instance_id": "i-0592464924bd45322", "nc_id": "1", "serial_num": "19fcda00f5ff6eb9"}
    assert fact.message == GUIDE


@pytest.mark.parametrize(
    "stamp", ["2026-11-23T01:02:03.123456Z ", "[2026-11-23 01:02:03] ", "2026-Nov-23 01:02:03.0593 "]
)
def test_a_time_may_stand_before_it(stamp: str) -> None:
    assert neuron.parse_neuron(stamp + GUIDE).message == GUIDE


@pytest.mark.parametrize(("line", "expected"), DRIVER.items())
def test_driver_s_own_lines(line: str, expected: tuple[str, str]) -> None:
    fact = neuron.parse_neuron(line)
    assert (fact.code, fact.device) == expected
    assert neuron.may_hold(line.encode())


@pytest.mark.parametrize(
    "line",
    [
        "neuron:npid_detach: neuron:npid_detach: pid=90193, slot=0",
        "neuron:nr_reset_thread_fn: nd0: reset request 4 completed",
        "neuron:nr_reset_thread_fn: nd0: initiating device reset request 4",
        "saw NEURON_HW_ERR=DMA_ERROR nd-id=0",
        "NEURON_HW_ERR=",
        "NEURON_HW_ERR=dma",
        "x neuron:ndma_memcpy_wait_for_completion: DMA completion timeout for UDMA_ENG_33 q0",
    ],
)
def test_other_lines_and_quotations_are_no_events(line: str) -> None:
    assert neuron.parse_neuron(line) is None


@pytest.mark.parametrize(
    ("line", "severity", "ec2"),
    [
        (GUIDE, "fatal", "stop_start"),
        ("NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR nd-id=0", "fatal", "stop_start"),
        ("NEURON_HW_ERR=HANG_ON_COLLECTIVES nd-id=0", "critical", "restart_application"),
        ("neuron:nr_reset_thread_fn: nd0: reset request 1 failed", "critical", "reboot"),
        ("NEURON_HW_ERR=SOMETHING_NEW nd-id=0", "warning", "aws_support"),
        ("NEURON_HW_ERR=SOMETHING_NEW nd-id=0 action=TERMINATE_INSTANCE", "fatal", "stop_start"),
    ],
)
def test_severity_and_action(line: str, severity: str, ec2: str) -> None:
    (event,) = events(f"[12345.678901] {line}\n")
    assert (event["kind"], event["severity"], event["ec2_action"]) == ("neuron", severity, ec2)


@pytest.mark.parametrize("name", ["SRAM", "NC", "HBM"])
def test_errors_of_the_node_problem_detector_are_in_the_catalogue(name: str) -> None:
    assert CATALOGUE.neuron(f"{name}_UNCORRECTABLE_ERROR").decided_by == "catalogue"


def test_every_row_has_a_known_action_and_a_source() -> None:
    for row in catalogue.rows("neuron.csv", catalogue.DATA):
        assert row["action"] in CATALOGUE.actions and row["severity"] in catalogue.SEVERITIES
        assert row["source"] and row["name"]


def test_policy_overrides_an_error_by_its_name(tmp_path: Path) -> None:
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps({"neuron": {"DMA_ERROR": {"severity": "info"}}}))
    changed = catalogue.Catalogue(policy_path=str(policy))
    assert changed.policy_errors == []
    assert (changed.neuron("DMA_ERROR").severity, changed.neuron("DMA_ERROR").decided_by) == ("info", "policy")


def test_service_writes_event_raw_line_and_metric(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    service = bench.start()
    bench.print(record(0, GUIDE), record(1, GUIDE.replace("nd-id=3", "nd-id=4"), priority=12))
    service.drain()
    service.commit([], everything=True)
    event, drill = bench.events()
    assert (event["code"], event["pci"], event["origin"]) == ("SRAM_UNCORRECTABLE_ERROR", "neuron3", "kernel")
    assert (event["NeuronEvents"], event["NeuronError"]) == (1, "SRAM_UNCORRECTABLE_ERROR")
    assert event["details"] | {"asked": "TERMINATE_INSTANCE"} == event["details"]
    assert event["incident"]["gpu"] == "neuron3"
    assert (drill["origin"], drill["DrillEvents"]) == ("userland", 1)
    assert GUIDE in bench.raw()[0]


def test_prefilter_takes_no_other_record() -> None:
    assert not kmsg.interesting(b"6,1,2,-;neuron:npid_attach: pid=1")
