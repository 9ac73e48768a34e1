"""Machines of one type work together (tier T4): logins, TCP, Open MPI; EFA between them, NCCL over all their GPUs.

They run with `--nodes` alone. Keys and programs of theirs are on the nodes until the last check has ended.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import pytest

from validator import remote
from validator.observe import Observe, unproven
from validator.observe import output as output_of
from validator.pci import PCI_LIST
from validator.plan import planned_instance_type
from validator.plan_document import Efa, PlanDocument, section
from validator.probes import MachineUnderTest, rdma
from validator.probes import hardware as probe
from validator.probes.cluster import mpi_jobs, nodes

pytestmark = [pytest.mark.tier("T4"), pytest.mark.live]

_STEP_SECONDS = 120.0  # a login or a connection between two nodes; an emulated machine needs ten seconds
JOB_SECONDS = 240.0
_COLLECTIVE_SECONDS = 600.0
_COLLECTIVES = ("all_reduce", "all_gather", "alltoall")
_OUT_OF_PLACE = ("alltoall",)  # nccl-tests compares no results of it in place
_LARGEST = 1 << 30
_ITERATIONS, _WARMUPS = 20, 5
_FI_INFO, _FI_PINGPONG = "/opt/amazon/efa/bin/fi_info", "/opt/amazon/efa/bin/fi_pingpong"
_FIND_TESTS = """\
for folder in /opt/nccl-tests/build /usr/local/nccl-tests/build /opt/nccl-tests /usr/local/bin /usr/bin; do
  [ -x "$folder/all_reduce_perf" ] && printf '%s\\n' "$folder" && exit
done
"""
# What an adapter sends: messages, RDMA writes, and its answers to RDMA reads of others. Whether tx_bytes counts the
# latter two as well is unverified: the sum is never less than what was sent.
COUNTERS = """\
cd "${1:-/sys/class}" || exit
for device in infiniband/*; do
  counters=$device/ports/1/hw_counters
  [ -r "$counters/tx_bytes" ] || continue
  case "$(readlink "$device/device/driver")" in */efa | '') ;; *) continue ;; esac  # not the bridges of a P6
  total=0
  for name in tx_bytes rdma_write_bytes rdma_read_resp_bytes; do
    [ ! -r "$counters/$name" ] || total=$((total + $(cat "$counters/$name")))
  done
  printf 'efa %s %s\\n' "${device#*/}" "$total"
done
for device in net/*/device; do
  [ -e "$device" ] || continue
  name=${device%/device}
  printf 'ena %s %s\\n' "${name#*/}" "$(cat "$name/statistics/tx_bytes")"
