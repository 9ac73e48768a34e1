"""GPUs compute: a kernel runs on each of them, every result is compared on the host, and copies between GPUs are right.

One run of the compute probe answers all checks of a machine.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import Any

import pytest

from validator.observe import Observe, unproven
from validator.plan import planned_instance_type
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest, compute, hardware, require_driver

pytestmark = [pytest.mark.planned("nvidia_driver"), pytest.mark.tier("T3"), pytest.mark.usefixtures("board")]

_QUERY = "nvidia-smi --query-gpu=index,uuid,name,memory.total%s --format=csv,noheader,nounits"
# CUDA's total is without what the driver reserves: 22.20 GiB of 23028 MiB on an A10G (1.3 %), 14.75 GiB of 15360 MiB on
# a T4 (1.7 %), 39.59 GiB of 40960 MiB on an A100 (1.0 %). Source: public outputs of PyTorch and of nvidia-smi.
_RESERVED_PERCENT = 3.0


@dataclass(frozen=True)
class Answer:
    """The probe's result, or why there is none."""

    result: compute.Compute
    why: str = ""


@pytest.fixture(scope="module")
def answer(host: Any) -> Answer:
    """What the probe says, which runs once. UNPROVEN without a driver: the driver's checks fail for that."""
    require_driver(host)
    try:
        return Answer(compute.probe(host))
    except compute.Unanswered as error:
        return Answer(compute.Compute(), str(error))


@pytest.fixture(scope="module")
def computed(answer: Answer) -> compute.Compute:
    """The result of a machine where CUDA starts."""
    if answer.why or answer.result.error or not answer.result.count:
        unproven("CUDA does not start: see compute::test_cuda_starts")
    return answer.result


@pytest.mark.tier("T2")
def test_cuda_starts(answer: Answer, observe: Observe) -> None:
    """CUDA initializes for an unprivileged user and lists a GPU. nvidia-smi also works where CUDA does not."""
    result = answer.result
    observe(answer.why or result.error or f"{result.count} GPUs, {result.library}", "cuInit succeeds")
    if answer.why or result.error:
        observe.fail(answer.why or f"CUDA does not start: {result.error}")
    if not result.count:
        observe.fail(f"CUDA starts, but shows no GPU{f': {result.unfinished}' if result.unfinished else ''}")


@pytest.mark.tier("T2")
def test_one_gpu_computes_right(computed: compute.Compute, observe: Observe) -> None:
    """The first GPU computes correctly: every result of a kernel that the driver compiled equals the host's."""
    gpu = next((gpu for gpu in computed.gpus if gpu.index == 0), None)
    observe([gpu.text() if gpu else computed.unfinished, computed.library], f"{compute.MIB} MiB of results, all right")
    if gpu is None:
        observe.fail(f"GPU 0: no result: {computed.unfinished}")
    if defects := compute.defects(gpu, simulated=bool(computed.replica)):
        observe.fail("; ".join(defects))


