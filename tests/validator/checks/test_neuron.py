"""Each Neuron check, once green and once red with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from validator.checks import neuron
from validator.plan import as_plan
from validator.plan_document import PlanDocument

PACKAGES = {
    "aws-neuronx-dkms": "2.31.7.0*", "aws-neuronx-runtime-lib": "2.35.30.0*",
    "aws-neuronx-collectives": "2.35.43.0*", "aws-neuronx-tools": "2.33.38.0*",
}  # fmt: skip
DEVICE = {"name": "g5.12xlarge", "neuron": {"name": "Trainium2", "count": 2, "cores": 8}}


def plan(**packages: str) -> PlanDocument:
    section = {"version": "2.33.0", "packages": packages or PACKAGES}
    return as_plan({"os": {"family": "debian"}, "instance_types": [DEVICE], "neuron": section})


WHOLE, OLD = plan(), plan(**{"aws-neuronx-dkms": "2.21.37.0*"})
DPKG = {
    "aws-neuronx-dkms": "2.31.7.0", "aws-neuronx-runtime-lib": "2.35.30.0-0b044f4ce",
    "aws-neuronx-collectives": "2.35.43.0-1a31ba186", "aws-neuronx-tools": "2.33.38.0",
}  # fmt: skip


def dpkg(**changed: str) -> str:
    return "".join(f"{name} installed {version}\n" for name, version in (DPKG | changed).items())


HELD = "".join(f"{name}\n" for name in PACKAGES)
FILE = "/opt/aws/neuron/lib/libnrt.so.2.35.30.0"
RUNTIME = {"ldconfig*": "\tlibnrt.so.1 (libc6,x86-64) => /opt/aws/neuron/lib/libnrt.so.1\n", "readlink*": f"{FILE}\n"}
# As neuron-ls has them: on Trainium2 two physical cores make one logical core.
ROW = {"nc_count": 4, "logical_neuroncore_config": 2, "memory_size": 103079215104}
LISTED = json.dumps([{"neuron_device": number, **ROW} for number in (0, 1)])
HARDWARE = {"neuron_device_count": 2, "error": ""}
REPORT = json.dumps({"neuron_runtime_data": [], "neuron_hardware_info": HARDWARE}) + "\n"
NODES = "neuron0\nneuron1\nnull\nneuron_nds\n"

CASES: list[tuple[Any, PlanDocument, dict[str, Any], str, str]] = [
    (neuron.test_packages_are_the_planned_ones, WHOLE, {"dpkg-query*": dpkg()}, "PASS", ""),
    (
        neuron.test_packages_are_the_planned_ones, WHOLE, {"dpkg-query*": dpkg(**{"aws-neuronx-tools": "2.30.0.0"})},
        "FAIL", "'aws-neuronx-tools': '2.30.0.0'",
    ),
    (
        neuron.test_packages_are_the_planned_ones, WHOLE, {"dpkg-query*": dpkg().split("\n", 1)[1]}, "FAIL",
        "'aws-neuronx-dkms': 'missing'",
    ),
    (neuron.test_packages_are_held, WHOLE, {"apt-mark*": HELD}, "PASS", ""),
    (
        neuron.test_packages_are_held, WHOLE, {"apt-mark*": HELD.replace("aws-neuronx-tools\n", "")}, "FAIL",
        "not held, so an upgrade would change them: aws-neuronx-tools",
    ),
    (neuron.test_driver_on_disk_is_the_planned_one, WHOLE, {"for k*": "6.1.0-44 2.31.7.0\n"}, "PASS", ""),
    (
        neuron.test_driver_on_disk_is_the_planned_one, WHOLE, {"for k*": "6.1.0-44 2.31.7.0\n6.1.0-50 missing\n"},
        "FAIL", "module neuron on disk: expected 2.31.7.0, got 6.1.0-50: missing",
    ),
    (neuron.test_loaded_driver_is_the_planned_one, WHOLE, {"cat*": "2.31.7.0\n"}, "PASS", ""),
    (
        neuron.test_loaded_driver_is_the_planned_one, WHOLE, {"cat*": (1, "", "No such file")}, "FAIL",
        "loaded driver (/sys/module/neuron): expected '2.31.7.0', got 'not loaded'",
    ),
    (neuron.test_every_promised_device_is_there, WHOLE, {"ls*": NODES}, "PASS", ""),
    (
        neuron.test_every_promised_device_is_there, WHOLE, {"ls*": NODES.replace("neuron1\n", "")}, "FAIL",
        "Neuron device nodes of g5.12xlarge: expected 2, got 1: ['neuron0']",
    ),
    (neuron.test_tools_show_every_promised_core, WHOLE, {"*neuron-ls*": LISTED}, "PASS", ""),
    (
        neuron.test_tools_show_every_promised_core, WHOLE,
        {"*neuron-ls*": LISTED.replace('"nc_count": 4', '"nc_count": 2', 1)}, "FAIL",
        "expected {0: 8, 1: 8}, got {0: 4, 1: 8}",
    ),
    (
        neuron.test_tools_show_every_promised_core, WHOLE, {"*neuron-ls*": (1, "", "No neuron device found")}, "FAIL",
        "No neuron device found",
    ),
    (neuron.test_tools_show_every_promised_core, WHOLE, {"*neuron-ls*": "table\n"}, "FAIL", "not JSON"),
    (neuron.test_tools_show_every_promised_core, OLD, {}, "UNPROVEN", "the plan has no aws-neuronx-tools"),
    (neuron.test_monitor_reports_every_device, WHOLE, {"timeout*": REPORT}, "PASS", ""),
    (
        neuron.test_monitor_reports_every_device, WHOLE, {"timeout*": REPORT.replace(": 2,", ": 1,")}, "FAIL",
        "got {'devices': 1, 'error': ''}",
    ),
    (
        neuron.test_monitor_reports_every_device, WHOLE, {"timeout*": REPORT.replace('"error": ""', '"error": "lost"')},
        "FAIL", "'error': 'lost'",
    ),
    # An inf2.xlarge with runtime 2.30 (test data of a public profiler, DLAMI 20260227) prints no `error` there.
    (neuron.test_monitor_reports_every_device, WHOLE, {"timeout*": REPORT.replace(', "error": ""', "")}, "PASS", ""),
    (
        neuron.test_monitor_reports_every_device, WHOLE, {"timeout*": (0, "", "")}, "FAIL",
        "neuron-monitor printed nothing within 60 s: no error",
    ),
    (neuron.test_monitor_reports_every_device, OLD, {}, "UNPROVEN", "the plan has no aws-neuronx-tools"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "given", "table", "verdict", "message"), CASES)
def test_neuron(
    judge: Judge, check: Any, given: PlanDocument, table: dict[str, Any], verdict: str, message: str
) -> None:
    found = judge(check, table, plan=given)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("package", "given", "table", "verdict", "message"),
    [
        ("aws-neuronx-runtime-lib", WHOLE, RUNTIME, "PASS", ""),
        (
            "aws-neuronx-runtime-lib", WHOLE,
            {k: v.replace("2.35.30.0", "2.20.0.0") for k, v in RUNTIME.items()}, "FAIL",
            "libnrt.so.1: expected version 2.35.30.0, got /opt/aws/neuron/lib/libnrt.so.2.20.0.0",
        ),
        ("aws-neuronx-runtime-lib", WHOLE, {"ldconfig*": ""}, "FAIL", "no libnrt.so.1 is on the loader path"),
        (
            "aws-neuronx-collectives", WHOLE,
            {
                "ldconfig*": "\tlibnccom.so.2 (libc6,x86-64) => /opt/aws/neuron/lib/libnccom.so.2\n",
                "readlink*": "/opt/aws/neuron/lib/libnccom.so.2.35.43\n",
            },
            "PASS", "",
        ),
        ("aws-neuronx-runtime-lib", OLD, {}, "UNPROVEN", "the plan has no aws-neuronx-runtime-lib"),
    ],
)  # fmt: skip
def test_library(
    judge: Judge, package: str, given: PlanDocument, table: dict[str, Any], verdict: str, message: str
) -> None:
    found = judge(neuron.test_library_is_the_planned_one, table, plan=given, package=package)
    assert (found.verdict, message in found.message) == (verdict, True), found