done
"""
_Result = TypeVar("_Result")


@pytest.fixture(scope="session")
def group(request: pytest.FixtureRequest) -> nodes.Group:
    """The machines of --nodes."""
    path = request.config.getoption("nodes")
    return nodes.read(path) if path else unproven("one machine alone was checked: --nodes 2 launches several")


@pytest.fixture(scope="session")
def together(group: nodes.Group) -> Iterator[nodes.Together]:
    """The nodes with keys for each other. A node where that fails fails every check, with its name."""
    with nodes.Together(group.nodes) as members:
        try:
            members.enter()
        except nodes.NodeFailed as error:
            pytest.fail(str(error), pytrace=False)
        yield members


def judged(together: nodes.Together, observe: Observe, step: Callable[[], _Result]) -> _Result:
    """The result of a step; where it fails, the check fails and names the nodes that have died."""
    try:
        return step()
    except nodes.NodeFailed as error:
        silent = together.silent()
        observe.fail(f"{'died meanwhile: ' + ', '.join(silent) + '; ' if silent else ''}{error}")


def test_every_node_logs_in_to_every_other(together: nodes.Together, observe: Observe) -> None:
    """Each node logs in to each other one by SSH, which shows its own host key. Open MPI starts its daemons so."""
    pairs = {}

    def log_in(member: nodes.Member) -> list[str]:
        wrong = []
        for other in together.members:
            if other is member:
                continue
            command = f"{together.ssh_command()} {other.address} cat /proc/sys/kernel/random/boot_id"
            done = member.run(command, _STEP_SECONDS)
            error = done.stderr.decode(errors="replace").strip()
            pairs[f"{member.name} to {other.name}"] = f"{done.seconds:.1f} s" if done.rc == 0 else error
            if done.rc != 0:
                wrong.append(f"{member.name} to {other.name}: {error or f'ssh ended with {done.rc}'}")
            elif done.text.strip() != other.boot_id:
                wrong.append(f"{member.name} to {other.name}: another machine answers at {other.address}")
        return wrong

    wrong = [line for lines in judged(together, observe, lambda: together.each(log_in)) for line in lines]
    observe(pairs, "every node answers every other one")
    if wrong:
        observe.fail("; ".join(wrong))


def test_every_node_reaches_every_other_on_any_port(together: nodes.Together, observe: Observe) -> None:
    """Each node connects to each other one on a port that the kernel chose, and what it sends arrives unchanged.

    Open MPI and NCCL listen on such ports. A security group without a rule for its own members drops them.
    """
    judged(together, observe, lambda: together.put("tcp_exchange.py", remote.source("tcp_exchange")))
    python = f"python3 -IS {together.folder}/tcp_exchange.py"
    pairs, wrong = {}, []
    with contextlib.ExitStack() as stack:
        for other in together.members:
            lines = other.connection.stream(f"{python} listen {other.address}", idle_seconds=_STEP_SECONDS)
            stack.callback(lines.close)  # type: ignore[attr-defined]
            port = next(lines, b"").decode(errors="replace").strip()
            if not port.isdigit():
                observe.fail(f"{other.name}: no process listens on {other.address}: {port!r}")
            for member in together.members:
                if member is other:
                    continue
                command = f"{python} send {other.address} {port} 30"
                done = judged(together, observe, lambda m=member, c=command: m.run(c, _STEP_SECONDS))  # type: ignore[misc]
                pairs[f"{member.name} to {other.name} port {port}"] = done.text.strip()
                if done.rc != 0:
                    wrong.append(f"{member.name} to {other.name} port {port}: {done.text.strip() or 'no answer'}")
    observe(pairs, "every byte arrives unchanged")
    if wrong:
        observe.fail(f"{'; '.join(wrong)} (the security group needs a rule for all traffic of its own members)")


@pytest.fixture(scope="session")
def mpi(together: nodes.Together) -> mpi_jobs.OpenMpi:
    """The Open MPI that all nodes have. UNPROVEN: they have none."""
    try:
        installed = together.each(mpi_jobs.find_open_mpi)
    except nodes.NodeFailed as error:
        pytest.fail(str(error), pytrace=False)
    if installed[0] is None:
        unproven("no Open MPI on the image (/opt/amazon/openmpi5, /opt/amazon/openmpi, mpirun on PATH)")
    if any(other != installed[0] for other in installed):
        pytest.fail(f"the nodes have different Open MPIs: {', '.join(map(str, installed))}", pytrace=False)
    return installed[0]


def test_open_mpi_runs_over_all_nodes(together: nodes.Together, mpi: mpi_jobs.OpenMpi, observe: Observe) -> None:
    """The image's Open MPI starts a program on every node, and MPI_Allreduce over TCP gives the right sum on each.

    A node that dies meanwhile ends the job at its deadline, and is named.
    """

    def job() -> Any:
        program = together.put("mpi_allreduce.py", remote.source("mpi_allreduce"))
        command = mpi_jobs.command(mpi, together, 1, ["python3", "-IS", program, mpi.library])
        return together.members[0].run(command, JOB_SECONDS)

    done = judged(together, observe, job)
    rows = mpi_jobs.read_ranks(done.text)
    observe({"mpirun": mpi.mpirun, "version": mpi.version, "ranks": rows}, "one rank a node, every sum right")
    wrong = mpi_jobs.rank_defects(rows, together.members, 1)
    if done.rc != 0 or wrong:
        silent = together.silent()
        died = [f"died meanwhile: {', '.join(silent)}"] if silent else []
        said = (done.stderr.decode(errors="replace").strip() or done.text.strip())[-600:]
        observe.fail("; ".join([*died, *wrong, f"mpirun ended with {done.rc}: {said}"]))


@pytest.fixture(scope="module")
def adapters(plan: PlanDocument, machine: MachineUnderTest, together: nodes.Together) -> int:
    """EFA adapters that a node must have. UNPROVEN where there are none, or where they are simulated."""
    promised = planned_instance_type(plan, machine.instance_type)["efa_interfaces"]
    if not promised:
        unproven(f"no EFA device: {machine.instance_type} has none")
    drivers = together.members[0].run("readlink /sys/class/infiniband/*/device/driver").text.split()
    if not any(driver.endswith("/bus/pci/drivers/efa") for driver in drivers):
        unproven("no EFA device: no adapter of this machine is on the PCI bus with the driver efa")
    return int(promised)


@pytest.mark.needs("observed")
@pytest.mark.planned("efa")
def test_libfabric_has_endpoints_of_every_adapter(
    together: nodes.Together, group: nodes.Group, adapters: int, plan: PlanDocument, observe: Observe
) -> None:
    """On each node fi_info lists endpoints RDM and DGRAM of every adapter, and GPU memory is within their reach.

    The latter where the type has GPUDirect RDMA: /sys/class/infiniband/*/device/p2p names NVIDIA.
    """
    if section(plan, "efa", Efa).get("mode", "full") != "full":
        unproven("a minimal installation has no libfabric: a container brings its own")
    seen: dict[str, object] = {}
    wrong = []
    for member in together.members:
        listed = judged(together, observe, lambda m=member: m.run(f"{_FI_INFO} -p efa", _STEP_SECONDS)).text  # type: ignore[misc]
        counts = {kind: listed.count(f"type: FI_EP_{kind}") for kind in ("RDM", "DGRAM")}
        peers = [device.p2p for device in rdma.read(member.run(rdma.LIST).text) if device.is_efa]
        seen[member.name] = counts | {"p2p": peers}
        wrong += [f"{member.name}: {count} endpoints {kind}" for kind, count in counts.items() if count < adapters]
        has_gpu_direct = group.gpu_direct or group.gpu_direct_unknown
        if has_gpu_direct and (set(peers) - {"NVIDIA"} or len(peers) < adapters):
            wrong.append(f"{member.name}: p2p of its adapters: {', '.join(peers) or 'none'}, expected NVIDIA on each")
    observe(seen, f"{adapters} RDM and DGRAM each{', p2p NVIDIA' if has_gpu_direct else ''}")
    if wrong:
        observe.fail("; ".join(wrong))


@pytest.mark.needs("observed")
@pytest.mark.planned("efa")
def test_efa_carries_messages_between_nodes(together: nodes.Together, adapters: int, observe: Observe) -> None:
    """fi_pingpong over provider efa works between the first node and each other one."""
    first, *others = together.members
    seen = {}
    for other in others:
        serve = f"{_FI_PINGPONG} -p efa"
        with contextlib.closing(judged(together, observe, lambda c=serve: first.start(c, _STEP_SECONDS))):  # type: ignore[misc]
            command = f"sleep 1; {_FI_PINGPONG} -p efa {first.address}"
            done = judged(together, observe, lambda m=other, c=command: m.run(c, _STEP_SECONDS))  # type: ignore[misc]
        seen[other.name] = done.text.strip().splitlines()[-1:]
        if done.rc != 0:
            observe.fail(f"{other.name} to {first.name}: {done.stderr.decode(errors='replace').strip() or done.text}")
    observe(seen, f"{adapters} adapters a node")


@pytest.fixture(scope="module")
def collectives(
    together: nodes.Together, mpi: mpi_jobs.OpenMpi, plan: PlanDocument, machine: MachineUnderTest
) -> dict[str, tuple[mpi_jobs.Output, str, list[mpi_jobs.Traffic]]]:
    """By collective: what nccl-tests printed, its errors, and what each node sent. UNPROVEN: no nccl-tests."""
    folder = together.members[0].run(_FIND_TESTS).text.strip()
    if not folder:
        unproven("no nccl-tests on the image (all_reduce_perf in /opt/nccl-tests/build or on PATH)")
    gpus = planned_instance_type(plan, machine.instance_type)["gpu_count"]
    measured = {}
    for name in _COLLECTIVES:
        program = [f"{folder}/{name}_perf", "-b", "8", "-e", str(_LARGEST), "-f", "2", "-g", "1", "-c", "1"]
        program += ["-n", str(_ITERATIONS), "-w", str(_WARMUPS)]
        environment = ["env", "NCCL_DEBUG=INFO", "NCCL_ALGO=ring", "NCCL_PROTO=simple"]
        command = mpi_jobs.command(mpi, together, int(gpus), [*environment, *program])
        before = together.each(_counters)
        done = together.members[0].run(command, _COLLECTIVE_SECONDS)
        sent = [mpi_jobs.traffic(*pair) for pair in zip(before, together.each(_counters), strict=True)]
        error = done.stderr.decode(errors="replace").strip()[-600:] if done.rc != 0 else ""
        measured[name] = (mpi_jobs.read(done.text), error or ("" if done.rc == 0 else f"rc {done.rc}"), sent)
    return measured


def _counters(member: nodes.Member) -> dict[str, int]:
    rows = [line.rsplit(" ", 1) for line in member.run(COUNTERS).text.splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) == 2 and row[1].isdigit()}


@pytest.mark.needs("observed")
def test_nccl_collectives_are_right(
    collectives: dict[str, Any],
    together: nodes.Together,
    plan: PlanDocument,
    machine: MachineUnderTest,
    observe: Observe,
) -> None:
    """all_reduce, all_gather and alltoall over all GPUs of all nodes give right results at every size."""
    ranks = planned_instance_type(plan, machine.instance_type)["gpu_count"] * len(together.members)
    wrong = [f"{name}: {error}" for name, (_, error, _) in collectives.items() if error]
    for name, (output, _, _) in collectives.items():
        in_place = name not in _OUT_OF_PLACE
        defects = mpi_jobs.result_defects(output, ranks, len(together.members), in_place=in_place)
        wrong += [f"{name}: {defect}" for defect in defects]
    shown = {name: f"{output.busbw_of_largest} GB/s" for name, (output, _, _) in collectives.items()}
    observe(shown, f"{ranks} ranks, #wrong 0")
    if wrong:
        observe.fail("; ".join(wrong))


@pytest.mark.needs("observed")
@pytest.mark.planned("efa")
def test_nccl_goes_over_efa(
    collectives: dict[str, Any],
    adapters: int,
    together: nodes.Together,
    group: nodes.Group,
    observe: Observe,
) -> None:
    """NCCL's channels between nodes are EFA's, every adapter sends, and the ENA carries below 5 % of the bytes.

    NCCL falls back to TCP without an error, and jobs then take ten times as long.
    """
    wrong = [
        f"{name}: {defect}"
        for name, (output, _, _) in collectives.items()
        for defect in mpi_jobs.transport_defects(output, gpu_direct=group.gpu_direct)
    ]
    output, _, sent = collectives["all_reduce"]
    if not wrong:  # what the counters would say follows from the transport
        sizes, count = [row.size for row in output.rows], len(together.members)
        for member, traffic in zip(together.members, sent, strict=True):
            wrong += mpi_jobs.traffic_defects(member.name, traffic, sizes, 2 * _ITERATIONS, count)
    observe({name: dict(output.channels) for name, (output, _, _) in collectives.items()}, f"{adapters} EFA a node")
    if wrong:
        observe.fail("; ".join(wrong))
    channels = [defect for output, _, _ in collectives.values() for defect in mpi_jobs.without_gpu_direct(output)]
    if channels and group.gpu_direct_unknown:
        unproven(f"{'; '.join(dict.fromkeys(channels))}: {group.gpu_direct_unknown}")


@pytest.mark.needs("observed")
def test_bus_bandwidth_is_above_the_floor(
    collectives: dict[str, Any], group: nodes.Group, machine: MachineUnderTest, host: Any, observe: Observe
) -> None:
    """The bus bandwidth of all_reduce is not below the floor published for this instance type and number of nodes."""
    output = collectives["all_reduce"][0]
    count, floor = len(group.nodes), group.floor
    shown = f"{output.busbw_of_largest} GB/s at {_LARGEST >> 20} MiB in place on {count} nodes"
    observe(shown, floor.text if floor else "no published floor")
    if probe.is_simulated(probe.pci_devices(output_of(host, PCI_LIST))):
        unproven(f"the GPUs are simulated: {shown} says nothing")
    if floor is None:
        why = f" ({group.no_floor})" if group.no_floor else ""
        unproven(f"no source states a floor for {machine.instance_type} on {count} nodes{why}; measured: {shown}")
    if defect := mpi_jobs.floor_defect(output, floor):
        observe.fail(defect)
