"""gpu-ami-diagnose on a booted machine of the local region: what it says of total failures, one after the other.

    pytest -m machine tests/machine/test_diagnose_live.py

One machine (g5.12xlarge, emulated) of the newest image of debian12-gpu that was built here, with this checkout's parser
and diagnosis. Each failure is injected, diagnosed and reverted; then the machine is as it was.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gpu_ami.faults import catalogue, trials
from onhost import diagnose as program
from tests.machine.event_parser_machine import booted
from tests.machine.guest import HOME, Guest

pytestmark = pytest.mark.machine
ALL_GPUS = "/sys/bus/pci/drivers/nvidia/0000:*"
SMI = "/usr/bin/nvidia-smi"
# nvidia-smi's answer after a GPU fell off the bus (public capture: ../transcripts and the cases of tests/onhost).
LOST = "Unable to determine the device handle for GPU0000:00:1b.0: Unknown Error"
AGENT = "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d"
ENDPOINT = f"grep -ohE 'http://[0-9.]+' {AGENT}/*.json | head -1 | cut -d/ -f3"
ENVIRONMENT = "/opt/aws/amazon-cloudwatch-agent/etc/env-config.json"


class Failure(NamedTuple):
    """inject: shell; "": the fault of this name in gpu_ami/faults/definitions. findings: (subject, text, step)."""

    name: str
    findings: tuple[tuple[str, str, str], ...]
    inject: str = ""
    revert: str = ""
    drains: bool = True


FAILURES = (
    Failure("driver-not-loaded", (("NVIDIA driver", "the kernel module nvidia is not loaded", "`modprobe nvidia`"),)),
    Failure(
        "stale-driver-loaded",
        (
            ("NVIDIA driver", "Driver/library version mismatch", "Reboot the instance so that the installed module"),
            ("NVIDIA driver", "the loaded kernel module is 535.261.03; on disk: 5", "install module and libraries"),
        ),
    ),
    Failure(
        "no GPU is bound",
        (
            ("NVIDIA driver", "the driver is loaded and can use no GPU: No devices were found", "`dmesg | grep NVRM`"),
        ),
        f"ls -d {ALL_GPUS} > /run/gpus; for gpu in {ALL_GPUS}; do echo ${{gpu##*/}} > ${{gpu%/*}}/unbind; done",
        "for gpu in $(cat /run/gpus); do echo ${gpu##*/} > ${gpu%/*}/bind; done; udevadm settle",
    ),
    Failure("gpu-off-the-bus", (("GPUs", "shows 3 of the 4 that its instance type has", "Stop and start"),)),
    Failure(
        "a device node is gone",
        (("GPU 0000:", "the device node /dev/nvidia3 is missing", "`nvidia-modprobe -c 3`"),),
        "mv /dev/nvidia3 /dev/kept3",
        "mv /dev/kept3 /dev/nvidia3",
    ),
    Failure(
        "the persistence daemon crashed",
        (("nvidia-persistenced.service", "it failed (signal)", "`journalctl -u nvidia-persistenced.service`"),),
        "systemctl kill -s KILL nvidia-persistenced; sleep 1",
        "systemctl reset-failed nvidia-persistenced; systemctl start nvidia-persistenced",
    ),
    Failure(
        "the disk is full",
        (("/", "the file system is full; free space: 0 of ", "`du -xh --max-depth=2 / | sort -h"),),
        "fallocate -l $(( $(df --output=avail -B1 / | tail -1) - 65536 )) /var/fill",
        "rm -f /var/fill",
    ),
    Failure(
        "no route leads out",
        (("network", " cannot be reached: ", "`ip route`"),),
        f"ip route add prohibit $({ENDPOINT})",
        f"ip route del prohibit $({ENDPOINT})",
        drains=False,
    ),
    Failure(
        "no name is resolved",
        (("network", "proxy.example:3128 cannot be reached: ", "/etc/resolv.conf"),),
        f"cp -p {ENVIRONMENT} /run/kept || true\n"
        f"echo '{{\"HTTPS_PROXY\": \"http://proxy.example:3128\"}}' > {ENVIRONMENT}",
        f"mv /run/kept {ENVIRONMENT} || rm {ENVIRONMENT}",
        drains=False,
    ),
    Failure(
        "the agent is dead",
        (("amazon-cloudwatch-agent.service", "is inactive (dead)", "start the unit"),),
        "systemctl stop amazon-cloudwatch-agent",
        "systemctl start amazon-cloudwatch-agent",
        drains=False,
    ),
)  # fmt: skip
LOST_GPU = Failure(  # its event stays
    "a GPU fell off the bus",
    (
        ("NVIDIA driver", f"a GPU is lost: {LOST}", "Stop and start the instance"),
        ("GPU 0000:00:", "XID 79: ", ""),
    ),
    "gpu=$(ls -d /proc/driver/nvidia/gpus/* | head -1)\n"
    "echo '79, pid=0, name=, GPU has fallen off the bus.' > $gpu/xid\n"
    f"printf '#!/bin/sh\\necho \"{LOST}\"\\nexit 255\\n' > /usr/local/lib/smi\n"
    f"chmod 755 /usr/local/lib/smi; mount --bind /usr/local/lib/smi {SMI}; sleep 3",
    f"umount {SMI}; sleep 5; rm /usr/local/lib/smi",
)


@pytest.fixture(scope="module")
def guest() -> Iterator[Guest]:
    with booted() as made:
        made.put(Path(program.__file__).read_bytes(), f"{HOME}/gpu-ami-diagnose")
        made.sudo(f"chmod 755 {HOME}/gpu-ami-diagnose; cp -p {HOME}/hwevents/readings.py {HOME}/readings.py")
        made.quiet()
        yield made


def diagnosed(guest: Guest) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(guest.sudo("gpu-ami-diagnose --json --seconds 60", 300, check=False))
    return document


def actions(document: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(one["subject"], one["text"], one["do"]) for one in document["findings"] if one["level"] == "action"]


def test_a_healthy_machine_is_healthy(guest: Guest) -> None:
    document = diagnosed(guest)
    assert actions(document) == [] and document["exit_code"] == 0, document
    assert guest.sudo("gpu-ami-diagnose --health --seconds 60", 300).startswith("healthy: i-")


def check(guest: Guest, failure: Failure) -> None:
    inject, revert = failure.inject, failure.revert
    if not inject:
        [fault] = catalogue.load(trials.folder(), [failure.name])
        inject, revert = fault.inject, fault.revert
    try:
        guest.sudo(inject)
        document = diagnosed(guest)
        line = guest.sudo("gpu-ami-diagnose --health --seconds 60", 300, check=False)
    finally:
        guest.sudo(revert)
    found = actions(document)
    print(f"\n{failure.name}", *found, line, sep="\n  ")
    for subject, text, step in failure.findings:
        assert any(one[0].startswith(subject) and text in one[1] and step in one[2] for one in found), (text, found)
    assert document["exit_code"] == 1
    assert line.startswith("drain: " if failure.drains else "healthy: "), line


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name.replace(" ", "-"))
def test_a_total_failure_is_named_with_a_step(guest: Guest, failure: Failure) -> None:
    check(guest, failure)


def test_reverted_failures_leave_no_finding(guest: Guest) -> None:
    assert actions(diagnosed(guest)) == []


def test_a_gpu_that_fell_off_the_bus_is_named_by_the_tools_and_by_its_event(guest: Guest) -> None:
    check(guest, LOST_GPU)
