"""The live service: every event exactly once across crashes and restarts, losses counted."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path

import pytest

from gpu_ami.events.reader import parser_module
from tests.onhost.event_parser.parser_bench import (  # noqa: F401  (make_bench is the fixture `bench`)
    BOOT,
    Bench,
    Killed,
    kill_at,
    kmsg,
    make_bench,
    noise,
    record,
    service_module,
    settle,
    state_module,
    xid,
)


def test_events_and_raw_lines_are_written(bench: Bench) -> None:
    service = bench.start()
    bench.print(noise(0), xid(1), noise(2), xid(3, 79))
    settle(service)
    assert bench.raw() == [
        "[    0.001000] NVRM: Xid (PCI:0000:00:1e): 31, pid=1, name=job 1, Ch 00000008",
        "[    0.003000] NVRM: Xid (PCI:0000:00:1e): 79, pid=1, name=job 3, Ch 00000008",
    ]
    assert [(event["seq"], event["code"], event["origin"], event["boot_id"]) for event in bench.events()] == [
        (1, 31, "kernel", BOOT), (3, 79, "kernel", BOOT),
    ]  # fmt: skip


def test_userland_records_are_drills_and_quotations_are_no_events(bench: Bench) -> None:
    service = bench.start()
    bench.print(
        xid(0, 79, priority=12), record(1, "said NVRM: Xid (PCI:0000:00:1e): 79, x", 12), xid(2, 79, priority=4)
    )
    bench.print(record(3, "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  1.2.3 forged", 12))
    settle(service)
    assert [(event["seq"], event["origin"]) for event in bench.events()] == [(0, "userland"), (2, "kernel")]
    assert len(bench.raw()) == 2
    drill, fault = bench.events()
    assert drill["DrillEvents"] == 1 and "XidEvents" not in drill
    assert fault["XidEvents"] == 1 and "DrillEvents" not in fault


# Records of the kernel that have the name of a process (15 bytes, prctl(2)) or another text of an unprivileged user.
# Formats: Linux 6.12, arch/x86/mm/fault.c, arch/arm64/kernel/traps.c, kernel/signal.c, kernel/exit.c, mm/oom_kill.c,
# mm/page_alloc.c, block/blk-core.c, fs/overlayfs/params.c, security/lsm_audit.c.
FORGED = [
    "NVRM: Xid: 79,a[4711]: segfault at 0 ip 000055f4 sp 00007ffc error 4 in a[55f4,1000]",
    "NVRM:Xid: 79, a[4711]: segfault at 0 ip 000055f4 sp 00007ffc error 4 in a[55f4,1000]",
    "NVRM: Xid: 79,a[4711]: unhandled exception: DABT (lower EL), ESR 0x92000044, level 0 translation fault in a",
    "NVRM: Xid: 79,a/4711: potentially unexpected fatal signal 11.",
    "NVRM: Xid: 79,a (4711) used greatest stack depth: 10888 bytes left",
    "NVRM: Xid: 79,a invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "NVRM: Xid: 79,a: page allocation failure: order:10, mode:0xcc0(GFP_KERNEL), nodemask=(null)",
    "NVRM: Xid: 79,a: attempt to access beyond end of device",
    "NVRM: Xid (PCI:[4711]: segfault at 0 ip 000055f4 sp 00007ffc error 4 in a[55f4,1000]",
    "NVRM:\\x0aXid: 7,a[4711]: segfault at 0 ip 000055f4 sp 00007ffc error 4 in a[55f4,1000]",
    "NEURON_HW_ERR=X invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "NEURON_HW_ERR=X (4711) used greatest stack depth: 10888 bytes left",
    'overlayfs: unrecognized mount option "NVRM: Xid (PCI:0000:00:1e): 79, pid=1" or missing value',
    'audit: type=1400 audit(1700000000.123:45): apparmor="DENIED" operation="exec" comm="NVRM: Xid: 79,a"',
    "process 'NVRM: Xid: 79,a' started with executable stack",
]


@pytest.mark.parametrize("text", FORGED)
def test_a_name_of_a_process_is_no_record_of_the_driver(bench: Bench, text: str) -> None:
    """The record has the kernel's facility, but a user chose its beginning: neither an event nor a raw line."""
    service = bench.start()
    bench.print(record(0, text, 4), xid(1, 79))
    settle(service)
    assert [event["seq"] for event in bench.events()] == [1]
    assert bench.raw() == ["[    0.001000] NVRM: Xid (PCI:0000:00:1e): 79, pid=1, name=job 1, Ch 00000008"]