@pytest.mark.needs("observed")
def test_cuda_sees_the_promised_gpus(
    computed: compute.Compute, host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """CUDA lists the GPUs of nvidia-smi and of the instance type: number, UUIDs, models, memory."""
    promised = planned_instance_type(plan, machine.instance_type)
    gpu = promised["gpu"]
    migs = [result for result in computed.gpus if result.mig]
    shown = [f"{result.mig or result.uuid} {result.name} {result.capability}" for result in computed.gpus]
    observe(shown, f"{promised['gpu_count']} {gpu['name']} {gpu['compute_capability']}")
    wrong = compute.missing(computed) if not migs else []
    if not migs and computed.count != promised["gpu_count"]:
        observe.fail(f"CUDA on {promised['name']}: expected {promised['gpu_count']} GPUs, got {computed.count}")
    smi = _of_nvidia_smi(host)
    for result in computed.gpus:
        wrong += _differences(result, smi, gpu["compute_capability"])
    if wrong:
        observe.fail("; ".join(wrong) + (f": {computed.unfinished}" if computed.unfinished else ""))


def _of_nvidia_smi(host: Any) -> dict[str, list[str]]:
    """UUID → name, memory in MiB and, from R510 on, compute capability."""
    done = host.run(_QUERY % ",compute_cap")
    if done.rc != 0:
        done = host.run(_QUERY % "")
    if done.rc != 0 or not done.stdout.strip():
        unproven("nvidia-smi does not answer: see nvidia_driver::test_every_promised_gpu_is_there")
    rows = (row for row in csv.reader(done.stdout.splitlines(), skipinitialspace=True) if len(row) >= 4)
    return {row[1].removeprefix("GPU-"): row[2:] for row in rows}


def _differences(result: compute.GpuResult, smi: dict[str, list[str]], capability: str) -> list[str]:
    name = f"GPU {result.index} ({result.uuid or 'no UUID'})"
    if result.error and not result.uuid:
        return [f"{name}: {result.error}"]
    if result.uuid not in smi:
        return [f"{name}: nvidia-smi shows no GPU with this UUID"]
    model, memory, *capabilities = smi[result.uuid]
    wrong = []
    expected = {"facts": capability} | ({"nvidia-smi": capabilities[0]} if capabilities else {})
    if set(expected.values()) != {result.capability}:
        wrong.append(f"{name}: compute capability: expected {expected}, got {result.capability}")
    if not result.mig and result.name != model:
        wrong.append(f"{name}: expected {model} (nvidia-smi), got {result.name}")
    if not memory.isdigit():
        wrong.append(f"{name}: nvidia-smi's memory.total: expected MiB, got {memory!r}")
    elif not result.mig and not int(memory) * (1 - _RESERVED_PERCENT / 100) <= result.memory_mib <= int(memory):
        wrong.append(f"{name}: expected {memory} MiB less {_RESERVED_PERCENT:g} % at most, got {result.memory_mib} MiB")
    return wrong


def test_every_gpu_computes_right(computed: compute.Compute, observe: Observe) -> None:
    """Every GPU computes correctly, and its memory keeps what was stored. No log shows a wrong result."""
    observe([*(gpu.text() for gpu in computed.gpus), computed.library], f"{compute.MIB} MiB of results each, all right")
    wrong = [defect for gpu in computed.gpus for defect in compute.defects(gpu, simulated=bool(computed.replica))]
    wrong += compute.missing(computed) if not any(gpu.mig for gpu in computed.gpus) else []
    if computed.unfinished:
        wrong.append(f"the work of a GPU {computed.unfinished}")
    if wrong:
        observe.fail("; ".join(wrong))


@pytest.mark.needs("observed")
def test_gpus_copy_to_each_other(
    computed: compute.Compute, host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """Copies between all pairs of GPUs are correct, and pairs joined by NVLink have peer access. GB/s are reported."""
    if any(gpu.mig for gpu in computed.gpus):
        unproven("CUDA shows one MIG device to a process: there are no copies between them")
    promised = planned_instance_type(plan, machine.instance_type)
    if promised["gpu_count"] == 1:
        unproven(f"{promised['name']} has one GPU")
    links = hardware.read_topology(host.run("nvidia-smi topo -m").stdout)
    copies = {
        f"{gpu.index} to {copy.to}": f"{copy.gbps:g} GB/s {'peer access' if copy.access else 'by way of the host'}"
        for gpu in computed.gpus
        for copy in gpu.copies
    }
    observe([copies, computed.library], "every copy is right; peer access where there is NVLink")
    if computed.unfinished:
        unproven(f"the work {computed.unfinished}: see compute::test_every_gpu_computes_right")
    usable = [gpu for gpu in computed.gpus if gpu.right]
    if len(usable) < 2:
        unproven("fewer than two GPUs compute right: see compute::test_every_gpu_computes_right")
    linked = [_indices(pair) for pair, kind in links.items() if kind.startswith("NV") or promised["nvswitch"]]
    if wrong := compute.copy_defects(computed, linked):
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        observe.fail(f"{wrong[0]}{more}")


def _indices(pair: str) -> tuple[int, int]:
    first, second = pair.split("-")
    return int(first), int(second)
