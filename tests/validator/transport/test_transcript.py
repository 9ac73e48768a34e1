"""A transcript as a host: what it answers, and that nothing is answered that it does not have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import testinfra.host
import yaml

from validator.transport import transcript, transcript_values

GROUP = {
    "from": "capture",
    "files": {"/etc/os-release": "ID=ubuntu\n", "/sys/module/efa/version": "3.3.0g\n"},
    "listed": ["/etc/cdi"],
    "absent": ["/opt/nothing"],
    "commands": {"uname -r": "7.0.0-1014-aws\n", "nvidia-smi -L": {"stdout": "No devices were found\n", "status": 6}},
    "packages": {"efa": "3.3.0-1.amzn1", "dpkg": "1"},
    "held": ["efa"],
    "units": {"a.service": {"ActiveState": "active", "UnitFileState": "disabled", "NRestarts": "0"}},
    "pci": ["0000:00:1e.0 0x10de 0x2237 0x030200 nvidia"],
    "rdma": {"rdmap0s6": "efa", "ibp5s0": "mlx5_core"},
    "nodes": {"/dev/nvidia0": 666},
}


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., transcript.Transcript]]:
    made: list[transcript.Transcript] = []

    def of(*groups: dict[str, object], **others: object) -> transcript.Transcript:
        sources = {
            "capture": {"source": "https://vendor.example/1", "date": "2026-11-27"},
            "made": {"composed": "a test"},
        }
        document = {
            "machine": "g5.xlarge",
            "shows": "x",
            "sources": sources,
            "values": list(groups) or [GROUP],
            **others,
        }
        (tmp_path / transcript_values.FILE).write_text(yaml.safe_dump(document))
        made.append(transcript.Transcript(tmp_path))
        return made[-1]

    yield of
    for each in made:
        each.close()


@pytest.mark.parametrize(
    ("command", "status", "printed"),
    [
        ("cat /etc/os-release", 0, "ID=ubuntu\n"),
        ("uname -r", 0, "7.0.0-1014-aws\n"),
        ("uname -r | cut -d- -f3", 0, "aws\n"),
        ("nvidia-smi -L", 6, "No devices were found\n"),
        ("test -e /opt/nothing/more", 1, ""),
        ("ls /etc/cdi", 0, ""),
        ("cat /etc/cdi/a.yaml", 1, ""),
        ("readlink -f /sys/bus/pci/devices/0000:00:1e.0/driver", 0, "/sys/bus/pci/drivers/nvidia\n"),
        ("for d in /sys/class/infiniband/*; do basename $(readlink $d/device/driver); done", 0, "mlx5_core\nefa\n"),
        ("dpkg-query -W -f '${Package} ${db:Status-Status} ${Version}\\n' efa", 0, "efa installed 3.3.0-1.amzn1\n"),
        ("apt-mark showhold", 0, "efa\n"),
        ("systemctl is-enabled a", 1, "disabled\n"),
        ("systemctl show -p NRestarts -p ActiveState a.service", 0, "NRestarts=0\nActiveState=active\n"),
        ("[ -c /dev/nvidia0 ] && echo yes", 0, "yes\n"),
    ],
)
def test_what_it_has_is_answered(
    make: Callable[..., transcript.Transcript], command: str, status: int, printed: str
) -> None:
    assert make().answer(command)[:2] == (status, printed)


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("cat /etc/hosts", "/etc/hosts"),
        ("grep -r x /etc/cdi /var/run/cdi", "/var/run/cdi"),
        ("cat /etc/*.conf", "what is in /etc"),
        ("dmesg --notime", "the output of dmesg"),
        ("nvidia-smi -q -x", "the output of nvidia-smi -q -x"),
        ("true; lsmod | head", "the output of lsmod"),
        ("dpkg-query -W -f '${Package} ${db:Status-Status} ${Version}\\n' other", "the output of dpkg-query"),
        ("systemctl show -p Result a.service", "the output of systemctl"),
        ("command -v nvidia-persistenced", "the programs of the machine"),
        ("python3 -IS -c 'print(1)'", "the programs of the machine"),
        ("env -i PATH=/usr/bin ldd -r /etc/os-release", "the output of env"),
    ],
)
def test_what_it_does_not_have_is_said(make: Callable[..., transcript.Transcript], command: str, missing: str) -> None:
    with pytest.raises(transcript.Missing, match=missing.replace("*", r"\*")):
        make().answer(command)


def test_a_check_that_asks_for_more_is_unproven(make: Callable[..., transcript.Transcript], tmp_path: Path) -> None:
    make()
    host = testinfra.host.Host(transcript.TranscriptBackend(str(tmp_path).replace("/", "%2F")))
    assert host.run("cat %s", "/etc/os-release").stdout == "ID=ubuntu\n"
    with pytest.raises(pytest.skip.Exception, match="not in the transcript: /etc/hosts"):
        host.run("cat /etc/hosts")
    transcript.close_all()


def test_nothing_is_written_outside_and_nothing_of_this_machine_is_read(
    make: Callable[..., transcript.Transcript],
) -> None:
    machine = make()
    for command in ("cat /etc/passwd", "ls /usr/bin", "cat /proc/version", "/usr/bin/id", "id"):
        with pytest.raises(transcript.Missing):
            machine.answer(command)


def test_share_is_that_of_values_with_a_source(make: Callable[..., transcript.Transcript]) -> None:
    sourced = {"from": "capture", "packages": {"a": "1", "b": "2"}, "held": ["a"]}
    made = {"from": "made", "files": {"/etc/x": "y"}}
    machine = make(sourced, made)
    assert machine.values.share == 0.75
    assert machine.is_sourced("apt-mark showhold") and not machine.is_sourced("cat /etc/x")


@pytest.mark.parametrize(
    ("made", "command", "sourced"),
    [
        # One composed value in a document makes a verdict about the document one about a replica.
        ({"gpus": {"common": {"fabric/state": "Completed"}}}, "nvidia-smi -q -x", False),
        ({"gpus": {"common": {"product_name": "NVIDIA L4"}}}, "nvidia-smi -q -x", True),  # overridden by the capture
        ({"gpus": {"common": {"fabric/state": "Completed"}}}, "nvidia-smi -L", True),
        ({"topology": "NV18"}, "nvidia-smi topo -m", False),
        ({"nodes": {"/dev/nvidia0": 666}}, "stat -c %a /dev/nvidia*", False),
        ({"nodes": {"/dev/nvidia0": 666}}, "cat /sys/module/efa/version", True),
        ({"pci": ["0000:00:1e.0 0x10de 0x2237 0x030200 nvidia"]}, "cat /sys/bus/pci/devices/*/vendor", False),
        ({"listed": ["/etc/cdi"]}, "ls /etc/cdi", False),
        ({"listed": ["/sys/module/efa"]}, "cat /sys/module/efa/version", True),
        ({"listed": ["/sys/module/efa"]}, "test -e /sys/module/efa/taint", False),
        ({"absent": ["/etc/nccl.conf"]}, "test -e /etc/nccl.conf", False),
        ({"units": {"a.service": {"ActiveState": "active"}}}, "systemctl is-active a", False),
        ({"rdma": {"rdmap0s6": "efa"}}, "readlink /sys/class/infiniband/*/device/driver", False),
    ],
)
def test_an_answer_is_sourced_where_nothing_in_it_is_composed(
    make: Callable[..., transcript.Transcript], made: dict[str, object], command: str, sourced: bool
) -> None:
    common = {"product_name": "NVIDIA L40S", "pci/pci_bus_id": "00000000:30:00.0"}
    capture = {
        "gpus": {"driver": "595.91.07", "count": 1, "common": common},
        "files": {"/sys/module/efa/version": "3\n"},
    }
    machine = make({"from": "made", **made}, {"from": "capture", **capture})
    assert machine.is_sourced(command) is sourced


def test_gpus_are_written_once_and_shown_as_nvidia_smi_does(make: Callable[..., transcript.Transcript]) -> None:
    mig = [{"profile": "1g.10gb", "uuid": "MIG-1", "gpu_instance_id": 3}]
    common = {"product_name": "NVIDIA A<1>", "fabric/state": "N/A", "mig_devices": mig}
    gpus = {"count": 2, "driver": "580.1", "common": common, "each": [{"uuid": "GPU-a"}]}
    machine = make({"from": "capture", "gpus": gpus, "topology": "NV12"})
    listed = machine.answer("nvidia-smi -L")[1].splitlines()
    assert listed[:2] == ["GPU 0: NVIDIA A<1> (UUID: GPU-a)", "  MIG 1g.10gb     Device  0: (UUID: MIG-1)"]
    xml = machine.answer("nvidia-smi -q -x")[1]
    assert xml.count("<product_name>NVIDIA A&lt;1></product_name>") == 2 and "<fabric>\n<state>N/A</state>" in xml
    assert machine.answer("nvidia-smi --query-gpu=index,uuid --format=csv,noheader")[1].startswith("0, GPU-a\n1, ")
    assert "\t X \tNV12\t" in machine.answer("nvidia-smi topo -m")[1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"values": [{"from": "nobody"}]}, "values 1: unknown source 'nobody'"),
        ({"values": [{"from": "capture", "fils": {}}]}, "values 1: unknown key fils"),
        ({"other": 1}, "expected machine, shows, sources, values"),
    ],
)
def test_mistakes_of_a_transcript(
    make: Callable[..., transcript.Transcript], changed: dict[str, object], message: str
) -> None:
    with pytest.raises(transcript_values.TranscriptError, match=message):
        make(**changed)


def test_what_cuda_showed_has_an_origin_of_its_own(make: Callable[..., transcript.Transcript]) -> None:
    shown = {"uuids": ["1"], "nodes": ["/dev/nvidia0"]}
    values = make(
        {"from": "capture", "compute": {"container": shown}},
        {"from": "made", "compute": {"container after daemon-reload": shown | {"uuids": []}}},
        only=["container_toolkit::test_container_keeps_its_gpus"],
    ).values
    assert values.compute["container after daemon-reload"]["uuids"] == []
    assert values.origins["compute container"] is False
    assert values.origins["compute container after daemon-reload"] is True
    assert values.only == ("container_toolkit::test_container_keeps_its_gpus",)