OF_THE_DRIVER = [
    "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)",
    "NVRM: GPU 0000:00:1e.0: RmInitAdapter failed! (0x62:0x55:2674)",
    "NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) @ y.c:1",
    "NVRM: Xid: 13, 0001: Ch 00000001 M 00000b00 D 00000000 intr 00000000",
    "NVRM: os_pci_init_handle: invalid context!",
    "NVRM: _kgspLogXid119: ********************************* GSP Timeout **********************************",
    "NVRM: Xid (PCI:0000:00:1e): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception",
]


@pytest.mark.parametrize("text", OF_THE_DRIVER)
def test_what_the_driver_prints_is_a_raw_line(bench: Bench, text: str) -> None:
    service = bench.start()
    bench.print(record(0, text, 4))
    settle(service)
    assert bench.raw() == [f"[    0.000000] {text}"]


def test_every_line_is_an_embedded_metric_document(bench: Bench) -> None:
    service = bench.start()
    service.instance = {"InstanceId": "i-0123456789abcdef0", "InstanceType": "p4d.24xlarge"}
    bench.print(xid(5), record(6, "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Non-fatal, Link 23 x"))
    settle(service)
    service.heartbeat()
    kinds = set()
    for document in bench.documents():
        kinds.add(document["kind"])
        directive = document["_aws"]["CloudWatchMetrics"]
        assert isinstance(document["_aws"]["Timestamp"], int)
        for metrics in directive:
            assert 0 < len(metrics["Metrics"]) <= 100
            for metric in metrics["Metrics"]:
                assert isinstance(document[metric["Name"]], int | float)
            for dimensions in metrics["Dimensions"]:
                assert len(dimensions) <= 30
                assert all(isinstance(document[name], str) and document[name] for name in dimensions)
            assert ["InstanceId"] in metrics["Dimensions"]
    assert kinds == {"xid", "sxid", "loss", "heartbeat"}


