"""The event parser on a booted machine of the local region: what it may not lose, repeat, or believe.

    pytest -m machine tests/machine/test_event_parser_live.py

One machine (g5.12xlarge, emulated) of the newest image of debian12-gpu that was built here, with this checkout's
parser. The driver's module prints the kernel's own Xids on request. Every test counts what was printed, written and
lost, and wants the numbers to agree exactly.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_ami.events.reader import parser_folder
from tests.machine.event_parser_machine import booted
from tests.machine.guest import JSON_LOG, RAW, UNIT, Guest

pytestmark = pytest.mark.machine


def numbers(lines: list[str], tag: str) -> list[int]:
    return [int(found) for line in lines for found in re.findall(rf"{re.escape(tag)} n=(\d+)", line)]


def assert_exactly_once(guest: Guest, tag: str, count: int) -> None:
    """Each of `count` printed Xids is one event and one raw line, in order."""
    assert numbers([one["message"] for one in guest.documents(tag)], tag) == list(range(count))
    assert numbers(guest.raw(tag), tag) == list(range(count))


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with booted() as made:
        yield made


def test_service_is_up_and_tells_of_itself(guest: Guest) -> None:
    guest.quiet()
    status = guest.status()
    assert status["alive"] and status["source"] == "/dev/kmsg"
    assert guest.sudo(f"systemctl show -P Type -P NRestarts {UNIT}").split() == ["notify", "0"]
    resident = guest.sudo(f"grep VmRSS /proc/{status['pid']}/status").split()[1]
    print(f"\nRSS: {resident} kB")


def test_recovery_state_of_the_boards_was_taken_at_the_start(guest: Guest) -> None:
    guest.until("a recovery line", lambda: bool(guest.documents('"kind":"recovery"')), 90)
    boards = guest.documents('"kind":"recovery"')
    assert [board["answered"] for board in boards] == [True] * 4
    assert all(board["uuid"].startswith("GPU-") and board["RowRemapPending"] == 0 for board in boards)


def test_kernel_and_userland_are_told_apart_and_logger_makes_nothing(guest: Guest) -> None:
    tag = guest.tag("origin")
    line = f"NVRM: Xid (PCI:0000:00:1b): 79, pid=1, name=drill, {tag} userland"
    guest.xid(f"63, {tag} kernel")
    guest.sudo(f"echo '<4>{line}' > /dev/kmsg; echo '<0>{line}' > /dev/kmsg")
    guest.sudo(f"logger '{line} logger'; logger -t kernel '{line} logger'")
    guest.sudo(f"logger -t NVRM -p kern.err 'Xid (PCI:0000:00:1b): 79, {tag} logger'")
    guest.sudo(f"echo 'somebody said {line} quoted' > /dev/kmsg; systemd-cat -t kernel echo '{line} cat'")
    guest.sudo("sync")
    guest.quiet()
    found = [(one["code"], one["origin"], one["message"].split()[-1]) for one in guest.documents(tag)]
    assert found == [(63, "kernel", "kernel"), (79, "userland", "userland"), (79, "userland", "userland")]
    assert [line.split()[-1] for line in guest.raw(tag)] == ["kernel", "userland", "userland"]
    fault = guest.documents(tag)[0]
    assert fault["uuid"].startswith("GPU-") and fault["driver"].split(".")[0].isdigit()
    assert fault["XidEvents"] == 1 and guest.documents(tag)[1]["DrillEvents"] == 1


def test_kernel_to_file_takes_milliseconds(guest: Guest) -> None:
    tag = guest.tag("lag")
    guest.flood(100, tag, pause=0.05)
    guest.quiet()
    assert_exactly_once(guest, tag, 100)
    lags = sorted(one["LagSeconds"] * 1000 for one in guest.documents(tag))
    print(f"\nkernel to file, emulated: p50 {statistics.median(lags):.1f} ms, p99 {lags[98]:.1f}, worst {lags[-1]:.1f}")


def test_killed_in_a_flood_again_and_again(guest: Guest) -> None:
    tag, count = guest.tag("kill"), 3000
    lost_before = sum(one["RecordsLost"] for one in guest.documents('"kind":"loss"'))
    killer = f"for n in 1 2 3 4 5 6; do sleep 1; systemctl kill -s KILL {UNIT}; done"
    guest.flood(count, tag, pause=0.003, meanwhile=killer)
    guest.quiet()
    lost = sum(one["RecordsLost"] for one in guest.documents('"kind":"loss"')) - lost_before
    restarts = int(guest.sudo(f"systemctl show -P NRestarts {UNIT}"))
    written = f"events {len(guest.documents(tag))}, raw lines {len(guest.raw(tag))}"
    print(f"\nprinted {count}, {written}, lost {lost}, restarts {restarts}")
    assert restarts >= 3 and lost == 0
    assert_exactly_once(guest, tag, count)


def test_overrun_ring_is_counted_to_the_record(guest: Guest) -> None:
    tag = guest.tag("overrun")
    guest.quiet()
    before = guest.status()
    guest.sudo(f"systemctl kill -s STOP {UNIT}")
    try:
        size = int(guest.sudo("python3 -c 'import ctypes; print(ctypes.CDLL(None).klogctl(10, None, 0))'"))
        count = size // 32  # more than its descriptors, whatever the length
        guest.flood(count, tag)
    finally:
        guest.sudo(f"systemctl kill -s CONT {UNIT}")
    guest.quiet(400)  # tens of thousands of events under emulation
    after = guest.status()
    events = numbers([one["message"] for one in guest.documents(tag)], tag)
    lost = after["records_lost"] - before["records_lost"]
    print(f"\nring {size} bytes, printed {count}, events {len(events)}, lost {lost}")
    assert after["pid"] == before["pid"] and after["overruns"] > before["overruns"]
    assert lost > 0 and events == list(range(count - len(events), count)), "what survived in the ring is whole"
    assert after["records_read"] - before["records_read"] + lost == after["last_seq"] - before["last_seq"]
    assert 0 <= lost - (count - len(events)) <= 3, "all that was lost were Xids of the flood, but for its neighbours"


def test_restart_repeats_nothing_and_finds_what_came_meanwhile(guest: Guest) -> None:
    tag = guest.tag("restart")
    for number in range(6):
        guest.sudo(f"systemctl {'stop' if number % 2 else 'restart'} {UNIT}")
        guest.xid(f"31, {tag} n={number}")
    guest.sudo(f"systemctl start {UNIT}")
    guest.quiet()
    assert_exactly_once(guest, tag, 6)


def test_rotation_in_a_flood(guest: Guest) -> None:
    tag, count = guest.tag("rotate"), 1500
    guest.sudo(f"rm -f {RAW}.* {JSON_LOG}.*")
    guest.flood(count, tag, pause=0.004, meanwhile="sleep 3; logrotate -f /etc/logrotate.d/gpu-ami-events")
    guest.quiet()
    assert guest.sudo(
        f"test -s {RAW}.1 -a -s {RAW} -a -s {JSON_LOG}.1 -a -s {JSON_LOG} && stat -c %a {RAW} {JSON_LOG}"
    ).split() == ["644", "644"]
    assert_exactly_once(guest, tag, count)


def test_full_disk(guest: Guest) -> None:
    tag = guest.tag("full")
    before = guest.status()
    try:
        guest.sudo("fallocate -l $(( $(df --output=avail -B1 / | tail -1) - 65536 )) /var/fill")
        guest.sudo("dd if=/dev/zero of=/var/fill2 bs=4096 2>/dev/null || true")  # root's reserve too
        guest.flood(200, tag)
        guest.until("the service notices", lambda: guest.status()["sink_errors"] > before["sink_errors"])
        during = guest.status()
        assert during["pid"] == before["pid"] and during["backlog_bytes"] > 0
    finally:
        guest.sudo("rm -f /var/fill /var/fill2")
    guest.quiet()
    assert guest.status()["events_dropped"] == before["events_dropped"]
    assert "No space left on device" in guest.sudo(f"journalctl -u {UNIT} --no-pager")
    assert_exactly_once(guest, tag, 200)


def test_idle_it_wakes_for_the_heartbeat_alone(guest: Guest) -> None:
    guest.quiet()
    time.sleep(3)
    pid = guest.status()["pid"]
    count = f"grep -h ^voluntary /proc/{pid}/status"
    before, records = int(guest.sudo(count).split()[1]), guest.status()["last_seq"]
    time.sleep(120)
    woken, printed = int(guest.sudo(count).split()[1]) - before, guest.status()["last_seq"] - records
    print(f"\nwake-ups in two minutes: {woken}, kernel records meanwhile: {printed}")
    assert woken <= 2 * 3 + 3 * printed, "two or three heartbeats, and a write that waits for the disk now and then"


def test_stuck_reader_is_restarted_by_the_watchdog(guest: Guest) -> None:
    tag = guest.tag("watchdog")
    drop_in = f"/run/systemd/system/{UNIT}.d"
    settings = r"[Service]\nWatchdogSec=8\nTimeoutAbortSec=2\n"
    guest.sudo(f"mkdir -p {drop_in}; printf '{settings}' > {drop_in}/watchdog.conf")
    guest.sudo(f"systemctl daemon-reload; systemctl restart {UNIT}")
    try:
        guest.quiet()
        pid = guest.status()["pid"]
        guest.sudo(f"kill -STOP {pid}")
        guest.xid(f"31, {tag} n=0")
        main_pid = f"systemctl show -P MainPID {UNIT}"
        guest.until("another process", lambda: guest.sudo(main_pid).strip() not in (str(pid), "0"))
        guest.quiet()
        assert_exactly_once(guest, tag, 1)
    finally:
        guest.sudo(f"rm -rf {drop_in}; systemctl daemon-reload; systemctl restart {UNIT}")


def test_reboot(guest: Guest) -> None:
    """Nothing of the last boot is told again; what the new one printed before the service was up is there."""
    tag = guest.tag("reboot")
    guest.flood(50, tag)
    guest.quiet()
    boot = guest.boot_id()
    known = len(guest.documents('"kind":"xid"'))
    guest.sudo("sync; systemd-run --quiet --on-active=1 systemctl reboot")
    assert guest.connection is not None
    guest.connection.close()
    time.sleep(5)
    guest.until(
        "another boot",
        lambda: guest.sudo("cat /proc/sys/kernel/random/boot_id", check=False).strip() not in (boot, ""),
        300,
    )
    guest.sudo("modprobe nvidia || true")
    guest.xid(f"31, {tag} n=50")
    guest.quiet()
    assert_exactly_once(guest, tag, 51)
    events = guest.documents('"kind":"xid"')
    assert len(events) == known + 1
    assert events[-1]["boot_id"] != boot
    assert guest.status()["boot_id"] == events[-1]["boot_id"]


def test_nothing_was_malformed_or_dropped(guest: Guest) -> None:
    beats = guest.documents('"kind":"heartbeat"')
    assert beats and all(beat["EventsDropped"] == 0 and beat["RecordsMalformed"] == 0 for beat in beats)
    assert Path(parser_folder() / "README.md").is_file()
