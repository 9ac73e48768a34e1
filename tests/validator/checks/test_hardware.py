"""Links, NVSwitches and EFA of a machine, once green and once red with its message."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, Judge
from validator.checks import hardware as checks
from validator.plan import as_plan
from validator.plan_document import PlanDocument
from validator.probes import Gpu, hardware
from validator.probes.hardware import Board, Golden, Hardware

BOARDS = tuple(Board(f"0000:{bus}:1c.0", "NVIDIA A100-SXM4-40GB", 40960) for bus in ("10", "20", "90"))
LINKS = {"0-1": "NV12", "0-2": "NV12", "1-2": "NV12"}
SWITCHES = ("0000:80:1a.0", "0000:80:1b.0")
SEEN = Hardware(BOARDS, LINKS, SWITCHES, ("0000:00:06.0",), driver="550.163.01")
RECORDED = Golden("p4d.24xlarge", SEEN, {"when": "2026-11-21"})


def plan(architecture: str = "Ampere", **changed: Any) -> PlanDocument:
    (row,) = PLAN["instance_types"]
    kind = row | {"gpu_count": 3, "nvswitch": True, "efa_interfaces": 1} | changed
    kind["gpu"] = row["gpu"] | {"architecture": architecture}
    return as_plan(PLAN | {"instance_types": [kind]})


def recorded(**changed: Any) -> Golden:
    return replace(RECORDED, hardware=replace(SEEN, **changed))


@pytest.mark.parametrize(
    ("seen", "changed", "golden", "verdict", "message"),
    [
        ({}, {}, None, "PASS", ""),
        ({}, {}, RECORDED, "PASS", ""),
        (
            {"links": LINKS | {"0-2": "PHB"}}, {}, None, "FAIL",
            "GPUs 0 (0000:10:1c.0) and 2 (0000:90:1c.0): expected NVLink (g5.12xlarge), got PHB",
        ),
        ({"links": LINKS | {"1-2": "NV8"}}, {}, None, "FAIL", "2 (0000:90:1c.0): expected NV12 as all others, got NV8"),
        ({"links": dict.fromkeys(LINKS, "NV6")}, {}, None, "PASS", ""),
        (
            {"links": dict.fromkeys(LINKS, "NV6")}, {}, RECORDED, "FAIL",
            "expected NV12 (p4d.24xlarge.json of 2026-11-21 (real hardware)), got NV6, and 2 more pairs",
        ),
        ({"links": dict.fromkeys(LINKS, "NV6")}, {}, recorded(simulated=True), "PASS", ""),
        ({"links": {}}, {}, None, "FAIL", "`nvidia-smi topo -m`: expected 3 pairs of GPUs, got 0"),
        ({"gpus": BOARDS[:2], "links": {"0-1": "NV12"}}, {}, None, "UNPROVEN",
         "not every GPU is present: see nvidia_driver::test_every_promised_gpu_is_there"),
        (
            {"links": dict.fromkeys(LINKS, "PHB")}, {"nvswitch": False}, None, "UNPROVEN",
            "no fact and no golden file has the GPU links of g5.12xlarge: record one with gpu-ami record",
        ),
        (
            {"links": dict.fromkeys(LINKS, "PHB") | {"0-1": "SYS"}}, {"nvswitch": False},
            recorded(links=dict.fromkeys(LINKS, "PHB")), "FAIL", "1 (0000:20:1c.0): expected PHB",
        ),
        ({"gpus": BOARDS[:1], "links": {}}, {"gpu_count": 1, "nvswitch": False}, None, "PASS", ""),
    ],
)  # fmt: skip
def test_links(
    judge: Judge, seen: dict[str, Any], changed: dict[str, Any], golden: Golden | None, verdict: str, message: str
) -> None:
    found = judge(
        checks.test_gpus_are_linked_as_promised, {"nvidia-smi nvlink -s": ""}, hardware=replace(SEEN, **seen),
        plan=plan(**changed), golden_file=golden,
    )  # fmt: skip
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_inactive_link_is_found_without_a_golden_file(judge: Judge) -> None:
    """A GPU of azhpc-diagnostics#73: two of six links of a V100 are down, where no NVSwitch makes all pairs alike."""
    text = "".join(
        f"GPU {gpu}: Tesla V100-SXM2-32GB (UUID: GPU-{gpu})\n"
        + "".join(f"\t Link {n}: {'<inactive>' if (gpu, n) in ((1, 3), (1, 5)) else '25.781 GB/s'}\n" for n in range(6))
        for gpu in range(3)
    )
    found = judge(
        checks.test_gpus_are_linked_as_promised, {"nvidia-smi nvlink -s": text}, hardware=SEEN, golden_file=None,
        plan=plan(nvswitch=False),
    )  # fmt: skip
    assert (found.verdict, found.message) == (
        "FAIL", "NVLinks of g5.12xlarge: GPU 1: 4 of 6 NVLinks are active: inactive 3, 5",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "promised", "golden", "verdict", "message"),
    [
        ({}, plan(), None, "PASS", ""),
        ({}, plan(), RECORDED, "PASS", ""),
        (
            {},
            plan(nvswitch=False),
            None,
            "FAIL",
            "NVSwitches of g5.12xlarge: expected none, got 0000:80:1a.0, 0000:80:1b.0",
        ),
        ({"nvswitches": ()}, plan(nvswitch=False), None, "PASS", ""),
        ({"nvswitches": ()}, plan(), None, "FAIL", "g5.12xlarge has NVSwitches, but none is on the PCI bus"),
        ({"nvswitches": (), "simulated": True}, plan(), None, "UNPROVEN", "simulated hardware has no NVSwitch"),
        (
            {"nvswitches": ()},
            plan("Blackwell"),
            None,
            "UNPROVEN",
            "the NVSwitches of g5.12xlarge are not PCI devices of the machine: only the links are checked",
        ),
        (
            {"nvswitches": SWITCHES[:1]},
            plan(),
            RECORDED,
            "FAIL",
            "NVSwitches: expected 0000:80:1a.0, 0000:80:1b.0 (p4d.24xlarge.json",
        ),
    ],
)
def test_nvswitches(
    judge: Judge, seen: dict[str, Any], promised: PlanDocument, golden: Golden | None, verdict: str, message: str
) -> None:
    found = judge(
        checks.test_nvswitches_are_the_promised_ones, {}, hardware=replace(SEEN, **seen), plan=promised,
        golden_file=golden,
    )  # fmt: skip
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("interfaces", "golden", "verdict", "message"),
    [
        (("0000:00:06.0",), None, "PASS", ""),
        (("0000:00:06.0", "0000:00:07.0"), None, "FAIL", "EFA interfaces of g5.12xlarge: expected at most 1, got 2"),
        ((), None, "UNPROVEN", "0 of 1 EFA interfaces are attached: the launch determines how many"),
        ((), RECORDED, "UNPROVEN", "0 of 1 EFA interfaces are attached (recorded: 1)"),
    ],
)
def test_efa(judge: Judge, interfaces: tuple[str, ...], golden: Golden | None, verdict: str, message: str) -> None:
    seen = replace(SEEN, efa_interfaces=interfaces)
    found = judge(checks.test_efa_interfaces_are_the_promised_ones, {}, hardware=seen, plan=plan(), golden_file=golden)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_unreadable_hardware_is_unproven(judge: Judge) -> None:
    def ask(host: Any) -> None:
        checks.hardware.__wrapped__(host)  # type: ignore[attr-defined]

    found = judge(ask, {"for d in*": "0000:00:1b.0 0x10de 0x2237 0x030200 nvidia\n", "nvidia-smi*": (9, "no driver")})
    assert (
        found.verdict,
        "`nvidia-smi -q -x` exited with status 9: no driver: see nvidia_driver::" in found.message,
    ) == (
        "UNPROVEN",
        True,
    )