def test_lost_records_are_counted_exactly(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    service = bench.start()
    bench.print(noise(0), xid(1))
    settle(service)
    real, broken = os.read, [True]

    def read(fd: int, size: int) -> bytes:
        if fd == service.source.fd and broken and broken.pop():
            raise OSError(errno.EPIPE, "overwritten")
        return real(fd, size)

    monkeypatch.setattr(os, "read", read)
    bench.print(xid(42))
    settle(service)
    assert (service.source.lost, service.source.overruns) == (40, 1)
    [loss] = [event for event in bench.documents() if event["kind"] == "loss"]
    assert (loss["RecordsLost"], loss["before_seq"]) == (40, 42)
    assert bench.seqs() == [1, 42]
    bench.ring = [xid(45)]
    service = bench.start()
    settle(service)
    assert (service.source.lost, service.lost()) == (2, 42), "a restart keeps the count of this boot"


def test_records_overwritten_before_the_start_are_lost(bench: Bench) -> None:
    bench.ring = [xid(10), xid(11)]
    service = bench.start()
    settle(service)
    assert service.source.lost == 10


def test_records_read_before_a_restart_are_not_counted_as_lost(bench: Bench) -> None:
    service = bench.start()
    bench.print(*(noise(seq) for seq in range(50)))
    settle(service)
    service.outbox.save_cursor(service.cursor(), False, 0.0)
    bench.ring = [noise(50), xid(51)]
    service = bench.start()
    settle(service)
    assert service.source.lost == 0
    assert bench.seqs() == [51]


def test_malformed_records_are_counted(bench: Bench) -> None:
    service = bench.start()
    bench.print(b"garbage", b";", b",,,;", b"4,x,3,-;NVRM: Xid", b"4,1,9;NVRM: Xid (PCI:0000:00:1e): 1", b"\xff" * 100)
    bench.print(
        record(2, "NVRM: Xid (PCI:0000:"), record(3, "NVRM: Xid (PCI:0000:00:1e): 31, \\xff\\xfe\\x5c\\x1b[31m")
    )
    bench.print(
        b"4,4,4,c,caller=T1,new=1;NVRM: Xid (PCI:0000:00:1e): 13, x\n SUBSYSTEM=pci\n DEVICE=+pci:0000:00:1e.0\n"
    )
    settle(service)
    assert [(event["seq"], event["message"]) for event in bench.events()] == [(3, "\ufffd\ufffd\\\\x1b[31m"), (4, "x")]
    assert service.malformed_lines() == 7


def test_follow_ups_of_a_switch_are_one_event_but_all_raw_lines(bench: Bench) -> None:
    head = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, "
    service = bench.start()
    bench.print(record(0, head + "Non-fatal, Link 23 x"), record(1, head + "Severity 0 Engine instance 23"))
    service.drain()
    assert bench.events() == [] and len(bench.raw()) == 2, "the event waits for follow-up lines, the raw lines do not"
    bench.print(record(2, head + "Data {0x1}"))
    settle(service)
    assert [(event["seq"], len(event["follow_ups"])) for event in bench.events()] == [(0, 2)]
    assert len(bench.raw()) == 3


def test_restart_while_an_event_waits_for_follow_up_lines(bench: Bench) -> None:
    head = "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, "
    service = bench.start()
    bench.print(xid(0), record(1, head + "Non-fatal, Link 23 x"), xid(2))
    service.drain()
    service = bench.start()
    bench.print(record(3, head + "Data {0x1}"))
    settle(service)
    assert bench.seqs() == [0, 1, 2]
    assert len(bench.raw()) == 4
    assert service.source.lost == 0


def test_clean_restart_repeats_nothing_and_reads_missed_records(bench: Bench) -> None:
    service = bench.start()
    bench.print(xid(0), xid(1))
    settle(service)
    service.stop()
    bench.ring += [xid(2)]
    service = bench.start()
    settle(service)
    assert bench.seqs() == [0, 1, 2]
    assert len(bench.raw()) == 3


def test_identity_and_incident_survive_a_restart(bench: Bench) -> None:
    service = bench.start()
    bench.print(record(0, "NVRM: GPU at PCI:0000:00:1e: GPU-12345678-1234-1234-1234-123456789abc"), xid(1, 48))
    settle(service)
    service.stop()
    bench.ring = [xid(2, 45)]
    service = bench.start()
    settle(service)
    first, second = bench.events()
    assert second["uuid"] == "GPU-12345678-1234-1234-1234-123456789abc"
    assert second["incident"]["id"] == first["incident"]["id"]
    assert (second["incident"]["root"], second["incident"]["members"], second["action"]) == (48, 2, "IGNORE")


def test_another_boot_starts_without_memory(bench: Bench) -> None:
    service = bench.start()
    bench.print(record(0, "NVRM: GPU at PCI:0000:00:1e: GPU-12345678-1234-1234-1234-123456789abc"), xid(1), xid(2))
    settle(service)
    service.stop()
    bench.boot, bench.ring = BOOT.replace("1", "9"), [xid(0), xid(1)]
    service = bench.start()
    settle(service)
    assert [(event["boot_id"][0], event["seq"]) for event in bench.events()] == [("1", 1), ("1", 2), ("9", 0), ("9", 1)]
    assert bench.events()[-1]["uuid"] is None, "the same address may be another GPU on another host"


@pytest.mark.parametrize("content", ["", "{", "1 2 3", "9 2 2745614147\n{}", "\x00\x00", "1 2 3\n{}"])
def test_without_a_checkpoint_the_json_log_gives_the_position(bench: Bench, content: str) -> None:
    service = bench.start()
    bench.print(xid(0), xid(1))
    settle(service)
    for slot in (0, 1):
        (bench.folder / "state" / f"checkpoint.{slot}").write_text(content)
    bench.ring += [xid(2)]
    service = bench.start()
    settle(service)
    assert bench.seqs() == [0, 1, 2]


def test_incomplete_checkpoint_falls_back_to_the_previous_one(tmp_path: Path) -> None:
    """Also where the mix of two writes is valid JSON."""
    state = state_module.StateFile(str(tmp_path))
    for seq in (1111, 2222, 3333):
        state.save({"seq": seq})
    newest = tmp_path / "checkpoint.1"
    assert b"3333" in newest.read_bytes()
    newest.write_bytes(newest.read_bytes().replace(b"3333", b"3931"))
    again = state_module.StateFile(str(tmp_path))
    assert again.load()["seq"] == 2222
    again.save({"seq": 4444})
    assert state_module.StateFile(str(tmp_path)).load()["seq"] == 4444


@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_kill_at_any_write_loses_cuts_and_repeats_nothing(tmp_path: Path, part: float) -> None:
    """Kills the process at each of its writes: before it, halfway, and after it."""
    countdown, survived = 0, False
    while not survived:
        countdown += 1
        folder = tmp_path / str(countdown)
        folder.mkdir()
        bench = Bench(folder)
        with pytest.MonkeyPatch.context() as patch:
            service = bench.start()
            calls = kill_at(patch, countdown, part)
            try:
                for first in range(0, 24, 4):
                    bench.print(xid(first), noise(first + 1), xid(first + 2, 79), xid(first + 3, 45))
                    service.drain()
                survived = True
            except Killed:
                pass
            printed = len(bench.ring)
            assert survived or calls() == countdown
        bench.ring += [xid(printed + number) for number in range(2)]
        settle(bench.start())
        expected = [seq for seq in range(printed + 2) if seq % 4 != 1 or seq >= printed]
        assert bench.seqs() == expected, f"killed in write {countdown}"
        assert len(bench.raw()) == len(expected)
        bench.end()
    assert countdown > 15, "the run must have enough writes"


def test_a_flood_is_written_in_order(bench: Bench) -> None:
    service = bench.start()
    for first in range(0, 3000, 100):
        bench.print(*(xid(seq, 45) for seq in range(first, first + 100)))
        service.drain()
    assert bench.seqs() == list(range(3000))


def test_heartbeat_during_a_flood(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood without end must not trigger the watchdog."""
    monkeypatch.setattr(service_module, "BATCH", 10)
    service = bench.start()
    bench.print(*(noise(seq) for seq in range(100)))
    service.beat_due = 0.0
    service.drain()
    assert service.source.records == 10, "it must return to the loop that sends heartbeats"
    service.beat_due = float("inf")
    service.drain()
    assert service.source.records == 100


def test_ready_before_the_backlog_is_read(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On a slow processor, reading a ring buffer of 4 MiB takes longer than systemd waits for a start."""
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(address)
        monkeypatch.setenv("NOTIFY_SOCKET", address)
        service = bench.start()
        bench.print(xid(0))
        assert bench.far is not None
        bench.far.close()
        sent: list[tuple[str, int]] = []
        real = service.notifier.send
        monkeypatch.setattr(
            service.notifier, "send", lambda *fields: (sent.append((fields[0], service.source.records)), real(*fields))
        )
        service.run()
        first = listener.recv(4096).decode()
    assert first.startswith("READY=1\n")
    assert sent[0] == ("READY=1", 0) and ("WATCHDOG=1", 0) in sent and sent[-1] == ("STOPPING=1", 1)
    assert bench.seqs() == [0]


def test_status_has_source_progress_and_heartbeat(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    service = bench.start()
    bench.print(noise(0), xid(1), xid(2, priority=12))
    settle(service)
    service.heartbeat()
    main = parser_module("main")
    assert main.main(["status", "--status-path", bench.options.status_path]) == 0
    status = json.loads(capsys.readouterr().out)
    assert status["alive"] and status["pid"] == os.getpid() and 0 <= status["heartbeat_age_s"] < 60
    assert (status["source"], status["last_seq"], status["checkpoint_seq"]) == ("/dev/kmsg", 2, 2)
    assert (status["events"], status["drills"], status["raw_lines"], status["records_lost"]) == (1, 1, 2, 0)


def test_status_of_a_service_that_stopped_long_ago(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    main = parser_module("main")
    assert main.main(["status", "--status-path", bench.options.status_path]) == 1
    assert "no status" in json.loads(capsys.readouterr().out)["why"]
    service = bench.start()
    service.heartbeat()
    path = Path(bench.options.status_path)
    status = json.loads(path.read_text())
    path.write_text(json.dumps(status | {"heartbeat_monotonic_s": status["heartbeat_monotonic_s"] - 1000}))
    assert main.main(["status", "--status-path", bench.options.status_path]) == 1
    assert json.loads(capsys.readouterr().out)["alive"] is False


def test_only_the_heartbeat_is_due_when_idle(bench: Bench) -> None:
    service = bench.start()
    bench.print(noise(0), xid(1))
    settle(service)
    timeout = service.timeout_ms(service_module.time.monotonic() + 60)
    assert timeout <= 1001, "disk and status are due a second after an event"
    service.settle(service_module.time.monotonic())
    now = service_module.time.monotonic()
    assert 59000 < service.timeout_ms(now + 60) <= 60001
    bench.print(record(2, "nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 22013, Non-fatal, Link 23 x"))
    service.drain()
    service.status_due = False
    assert service.timeout_ms(service_module.time.monotonic() + 60) <= 51, "an open event is due in 50 ms"


def test_sighup_reads_the_policy_again(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    service = bench.start()
    bench.print(xid(0, 63))
    settle(service)
    Path(bench.options.policy).write_text(
        '{"xid": {"63": {"severity": "fatal", "action": "RESET_GPU"}, "64": {"severity": "x"}}}'
    )
    service.on_signal(service_module.signal.SIGHUP, None)
    bench.print(xid(1, 63))
    settle(service)
    first, second = bench.events()
    assert (first["severity"], first["decided_by"]) == ("warning", "catalogue")
    assert (second["severity"], second["action"], second["decided_by"]) == ("fatal", "RESET_GPU", "policy")
    assert "+policy:" in second["catalogue"]
    assert "64.severity: expected one of info, app, warning, critical, fatal, got 'x'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n", "470.256.02"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build  (builder)\n", "595.45.04"),
        ("NVRM version: something else\n", None),
        (None, None),
    ],
)
def test_driver_version_of_the_loaded_module(bench: Bench, text: str | None, version: str | None) -> None:
    bench.options.driver_version = str(bench.folder / "version")
    if text:
        Path(bench.options.driver_version).write_text(text)
    service = bench.start()
    bench.print(xid(0))
    settle(service)
    assert bench.events()[0]["driver"] == version


def test_event_names_the_kubernetes_node_as_soon_as_nodeadm_has_written_it(bench: Bench) -> None:
    file = bench.folder / "environment"
    bench.options.kubelet_environment = str(file)
    service = bench.start()
    service.instance = {"InstanceId": "i-0123456789abcdef0"}
    bench.print(xid(0))
    settle(service)
    file.write_text(
        "KUBELET_CONFIG_DROPIN_DIR_ALPHA=on\nNODEADM_KUBELET_ARGS=--cloud-provider=external"
        " --hostname-override=ip-10-0-3-7.eu-central-1.compute.internal --node-ip=10.0.3.7\n"
    )
    bench.print(xid(1, 48))
    settle(service)
    assert [event.get("NodeName") for event in bench.events()] == [None, "ip-10-0-3-7.eu-central-1.compute.internal"]
    service.heartbeat()
    heartbeat = bench.documents()[-1]
    assert (heartbeat["kind"], heartbeat["NodeName"]) == ("heartbeat", "ip-10-0-3-7.eu-central-1.compute.internal")
    assert ["InstanceId"] in heartbeat["_aws"]["CloudWatchMetrics"][0]["Dimensions"]


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("NODEADM_KUBELET_ARGS=--hostname-override=a.internal --hostname-override=of-the-user\n", "of-the-user"),
        ('NODEADM_KUBELET_ARGS="--hostname-override=i-0123456789abcdef0"', "i-0123456789abcdef0"),
        ("NODEADM_KUBELET_ARGS='--v=2 --hostname-override b'", "b"),
        ("NODEADM_KUBELET_ARGS=--node-labels=x--hostname-override=y\n", None),
        ("", None),
    ],
)
def test_node_name_is_the_last_of_kubelet_s_flags(tmp_path: Path, text: str, name: str | None) -> None:
    file = tmp_path / "environment"
    file.write_text(text)
    assert parser_module("environment").read_node_name(str(file)) == name
    assert parser_module("environment").read_node_name(str(tmp_path / "missing")) is None
