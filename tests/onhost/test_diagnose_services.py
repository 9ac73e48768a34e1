"""gpu-ami-diagnose: what it finds of events, the event parser, the agent, units, disks and the network."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from onhost import diagnose as program
from tests.onhost.diagnosis_bench import DF, HEALTHY_DISK, ROOT, SERVICE, Bench, board, of, unit

TWICE = "XID 48: Double Bit ECC Error \u00d7 2, first 2026-11-22T01:02:03Z, last 2026-11-22T01:02:03Z"


def test_events_of_this_boot_ask_for_their_action(bench: Bench) -> None:
    bench.event()
    bench.event()
    bench.event(code=79, name="GPU lost", boot_id="an-earlier-boot")
    bench.event(code=31, ec2_action="restart_application")
    bench.event(code=95, origin="userland")
    document = bench.diagnose()
    assert of(document, "events") == [("action", "GPU 0000:1b:00.0", TWICE, "reboot")]
    read = document["probes"]["events"]["data"]
    assert (read["count"], read["earlier"], len(read["newest"])) == (4, 1, 3)
    assert "xid 95  0000:1b:00.0  critical  reboot: Double Bit ECC Error (drill)" in program.as_text(document)


def test_events_are_read_where_the_unit_writes_them(bench: Bench) -> None:
    bench.file(
        "/etc/systemd/system/aws-hw-monitor.service.d/paths.conf", "ExecStart=x run --json-log /var/log/own.jsonl\n"
    )
    bench.file("/var/log/own.jsonl", "cut off}\n")
    read = bench.diagnose()["probes"]["events"]["data"]
    assert (read["source"], read["count"]) == ("/var/log/own.jsonl", 0)


def test_without_the_log_the_kernel_is_asked(bench: Bench) -> None:
    """The parser is dead and its log gone: its catalogue still explains what the kernel holds."""
    home = bench.root / "opt/aws/cloudwatch"
    home.mkdir(parents=True)
    (home / "nvidia").symlink_to(ROOT / "onhost/event_parser")
    bench.prints("dmesg", "[1.0] NVRM: Xid (PCI:0000:00:1e): 79, pid=4, name=a, GPU has fallen off the bus.\n")
    document = bench.diagnose()
    assert document["probes"]["events"]["data"]["source"] == "kernel log"
    [(level, subject, text, _)] = of(document, "events")
    assert (level, subject) == ("action", "GPU 0000:00:1e.0") and text.startswith("XID 79: ")


@pytest.mark.parametrize(
    ("shown", "age", "expected"),
    [
        (SERVICE, 3.0, None),
        (SERVICE, 500.0, "the last heartbeat was 500 s ago"),
        (
            SERVICE.replace("running", "dead").replace("=active", "=failed"),
            3.0,
            "aws-hw-monitor.service is failed (dead)",
        ),
    ],
)
def test_parser(bench: Bench, shown: str, age: float, expected: str | None) -> None:
    bench.tool("systemctl", f"printf '{shown}'")
    beat = time.monotonic() - age
    bench.file("/run/gpu-ami/event-parser.json", json.dumps({"heartbeat_monotonic_s": beat, "heartbeat_period_s": 60}))
    found = of(bench.diagnose(), "parser")
    assert found == ([("action", "aws-hw-monitor.service", expected, "repair_service")] if expected else [])


def test_agents_errors_are_shown(bench: Bench) -> None:
    log = "t I! ok\nt E! cannot find credentials\n"
    bench.file("/opt/aws/amazon-cloudwatch-agent/logs/amazon-cloudwatch-agent.log", log)
    assert bench.diagnose()["probes"]["agent"]["data"]["last_errors"] == ["t E! cannot find credentials"]


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (["file_base.json", "file_gpu.json"], None),
        (["ssm_AmazonCloudWatch-linux"], ("action", "the image's was replaced by ssm_AmazonCloudWatch-linux (fetch-")),
        ([], ("action", "the image's was replaced by nothing")),
        (["file_base.json", "ssm_Own"], ("watch", "ssm_Own was added to the image's")),
    ],
)
def test_replaced_configuration_of_the_agent_is_found(
    bench: Bench, parts: list[str], expected: tuple[str, str] | None
) -> None:
    """User data with fetch-config took the image's logs and metrics away (amazon-cloudwatch-agent#1218)."""
    etc = "/opt/aws/amazon-cloudwatch-agent/etc"
    bench.file("/opt/aws/amazon-cloudwatch-agent/logs/amazon-cloudwatch-agent.log", "t I! ok\n")
    bench.file(f"{etc}/gpu-ami/base.json", "{}")
    for part in parts:
        bench.file(f"{etc}/amazon-cloudwatch-agent.d/{part}", "{}")
    found = [row for row in of(bench.diagnose(), "agent") if "configuration" in row[1]]
    assert [(row[0], row[2].startswith(expected[1])) for row in found if expected] == (
        [(expected[0], True)] if expected else []
    )
    assert expected or not found


