"""Checks of several machines, on scripted ones: green, and red with each message."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, Judge
from tests.validator.probes.cluster.test_nccl_tests import GOOD, MIB, SOCKET
from tests.validator.probes.cluster.test_nodes import line, member
from tests.validator.probes.cluster.test_open_mpi import rows
from validator.checks import several_nodes as checks
from validator.observe import Observe
from validator.pci import PCI_LIST
from validator.plan import as_plan
from validator.probes.cluster import mpi_jobs, nodes
from validator.probes.cluster.mpi_jobs import OpenMpi, Traffic
from validator.probes.cluster.nodes import Floor, Group, Member, Node, NodeFailed, Together
from validator.results import CheckRecord, RunningCheck
from validator.transport import ssh

MPI = OpenMpi("/opt/amazon/openmpi/bin/mpirun", "4.1.7", "/opt/amazon/openmpi/lib64/libmpi.so.40")
GROUP = Group((Node("i-1", "u"), Node("i-2", "u")))
DIRECT = Group(GROUP.nodes, gpu_direct=True)
UNKNOWN = Group(GROUP.nodes, gpu_direct_unknown="no public log", no_floor="contradicted")
LINES = "".join(json.dumps(row) + "\n" for row in rows())
EFA_INFO = "    type: FI_EP_RDM\n    type: FI_EP_DGRAM\n"


def two(first: dict[str, Any] | None = None, second: dict[str, Any] | None = None) -> Together:
    """Two members whose commands have scripted answers."""
    members: list[Member] = []
    for index, answers in enumerate((first, second), start=1):
        one = member(f"i-{index}", f"10.0.0.{index + 3}/20")
        one.connection, one.boot_id = line(answers), f"boot of i-{index}"
        members.append(one)
    nodes.choose_addresses(members)
    return Together([], members, folder="/tmp/f")


def dies(together: Together, command: str) -> Together:
    """The second node dies when the first one runs the command."""
    first, second = together.members
    run = first.connection.run

    def run_until(text: str, *rest: Any) -> Any:
        if command not in text:
            return run(text, *rest)

        def refuse(*_: Any) -> Any:
            raise ssh.ConnectionDropped("i-2 closed the connection")

        second.connection.run = refuse  # type: ignore[method-assign]
        return SimpleNamespace(rc=1, text="", stdout=b"", stderr=b"ORTE has lost communication", seconds=1.0)

    first.connection.run = run_until  # type: ignore[method-assign]
    return together


BOOTS = ({"ssh -F": (0, "boot of i-2\n")}, {"ssh -F": (0, "boot of i-1\n")})


@pytest.mark.parametrize(
    ("answers", "verdict", "message"),
    [
        (BOOTS, "PASS", ""),
        (
            ({"ssh -F": (255, "Connection timed out")}, BOOTS[1]), "FAIL",
            "i-1 (10.0.0.4) to i-2 (10.0.0.5): Connection timed out",
        ),
        (
            (BOOTS[0], {"ssh -F": (0, "boot of i-9\n")}), "FAIL",
            "i-2 (10.0.0.5) to i-1 (10.0.0.4): another machine answers at 10.0.0.4",
        ),
    ],
)  # fmt: skip
def test_logins(judge: Judge, answers: tuple[Any, Any], verdict: str, message: str) -> None:
    judged = judge(checks.test_every_node_logs_in_to_every_other, {}, together=two(*answers))
    assert (judged.verdict, judged.message) == (verdict, message)
    assert len(judged.check.observed) == 2  # type: ignore[arg-type]


def listening(together: Together, *ports: bytes) -> Together:
    for one, port in zip(together.members, ports, strict=True):

        def stream(command: str, *, idle_seconds: float, text: bytes = port) -> Iterator[bytes]:
            assert "listen" in command and idle_seconds
            yield text

        one.connection.stream = stream  # type: ignore[method-assign,assignment]
    return together


@pytest.mark.parametrize(
    ("answer", "port", "verdict", "message"),
    [
        ((0, "1048576 bytes\n"), b"40000", "PASS", ""),
        ((1, "timed out\n"), b"40000", "FAIL", "i-2 (10.0.0.5) to i-1 (10.0.0.4) port 40000: timed out"),
        ((0, ""), b"python3: not found", "FAIL", "i-1 (10.0.0.4): no process listens on 10.0.0.4"),
        ((0, ""), b"", "FAIL", "i-1 (10.0.0.4): no process listens on 10.0.0.4"),
    ],
)
def test_any_port(judge: Judge, answer: tuple[int, str], port: bytes, verdict: str, message: str) -> None:
    together = listening(two({" send ": answer}, {" send ": answer}), port, b"50000")
    judged = judge(checks.test_every_node_reaches_every_other_on_any_port, {}, together=together)
    assert judged.verdict == verdict and judged.message.startswith(message)
    assert verdict == "PASS" or "no process" in message or "rule for all traffic of its own members" in judged.message


@pytest.mark.parametrize(
    ("answer", "verdict", "message"),
    [
        ((0, LINES), "PASS", ""),
        ((0, LINES.splitlines()[0]), "FAIL", "ranks: expected 0 to 1, got 0"),
        ((1, "bash: orted: command not found"), "FAIL", "mpirun ended with 1: bash: orted: command not found"),
    ],
)
def test_open_mpi(judge: Judge, answer: tuple[int, str], verdict: str, message: str) -> None:
    judged = judge(checks.test_open_mpi_runs_over_all_nodes, {}, together=two({"mpirun": answer}), mpi=MPI)
    assert judged.verdict == verdict and message in judged.message


@pytest.mark.parametrize("check", [checks.test_open_mpi_runs_over_all_nodes])
def test_a_node_that_dies_in_the_middle_is_named(judge: Judge, check: Any) -> None:
    judged = judge(check, {}, together=dies(two(), "mpirun"), mpi=MPI)
    assert judged.verdict == "FAIL" and judged.message.startswith("died meanwhile: i-2 (10.0.0.5)")
    assert "ORTE has lost communication" in judged.message


def test_a_job_without_end_is_ended_and_named(judge: Judge) -> None:
    together = two()

    def hang(command: str, timeout: float, *_: Any) -> Any:
        if "mpirun" in command:
            raise ssh.CommandExpired(command, timeout)
        return SimpleNamespace(rc=0, text="", stderr=b"")

    together.members[0].connection.run = hang  # type: ignore[method-assign]
    judged = judge(checks.test_open_mpi_runs_over_all_nodes, {}, together=together, mpi=MPI)
    assert judged.verdict == "FAIL" and "i-1 (10.0.0.4)" in judged.message and "240" in judged.message


DEVICE = "device|rdmap0s6|../../../../bus/pci/drivers/efa|{}\ndevice|ibp5s0|../../../../bus/pci/drivers/mlx5_core|\n"


@pytest.mark.parametrize(
    ("first", "verdict", "message"),
    [
        ({"fi_info": (0, EFA_INFO), "p2p": (0, DEVICE.format("NVIDIA"))}, "PASS", ""),
        (
            {"fi_info": (0, EFA_INFO[:20]), "p2p": (0, DEVICE.format("NVIDIA"))},
            "FAIL",
            "i-1 (10.0.0.4): 0 endpoints DGRAM",
        ),
        (
            {"fi_info": (61, "fi_getinfo: -61"), "p2p": (0, DEVICE.format("NVIDIA"))},
            "FAIL",
            "i-1 (10.0.0.4): 0 endpoints RDM",
        ),
        (
            {"fi_info": (0, EFA_INFO), "p2p": (0, DEVICE.format("NONE"))},
            "FAIL",
            "p2p of its adapters: NONE, expected NVIDIA on each",
        ),
        ({"fi_info": (0, EFA_INFO)}, "FAIL", "p2p of its adapters: none"),
    ],
)
def test_endpoints(judge: Judge, first: dict[str, Any], verdict: str, message: str) -> None:
    together = two(first, {"fi_info": (0, EFA_INFO), "p2p": (0, DEVICE.format("NVIDIA"))})
    judged = judge(
        checks.test_libfabric_has_endpoints_of_every_adapter,
        {}, together=together, group=DIRECT, adapters=1, plan=as_plan(PLAN | {"efa": {"mode": "full"}}),
    )  # fmt: skip
    assert judged.verdict == verdict and message in judged.message


def test_types_without_gpu_direct_need_no_peer_memory(judge: Judge) -> None:
    together = two(*[{"fi_info": (0, EFA_INFO)}] * 2)
    plan = as_plan(PLAN | {"efa": {"mode": "full"}})
    check = checks.test_libfabric_has_endpoints_of_every_adapter
    assert judge(check, {}, together=together, group=GROUP, adapters=1, plan=plan).verdict == "PASS"


def test_counters_of_a_node_are_all_that_its_adapters_send(tmp_path: Path) -> None:
    counters = {"tx_bytes": 5, "rdma_write_bytes": 100, "rdma_read_resp_bytes": 7, "rx_bytes": 1000}
    for name, values in {"rdmap0": counters, "rdmap1": {"tx_bytes": 2}, "mlx5": {"port_xmit": 9}}.items():
        folder = tmp_path / "infiniband" / name / "ports" / "1" / "hw_counters"
        folder.mkdir(parents=True)
        for counter, value in values.items():
            (folder / counter).write_text(f"{value}\n")
    bridge = tmp_path / "infiniband" / "mlx5"
    (bridge / "ports/1/hw_counters/tx_bytes").write_text("9\n")
    (bridge / "device").mkdir()
    (bridge / "device/driver").symlink_to("../../../../bus/pci/drivers/mlx5_core")
    (tmp_path / "net" / "ens5" / "statistics").mkdir(parents=True)
    (tmp_path / "net" / "ens5" / "device").mkdir()
    (tmp_path / "net" / "ens5" / "statistics" / "tx_bytes").write_text("31\n")
    (tmp_path / "net" / "lo" / "statistics").mkdir(parents=True)
    done = subprocess.run(
        ["sh", "-c", checks.COUNTERS, "sh", str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == ["efa rdmap0 112", "efa rdmap1 2", "ena ens5 31"]


OUT_OF_PLACE = GOOD.replace("39.38      0", "39.38    N/A").replace("0.00      0\n", "0.00    N/A\n")


@pytest.mark.parametrize(
    ("answer", "verdict", "message"),
    [
        ((0, "bytes #sent\n64 10 1.2 us\n"), "PASS", ""),
        ((1, "fi_getinfo: -61"), "FAIL", "i-2 (10.0.0.5) to i-1 (10.0.0.4): fi_getinfo: -61"),
    ],
)
def test_pingpong(judge: Judge, answer: tuple[int, str], verdict: str, message: str) -> None:
    """The first node serves before the other one asks, and stops serving afterwards."""
    together, order = two(), list[str]()
    first, other = (member.connection for member in together.members)

    def serve(command: str, **_: Any) -> Any:
        order.append(f"serve {command.rpartition('bin/')[2]}")
        return SimpleNamespace(close=lambda: order.append("close"))

    def ask(command: str, *_: Any) -> Any:
        order.append(f"ask {command.rpartition('bin/')[2]}")
        return SimpleNamespace(rc=answer[0], text=answer[1], stderr=answer[1].encode() if answer[0] else b"")

    first.open, other.run = serve, ask  # type: ignore[method-assign]
    judged = judge(checks.test_efa_carries_messages_between_nodes, {}, together=together, adapters=1)
    assert (judged.verdict, judged.message) == (verdict, message)
    assert order == ["serve fi_pingpong -p efa'", "ask fi_pingpong -p efa 10.0.0.4", "close"]


COPIED = GOOD.replace("/GDRDMA", "")  # through the host's memory, or a wording that is not known
SENT = [Traffic({"rdmap0": 90_000 * MIB}, MIB)] * 2


def measured(log: str = GOOD, error: str = "", sent: list[Traffic] = SENT) -> dict[str, Any]:
    return {name: (mpi_jobs.read(log), error, sent) for name in ("all_reduce", "all_gather", "alltoall")}


def one_gpu() -> Any:
    (row,) = PLAN["instance_types"]
    return as_plan(PLAN | {"instance_types": [row | {"gpu_count": 1, "efa_interfaces": 1}]})


@pytest.mark.parametrize(
    ("collectives", "verdict", "message"),
    [
        (measured(), "PASS", ""),
        (
            measured(GOOD.replace("39.38      0", "39.38      1")),
            "FAIL",
            "alltoall: 1073741824 bytes: 1 wrong elements",
        ),
        (measured("", "rc 1"), "FAIL", "all_reduce: rc 1"),
        (measured() | {"alltoall": (mpi_jobs.read(OUT_OF_PLACE), "", SENT)}, "PASS", ""),
        (measured() | {"all_gather": (mpi_jobs.read(OUT_OF_PLACE), "", SENT)}, "FAIL", "results were not compared"),
    ],
)
def test_results(judge: Judge, collectives: dict[str, Any], verdict: str, message: str) -> None:
    judged = judge(checks.test_nccl_collectives_are_right, {}, collectives=collectives, together=two(), plan=one_gpu())
    assert judged.verdict == verdict and message in judged.message


@pytest.mark.parametrize(
    ("collectives", "group", "verdict", "message"),
    [
        (measured(), GROUP, "PASS", ""),
        (measured(SOCKET), GROUP, "FAIL", "all_reduce: 2 channels via NET/Socket/0, expected NET/…Libfabric"),
        (
            measured(sent=[Traffic({"rdmap0": 0}, MIB)] * 2), GROUP,
            "FAIL", "i-1 (10.0.0.4): tx_bytes of rdmap0 did not grow",
        ),
        (measured(COPIED), DIRECT, "FAIL", "all_reduce: 2 channels via NET/AWS Libfabric/0 without GDRDMA"),
        (measured(COPIED), GROUP, "PASS", ""),
        (measured(), UNKNOWN, "PASS", ""),
        (measured(COPIED), UNKNOWN, "UNPROVEN", "2 channels via NET/AWS Libfabric/0 without GDRDMA: no public log"),
        (measured(SOCKET), UNKNOWN, "FAIL", "expected NET/…Libfabric"),
    ],
)  # fmt: skip
def test_transport(judge: Judge, collectives: dict[str, Any], group: Group, verdict: str, message: str) -> None:
    judged = judge(checks.test_nccl_goes_over_efa, {}, collectives=collectives, adapters=1, together=two(), group=group)
    assert judged.verdict == verdict and message in judged.message


REAL = "0000:10:1c.0 0x10de 0x20b0 0x030200 nvidia\n"
BOARD = "0000:00:1b.0 0x1af4 0x1110 0x050000 nvidia\n"
FLOOR = Floor(26.0, 2, 1 << 30, "aws-parallelcluster")


@pytest.mark.parametrize(
    ("pci", "log", "floor", "verdict", "message"),
    [
        (REAL, GOOD, FLOOR, "PASS", ""),
        (REAL, GOOD.replace("39.38", "3.1"), FLOOR, "FAIL", "expected at least 26 GB/s"),
        (
            REAL,
            GOOD,
            None,
            "UNPROVEN",
            "no source states a floor for g5.12xlarge on 2 nodes (contradicted); measured: 39.38",
        ),
        (BOARD, GOOD.replace("39.38", "3.1"), FLOOR, "UNPROVEN", "the GPUs are simulated: 3.1 GB/s"),
    ],
)
def test_floor(judge: Judge, pci: str, log: str, floor: Floor | None, verdict: str, message: str) -> None:
    group = Group(GROUP.nodes, floor=floor, no_floor=UNKNOWN.no_floor)
    judged = judge(
        checks.test_bus_bandwidth_is_above_the_floor, {PCI_LIST: pci}, collectives=measured(log), group=group
    )
    assert judged.verdict == verdict and message in judged.message


def test_setup_that_fails_names_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: Together) -> None:
        raise NodeFailed("i-2 (10.0.0.5): no key for the other nodes could be made: ssh-keygen: not found")

    monkeypatch.setattr(Together, "enter", fail)
    entered = checks.together.__wrapped__(GROUP)  # type: ignore[attr-defined]
    with pytest.raises(pytest.fail.Exception, match=r"i-2 .*ssh-keygen: not found"):
        next(entered)


@pytest.mark.parametrize(
    ("first", "second", "outcome", "message"),
    [
        (None, None, pytest.skip.Exception, "no Open MPI on the image"),
        (MPI, OpenMpi("/usr/bin/mpirun", "4.1.4", "l"), pytest.fail.Exception, "the nodes have different Open MPIs"),
    ],
)
def test_open_mpi_of_the_nodes(
    monkeypatch: pytest.MonkeyPatch, first: Any, second: Any, outcome: type[BaseException], message: str
) -> None:
    installed = {"i-1": first, "i-2": second}
    monkeypatch.setattr(checks.mpi_jobs, "find_open_mpi", lambda member: installed[member.node.name])
    with pytest.raises(outcome, match=message):
        checks.mpi.__wrapped__(two())  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("promised", "driver", "message"),
    [(0, "", "no EFA device: g5.12xlarge has none"), (1, "", "no EFA device: no adapter of this machine")],
)
def test_machines_without_efa_are_unproven(promised: int, driver: str, message: str) -> None:
    (row,) = PLAN["instance_types"]
    plan = as_plan(PLAN | {"instance_types": [row | {"efa_interfaces": promised}]})
    machine: Any = SimpleNamespace(instance_type="g5.12xlarge")
    with pytest.raises(pytest.skip.Exception, match=message):
        checks.adapters.__wrapped__(plan, machine, two({"readlink": (0, driver)}))  # type: ignore[attr-defined]


def test_adapters_with_their_driver_are_counted() -> None:
    (row,) = PLAN["instance_types"]
    plan = as_plan(PLAN | {"instance_types": [row | {"efa_interfaces": 4}]})
    together = two({"readlink": (0, "../../../../bus/pci/drivers/efa\n")})
    machine: Any = SimpleNamespace(instance_type="g5.12xlarge")
    assert checks.adapters.__wrapped__(plan, machine, together) == 4  # type: ignore[attr-defined]


def test_collectives_are_those_of_the_image() -> None:
    counters = (0, "efa rdmap0 5\nena ens5 7\n")
    answers = {"all_reduce_perf": (0, "/opt/nccl-tests/build\n"), "hw_counters": counters}
    together = two(answers, {"hw_counters": counters})
    together.members[0].connection = line({"_perf -b": (0, GOOD), **answers})
    machine: Any = SimpleNamespace(instance_type="g5.12xlarge")
    found = checks.collectives.__wrapped__(together, MPI, one_gpu(), machine)  # type: ignore[attr-defined]
    assert set(found) == {"all_reduce", "all_gather", "alltoall"}
    assert found["all_reduce"] == (mpi_jobs.read(GOOD), "", [Traffic({"rdmap0": 0}, 0)] * 2)
    with pytest.raises(pytest.skip.Exception, match="no nccl-tests on the image"):
        checks.collectives.__wrapped__(two(), MPI, one_gpu(), machine)  # type: ignore[attr-defined]


def test_observe_is_the_check_s_own() -> None:
    record = RunningCheck(CheckRecord("c", "", "T4", ""))
    with pytest.raises(pytest.fail.Exception, match=r"^died meanwhile: i-2 \(10\.0\.0\.5\); i-1: no answer$"):
        together = two()
        together.members[1].connection.run = _refuse  # type: ignore[method-assign]
        checks.judged(together, Observe(record), _fails)


def _refuse(*_: Any) -> Any:
    raise ssh.ConnectionDropped("gone")


def _fails() -> None:
    raise NodeFailed("i-1: no answer")
