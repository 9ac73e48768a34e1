"""Recorded transcripts: without names, ids and addresses, and usable as a host afterwards."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from gpu_ami import cli
from gpu_ami.validate import transcripts
from tests.validator.conftest import Sshd, sshd  # noqa: F401  (sshd is a fixture)
from validator.transport import transcript

UUID = "513536b6-7d19-9063-b049-1e69664bb298"


@pytest.mark.parametrize(
    ("text", "scrubbed"),
    [
        (
            f"GPU 0: NVIDIA A10G (UUID: GPU-{UUID})",
            "GPU 0: NVIDIA A10G (UUID: GPU-00000000-0000-4000-8000-000000000000)",
        ),
        (f"{UUID} {UUID.upper()}", "00000000-0000-4000-8000-000000000000 " * 2),
        ("i-0dcf246b9a7d5f066 in ami-0014dd7b", "i-0123456789abcdef0 in ami-0123456789abcdef0"),
        ("10.0.180.136, 127.0.0.1 and 580.95.05", "192.0.2.1, 127.0.0.1 and 580.95.05"),
        ("link/ether 06:1f:ab:00:12:9c", "link/ether 02:00:00:00:00:01"),
        ("node_guid fe80:0000:0000:0000:0000:0000:0000:0001", "node_guid 2001:db8::1"),
        ("ip-10-0-59-41.ec2.internal", "ip-192-0-2-1.ec2.internal"),
        ("arn:aws:iam::210987654321:role/x", "arn:aws:iam::123456789012:role/x"),
        ("<serial>1650522003820</serial>", "<serial>0</serial>"),
        (
            "<processes><process_info><pid>7</pid><name>/home/ann/x</name></process_info></processes>",
            "<processes></processes>",
        ),
        ("gpu-node-7: owned by ann, annual", "host: owned by host, annual"),
        ("00000000:10:1C.0 0x10de 20b0 CUDA 12.2 NV12", "00000000:10:1C.0 0x10de 20b0 CUDA 12.2 NV12"),
    ],
)
def test_names_ids_and_addresses_are_replaced(text: str, scrubbed: str) -> None:
    scrub = transcripts.Scrub(("gpu-node-7", "ann"), {})
    assert scrub(text).strip() == scrubbed.strip()


@pytest.mark.slow
def test_a_host_over_ssh_is_recorded_and_can_be_asked_again(
    sshd: Sshd,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = f"ssh://root@127.0.0.1:{sshd.port}"
    words = ["record", "-q", "--json", "--host", url, "-i", str(sshd.key), "--instance-type", "g5.xlarge"]
    assert cli.main([*words, "--transcript", str(tmp_path / "mine")]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "transcript": f"{tmp_path}/mine/transcript.yml",
        "machine": "g5.xlarge",
    }
    document = yaml.safe_load((tmp_path / "mine/transcript.yml").read_text())
    assert document["values"][0]["commands"]["uname -r"].strip()
    machine = transcript.Transcript(tmp_path / "mine")
    assert machine.answer("cat /etc/os-release")[1] == Path("/etc/os-release").read_text()
    assert machine.answer("ls /lib/modules")[0] == (0 if Path("/lib/modules").exists() else 2)  # known either way
    assert machine.values.share == 1.0 and machine.values.packages_complete
    with pytest.raises(transcript.Missing):
        machine.answer("cat /etc/shadow")
    machine.close()


def test_a_transcript_is_of_a_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["record", "-q", "--ami", "ami-1", "--transcript", "x"]) == 2
    assert "--transcript needs --host" in capsys.readouterr().err