def test_silent_parser_and_agent_are_findings(bench: Bench) -> None:
    document = bench.diagnose()
    assert [row[2] for row in of(document, "parser")] == [
        "its heartbeat is unknown: /run/gpu-ami/event-parser.json: No such file or directory"
    ]
    (agent,) = of(document, "agent")
    assert agent[2].endswith("amazon-cloudwatch-agent.log: No such file or directory")


@pytest.mark.parametrize(
    ("name", "changes", "text"),
    [
        ("nvidia-fabricmanager.service", {"ActiveState": "activating", "SubState": "start-pre"},
         "it is still starting (start-pre, limit 15min)"),
        ("nvidia-persistenced.service", {"ActiveState": "failed", "Result": "exit-code"}, "it failed (exit-code)"),
        ("nvidia-fabricmanager.service", {"ActiveState": "inactive"}, "it is enabled and not running"),
        ("nvidia-imex.service", {"ActiveState": "inactive", "ConditionResult": "no"}, ""),
        # ExecCondition of roles imex and dcgm, and of EKS's newer NVIDIA AMIs for the fabric manager.
        ("nvidia-imex.service", {"ActiveState": "inactive", "Result": "exec-condition"}, ""),
        ("nvidia-fabricmanager.service", {"ActiveState": "inactive", "Result": "exec-condition"}, ""),
        ("nvidia-cdi-refresh.service", {"ActiveState": "inactive", "Type": "oneshot"}, ""),
        ("nvidia-cdi-refresh.service", {"ActiveState": "failed", "Result": "timeout"}, "it failed (timeout)"),
        ("nvidia-persistenced.service", {"LoadState": "not-found", "ActiveState": "inactive"}, ""),
    ],
)  # fmt: skip
def test_units_of_the_stack(bench: Bench, name: str, changes: dict[str, str], text: str) -> None:
    board(bench)
    (bench.tools / "units").write_text(unit(name, **changes))
    found = [(one["subject"], one["text"]) for one in bench.diagnose()["findings"] if one["probe"] == "units"]
    assert found == ([(name, text)] if text else [])


def test_second_persistence_daemon_of_a_dlami_is_named(bench: Bench) -> None:
    board(bench)
    both = unit("nvidia-persistenced.service", ActiveState="failed", Result="exit-code")
    (bench.tools / "units").write_text(both + unit("nvidia_gpu_settings_service.service"))
    [text] = [one["text"] for one in bench.diagnose()["findings"] if one["probe"] == "units"]
    assert text.startswith("it failed (exit-code); nvidia_gpu_settings_service.service of the DLAMI runs the daemon")


def test_storm_does_not_hide_what_came_first(bench: Bench) -> None:
    board(bench)
    bench.event(code=48, time="2026-11-22T01:00:00Z", pci="0000:1b:00.0")
    for number in range(6000):
        when = f"2026-11-22T02:{number // 100:02d}:00Z"
        bench.event(code=95, name="Uncontained", time=when, pci="0000:1c:00.0", message="x" * 800)
    document = bench.diagnose(30)
    first, second = (one["text"] for one in document["findings"] if one["probe"] == "events")
    assert first == "XID 48: Double Bit ECC Error"
    assert second == "XID 95: Uncontained \u00d7 6,000, first 2026-11-22T02:00:00Z, last 2026-11-22T02:59:00Z"
    assert program.as_text(document).count("xid 95") == 1 and "\u00d7 6,000" in program.as_text(document)


def test_events_before_the_budget_are_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    board(bench)
    monkeypatch.setattr(program, "EVENT_BYTES", 1000)
    for _ in range(20):
        bench.event(code=95)
    texts = [one["text"] for one in bench.diagnose()["findings"]]
    assert any("only the last 0 MiB" in text and "may hold what came first" in text for text in texts)