def test_basis_names_facts_and_golden_file() -> None:
    assert hardware.basis(None) == "facts only, no golden file applies"


START = "[INFO] Fabric Manager version 580.105.08 is running with the following configuration options"
ROUTED = "[INFO] Successfully configured all the available NVSwitches to route GPU NVLink traffic."


def fabric_gpu(state: str, *faults: str, architecture: str = "Hopper") -> Gpu:
    return Gpu(0, "H100", architecture, "GPU-1", "0000:10:1c.0", {}, fabric=state, fabric_faults=faults)


@pytest.mark.parametrize(
    ("gpu", "seconds", "log", "verdict", "message"),
    [
        (fabric_gpu("Completed"), 900, ROUTED, "PASS", ""),
        (
            fabric_gpu("In Progress", "state: In Progress"), 900, "[ERROR] config error", "FAIL",
            "NVLink fabric of g5.12xlarge: GPU 0 (0000:10:1c.0): state: In Progress; fabric manager: active for 900 s,"
            " the last lines of /var/log/fabricmanager.log: " + START + " | [ERROR] config error",
        ),
        (
            fabric_gpu("In Progress", "state: In Progress"), 20, "", "UNPROVEN",
            "not complete within 20 of 60 s: GPU 0 (0000:10:1c.0): state: In Progress",
        ),
        (fabric_gpu("Completed", "summary: Unhealthy"), 900, ROUTED, "FAIL", "(0000:10:1c.0): summary: Unhealthy"),
        (fabric_gpu("GPU is lost", "state: GPU is lost"), 20, ROUTED, "FAIL", "state: GPU is lost"),
        (fabric_gpu(""), 900, ROUTED, "FAIL", "GPU 0 (0000:10:1c.0): no fabric state"),
        (fabric_gpu("", architecture="Ampere"), 900, ROUTED, "PASS", ""),
        (
            fabric_gpu("", architecture="Ampere"), 900, "[ERROR] x", "FAIL",
            "/var/log/fabricmanager.log: expected that all NVSwitches are configured since its last start",
        ),
    ],
)  # fmt: skip
def test_fabric(judge: Judge, gpu: Gpu, seconds: int, log: str, verdict: str, message: str) -> None:
    planned = as_plan({**plan(), "fabric_manager": {"version": "580.105.08"}})
    machine = SimpleNamespace(gpus=[gpu], instance_type="g5.12xlarge")
    shown = {"cut -d. *": f"1000\n{(1000 - seconds) * 1000000}\n{START}\n{log}\n"}
    found = judge(checks.test_nvlink_fabric_is_complete, shown, machine=machine, plan=planned)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_machine_without_switches_has_no_fabric(judge: Judge) -> None:
    machine = SimpleNamespace(gpus=[fabric_gpu("", architecture="Ada Lovelace")], instance_type="g5.12xlarge")
    assert (
        judge(checks.test_nvlink_fabric_is_complete, {}, machine=machine, plan=plan(nvswitch=False)).verdict == "PASS"
    )
