"""nccl-tests is built from the planned commit, its programs find their libraries, and NCCL is right on this machine."""

from __future__ import annotations

from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.pci import PCI_LIST
from validator.plan import planned_instance_type
from validator.plan_document import NcclTests, PlanDocument, section
from validator.probes import MachineUnderTest, hardware, shared_libraries
from validator.probes.cluster import mpi_jobs

pytestmark = [pytest.mark.planned("nccl_tests")]

_FOLDER = "/opt/nccl-tests/build"
_STAMP = "/opt/nccl-tests/.gpu-ami-build"
_USED = ("all_reduce_perf", "all_gather_perf", "alltoall_perf")  # tier T4 runs them
_SECONDS = 600.0


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
@pytest.mark.beside_live
def test_programs_are_of_the_planned_commit(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The programs were built from the planned commit, with the planned NCCL, for the GPUs of the plan."""
    planned = section(plan, "nccl_tests", NcclTests)
    packages = " ".join(f"{name}={version}" for name, version in planned["packages"].items())
    expected = f"{planned['commit']} {packages} sm_{' sm_'.join(planned['capabilities'])}"
    observe.same(output(host, "cat %s", _STAMP).strip(), expected, _STAMP)
    missing = [name for name in _USED if host.run("test -x %s", f"{_FOLDER}/{name}").rc != 0]
    if missing:
        observe.fail(f"{_FOLDER}: not there, or not executable: {', '.join(missing)}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
@pytest.mark.beside_live
def test_programs_find_their_libraries(host: Any, observe: Observe) -> None:
    """The loader finds every library of the programs, NCCL and Open MPI among them."""
    found = {name: shared_libraries.unresolved(host, f"{_FOLDER}/{name}") for name in _USED}
    observe({name: lines or "complete" for name, lines in found.items()}, "complete")
    wrong = [f"{name}: {'; '.join(lines)}" for name, lines in found.items() if lines]
    if wrong:
        observe.fail(" | ".join(wrong))


@pytest.mark.needs("promise")
@pytest.mark.tier("T3")
@pytest.mark.live
def test_all_reduce_is_right_on_this_machine(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """all_reduce over all GPUs of this machine gives right results at every size from 8 B to 128 MiB."""
    gpus = int(planned_instance_type(plan, machine.instance_type)["gpu_count"])
    if not gpus:
        unproven(f"{machine.instance_type} has no GPU")
    if hardware.is_simulated(hardware.pci_devices(output(host, PCI_LIST))):
        unproven("the GPUs are simulated: NCCL cannot run on them")
    program = f"{_FOLDER}/all_reduce_perf -b 8 -e 128M -f 2 -g {gpus} -c 1"
    done = host.run(program, timeout=_SECONDS)
    result = mpi_jobs.read(done.stdout)
    defects = mpi_jobs.result_defects(result, gpus, 1, in_place=True)
    observe(f"{result.busbw_of_largest} GB/s", f"{gpus} GPUs, #wrong 0")
    if done.rc != 0 or defects:
        said = "; ".join(defects) or (done.stderr.strip() or done.stdout.strip())[-300:]
        observe.fail(f"{program} exited with status {done.rc}: {said}")