@pytest.mark.parametrize(
    ("numbers", "mounts", "expected"),
    [
        (HEALTHY_DISK, "/dev/vda1 / ext4 rw,relatime,errors=remount-ro 0 0\n", []),
        (
            (40955460, 0, 2621440, 2591842), "",
            [("action", "/", "the file system is full; free space: 0 of 39,995 MiB")],
        ),
        (
            (2 << 30, 3 << 20, 0, 0), "",
            [("watch", "/", "the file system is nearly full; free space: 3,072 of 2,097,152 MiB")],
        ),
        ((2 << 30, 30 << 20, 0, 0), "", []),  # 1.5 % of 2 TiB are 30 GiB
        (
            (40955460, 38489712, 2621440, 12), "",
            [("action", "/", "the file system is full; free inodes: 12 of 2,621,440")],
        ),
        (HEALTHY_DISK, "/dev/vda1 / ext4 ro,relatime 0 0\n", [("action", "/", "the file system is mounted read-only")]),
        (("-", "-", "-", "-"), "", []),
    ],
)  # fmt: skip
def test_disk_without_room_is_a_finding(bench: Bench, numbers: Any, mounts: str, expected: list[Any]) -> None:
    board(bench)
    bench.file("/tmp/x", "")
    bench.file("/proc/mounts", mounts)
    bench.prints("df", DF.format(*numbers))
    document = bench.diagnose()
    found = [one for one in document["findings"] if one["probe"] == "disk"]
    assert [(one["level"], one["subject"], one["text"]) for one in found] == expected
    assert all("`du -xh" in one["do"] or "volume" in one["do"] for one in found)
    code, _ = program.health(program.diagnose(program.Machine(str(bench.root), 10), names=program.HEALTH_PROBES))
    assert code == (program.DRAIN if any(level == "action" for level, _, _ in expected) else program.HEALTHY)


AGENT_D = "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d"
ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
ens5\t00000000\t01001FAC\t0003\t0\t0\t512\t00000000\t0\t0\t0
"""


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.mark.parametrize(
    ("url", "resolv", "routes", "expected"),
    [
        ("http://127.0.0.1:{port}", "nameserver 169.254.169.253\n", ROUTES, ""),
        ("http://127.0.0.1:{port}", "", "", ""),  # an address needs neither
        (
            "http://127.0.0.1:1", "nameserver 169.254.169.253\n", ROUTES,
            "127.0.0.1:1 cannot be reached: Connection refused",
        ),
        (
            "https://logs.invalid", "# removed\n", "",
            "logs.invalid:443 cannot be reached: {resolution}; no name server in /etc/resolv.conf; no default route",
        ),
    ],
)  # fmt: skip
def test_network_of_the_agent(bench: Bench, listener: int, url: str, resolv: str, routes: str, expected: str) -> None:
    board(bench)
    bench.file(f"{AGENT_D}/file_base.json", json.dumps({"logs": {"endpoint_override": url.format(port=listener)}}))
    bench.file("/etc/resolv.conf", resolv)
    bench.file("/proc/net/route", routes)
    document = bench.diagnose()
    [text, *more] = [text for _, _, text, _ in of(document, "network")] or [""]
    for reason in ("Temporary failure in name resolution", "Name or service not known"):
        text = text.replace(reason, "{resolution}")
    assert (text, more) == (expected, []) and document["probes"]["network"]["status"] == "read"
    assert document["exit_code"] == (1 if expected else 0)


def test_busy_machine_has_no_broken_network(bench: Bench) -> None:
    bench.file(f"{AGENT_D}/file_base.json", json.dumps({"logs": {"endpoint_override": "http://127.0.0.1:1"}}))
    with pytest.raises(program.Unanswered, match="the machine is busy") as error:
        program.network(program.Machine(str(bench.root), 0.001))
    assert error.value.status == "timeout"


def test_endpoint_of_the_agent_is_the_proxy_s_or_the_region_s(bench: Bench) -> None:
    asked = program.Machine(str(bench.root), 10)
    bench.file("/run/cloud-init/instance-data.json", json.dumps({"v1": {"region": "cn-north-1"}}))
    bench.file(f"{AGENT_D}/file_base.json", "{}")
    assert program.endpoint_of(asked) == ("monitoring.cn-north-1.amazonaws.com.cn", 443)
    proxy = {"HTTPS_PROXY": "http://user:word@proxy.example:3128"}
    bench.file("/opt/aws/amazon-cloudwatch-agent/etc/env-config.json", json.dumps(proxy))
    assert program.endpoint_of(asked) == ("proxy.example", 3128)
