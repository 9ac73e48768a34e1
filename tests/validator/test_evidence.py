"""What is kept of a host: the vendor's bug report where a check has failed, little after a restart, all bounded."""

from __future__ import annotations

import gzip
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from onhost import support_bundle
from tests.scripted_host import Reply, table_host
from validator import evidence, file_account, remote, secret_shapes
from validator.results import Replica


def recorder(report: Reply, text: str = "") -> Any:
    """A host that has a bug report, and says the text, or the command's first word, to everything else."""
    return table_host(lambda command: report if "nvidia-bug-report.sh" in command else text or command.split()[0])


def keep(folder: Path, verdict: str, report: Reply, restarted: bool = False) -> list[str]:
    host = recorder(report)
    evidence.collect(host, folder, failed=verdict == "FAIL", restarted=restarted)
    return list(host.backend.asked)


# journalctl -b -o short-precise of Debian 12 (systemd 252), and of Ubuntu 22.04 (systemd 249), which names no units.
JOURNAL = """\
Nov 27 23:59:50.000001 host systemd[1]: Starting cloud-init.service - Initial cloud-init job...
Nov 27 23:59:51.000000 host systemd[1]: Starting ssh.service - OpenBSD Secure Shell server...
Nov 27 23:59:51.500000 host systemd[1]: Started ssh.service - OpenBSD Secure Shell server.
Nov 27 23:59:52.000000 host systemd[1]: Reached target network.target - Network.
Nov 28 00:00:08.421000 host systemd[1]: Finished cloud-init.service - Initial cloud-init job.
Nov 28 00:00:09.000000 host systemd[1]: Starting NVIDIA Persistence Daemon...
Nov 28 00:00:11.500000 host systemd[1]: Started NVIDIA Persistence Daemon.
Nov 28 00:00:12.000000 host systemd[1]: Starting chrony.service - chrony, an NTP client/server...
Nov 27 00:00:13.000000 host systemd[1]: Started chrony.service - chrony, an NTP client/server.
"""


def test_report_says_what_took_long_at_the_first_boot() -> None:
    time = "Startup finished in 6.994s (kernel) + 1min 2.191s (userspace) = 1min 9.186s \ngraphical.target reached"
    assert evidence.boot_facts(time, JOURNAL) == {
        "boot_time": "Startup finished in 6.994s (kernel) + 1min 2.191s (userspace) = 1min 9.186s",
        "slow_units": "cloud-init.service 18.4 s, NVIDIA Persistence Daemon 2.5 s",
    }
    assert evidence.boot_facts("Bootup is not yet finished", "") == {}


def test_boot_is_the_journal_s_where_systemd_does_not_answer() -> None:
    """systemd-analyze asks over the bus, with a deadline; the journal has what systemd wrote at the end of the boot."""
    line = "Nov 28 00:01:02.000001 host systemd[1]: Startup finished in 2.1s (kernel) + 9.5s (userspace) = 11.6s.\n"
    of_a_user = line.replace("systemd[1]", "systemd[812]").replace("11.6s", "0.2s")
    expected = {"boot_time": "Startup finished in 2.1s (kernel) + 9.5s (userspace) = 11.6s"}
    assert evidence.boot_facts("", of_a_user + line) == expected
    assert evidence.boot_facts("Bootup is not yet finished", of_a_user) == {}


def test_bug_report_of_a_failure(tmp_path: Path) -> None:
    asked = keep(tmp_path, "FAIL", (0, gzip.compress(b"report"), b""))
    assert gzip.decompress((tmp_path / evidence.BUG_REPORT).read_bytes()) == b"report"
    assert not (tmp_path / f"{evidence.BUG_REPORT}.txt").exists()
    assert len(asked) > len(evidence.COMMANDS)


@pytest.mark.parametrize("verdict", ["PASS", "UNPROVEN", "FLAKY"])
def test_no_bug_report_without_a_failure(tmp_path: Path, verdict: str) -> None:
    asked = keep(tmp_path, verdict, (0, b"report", b""))
    assert not any("nvidia-bug-report" in command for command in asked)
    assert not (tmp_path / evidence.BUG_REPORT).exists()


def test_host_without_the_script_leaves_no_file(tmp_path: Path) -> None:
    keep(tmp_path, "FAIL", (127, b"", b""))
    assert not list(tmp_path.glob(f"{evidence.BUG_REPORT}*"))


def test_hung_script_is_noted_in_a_separate_file(tmp_path: Path) -> None:
    half = gzip.compress(bytes(range(256)) * 40)[:-60]
    keep(tmp_path, "FAIL", (124, half, b"nvidia-bug-report.sh will now collect\n"))
    assert (tmp_path / evidence.BUG_REPORT).read_bytes() == half
    assert b"[exit status 124]" in (tmp_path / f"{evidence.BUG_REPORT}.txt").read_bytes()


def test_evidence_after_a_restart_is_of_that_boot(tmp_path: Path) -> None:
    keep(tmp_path, "FAIL", (127, b"", b""), restarted=True)  # of an earlier run
    keep(tmp_path, "PASS", (127, b"", b""), restarted=True)
    assert {path.name for path in tmp_path.iterdir()} == evidence.OF_EACH_BOOT
    assert evidence.COMMANDS.keys() > evidence.OF_EACH_BOOT and evidence.COMMANDS.keys() > evidence.OF_FILES


def test_what_a_check_has_read_is_not_collected_again(tmp_path: Path) -> None:
    """gpu-ami-diagnose starts nvidia-smi three times: 12 s of an emulated machine's processor beside other work."""
    host = recorder((127, b"", b""))
    evidence.collect(host, tmp_path, failed=False, kept={evidence.DIAGNOSIS_FILE: '{"schema": 1}'})
    assert (tmp_path / evidence.DIAGNOSIS_FILE).read_text() == '{"schema": 1}'
    assert evidence.COMMANDS[evidence.DIAGNOSIS_FILE] not in host.backend.asked
    assert {path.name for path in tmp_path.iterdir()} == {
        *(evidence.COMMANDS.keys() - evidence.OF_A_FAILURE),
        evidence.FACTS_FILE,
    }


@pytest.mark.parametrize(
    ("materials", "failed", "collected"),
    [
        ('{"packages": [{"name": "x"}]}', False, False),
        ('{"packages": [{"name": "x"}]}', True, True),
        ('{"packages": []}', False, True),
        ("\n[exit status 1] no python3", False, True),
        (None, False, True),
    ],
)
def test_materials_of_the_image_s_files_are_not_collected_again(
    tmp_path: Path, materials: str | None, failed: bool, collected: bool
) -> None:
    """The bill of materials is made of those of the files; on an emulated machine it is seconds of Python."""
    of_files, folder = tmp_path / "image-files", tmp_path / "machine"
    of_files.mkdir()
    if materials is not None:
        (of_files / evidence.MATERIALS_FILE).write_text(materials)
    host = recorder((127, b"", b""))
    evidence.collect(host, folder, failed=failed, image_files=of_files)
    assert (evidence.COMMANDS[evidence.MATERIALS_FILE] in host.backend.asked) is collected
    assert (folder / evidence.MATERIALS_FILE).exists() is collected


def test_failure_after_a_restart_collects_all_files(tmp_path: Path) -> None:
    keep(tmp_path, "FAIL", (127, b"", b""), restarted=True)
    assert {path.name for path in tmp_path.iterdir()} == evidence.COMMANDS.keys()


@pytest.mark.parametrize(
    ("script", "rc", "size"),
    [
        ('for last; do :; done; head -c 100 /dev/zero > "$last"; gzip "$last"', 0, 100),
        ('for last; do :; done; head -c 40000000 /dev/urandom > "$last"; echo done', 0, evidence.BUG_REPORT_BYTES),
        ("echo no driver; exit 3", 3, 0),
    ],
)
def test_the_command_itself(tmp_path: Path, script: str, rc: int, size: int) -> None:
    program = tmp_path / "nvidia-bug-report.sh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(["sh", "-c", evidence.BUG_REPORT_COMMAND], env=env, capture_output=True, timeout=60)
    assert done.returncode == rc
    content = gzip.decompress(done.stdout) if done.stdout[:2] == b"\x1f\x8b" and size == 100 else done.stdout
    assert len(content) == size
    assert [path.name for path in tmp_path.iterdir()] == ["nvidia-bug-report.sh"]  # nothing is left on the host


def test_the_command_without_the_script(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", evidence.BUG_REPORT_COMMAND], env={"PATH": str(tmp_path)}, capture_output=True
    )
    assert done.returncode == 127 and done.stdout == b""


def test_replicas_are_named() -> None:
    table = "yes\tamazon-cloudwatch-agent\t1.300071.0-1\tAmazon CloudWatch Agent (gpu-ami replica)\n"
    assert evidence.replicas(
        table, "nvidia (kernel module)\t550.163.01\tgpu-ami replica of the NVIDIA kernel module\n"
    ) == [
        Replica("amazon-cloudwatch-agent", "1.300071.0-1", "Amazon CloudWatch Agent (gpu-ami replica)"),
        Replica("nvidia (kernel module)", "550.163.01", "gpu-ami replica of the NVIDIA kernel module"),
    ]
    assert evidence.replicas("", "efa (kernel module)\t3.1.0g\tElastic Fabric Adapter (EFA)\n") == []


@pytest.mark.parametrize(
    ("tool", "prints"),
    [
        ("dpkg-query", "yes\tcuda\t1-1\tCUDA\n\tbash\t5\tshell\n"),
        ("rpm", "gpu-ami replica\tcuda\t1-1\tCUDA\nAmazon Linux\tbash\t5-1\tgpu-ami replica of none\n"),
    ],
)
def test_replicas_are_read_from_either_package_manager(tmp_path: Path, tool: str, prints: str) -> None:
    for name in ("sed", "grep"):
        (tmp_path / name).symlink_to(f"/bin/{name}")
    (tmp_path / "listing").write_text(prints)
    (tmp_path / tool).write_text(f'#!/bin/sh\nwhile read -r line; do echo "$line"; done <{tmp_path}/listing\n')
    (tmp_path / tool).chmod(0o755)
    command = ["/bin/sh", "-c", remote.text("replica_packages")]
    done = subprocess.run(command, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=True)
    assert evidence.replicas(done.stdout, "") == [Replica("cuda", "1-1", "CUDA")]


def test_evidence_contains_no_secrets() -> None:
    for name, command in evidence.COMMANDS.items():
        for secret in (
            "shadow",
            "environ",
            "id_rsa",
            "ssh_host",
            "credentials",
            "common-config",
            "user-data",
            "sudoers",
        ):
            # gpu-ami-diagnose takes host and port of the agent's proxy from it, without the user's name and password.
            assert secret not in command or (name, secret) == (evidence.DIAGNOSIS_FILE, "common-config"), name


def test_the_report_has_the_root_of_an_inventory(tmp_path: Path) -> None:
    assert evidence.inventory_facts(tmp_path) == {}
    header = {
        "schema": "gpu-ami/inventory/1", "time": 1, "os": "debian", "os_version": "12", "running": False,
        "accounts": {}, "groups": {},
    }  # fmt: skip
    etc = {"p": "/etc", "t": "d", "m": 0o755, "u": 0, "g": 0, "a": 1, "c": 2}
    lines = (json.dumps(row) for row in (header, etc, {"end": 1}))
    (tmp_path / file_account.KEPT_FILE).write_bytes(gzip.compress("\n".join(lines).encode()))
    entry = file_account.Entry("/etc", "d", 0o755, "0", "0")
    root = file_account.merkle_leaf(entry).hex()
    assert evidence.inventory_facts(tmp_path) == {"inventory_root": root, "inventory_entries": 1}


@pytest.mark.parametrize("written", ["", "[]", '{"packages": 3}', '{"modules": []}'])
def test_without_materials_no_package_is_counted(tmp_path: Path, written: str) -> None:
    (tmp_path / evidence.MATERIALS_FILE).write_text(written)
    assert evidence.packages_of(tmp_path) == []


def test_the_diagnosis_is_that_of_the_image(tmp_path: Path) -> None:
    """What a proof keeps is printed by the program that the image has, also on a machine that lacks it."""
    done = subprocess.run(["sh", "-c", evidence.COMMANDS[evidence.DIAGNOSIS_FILE]], capture_output=True, timeout=60)
    document = json.loads(done.stdout)
    assert document["schema"] == "gpu-ami/diagnosis/1" and document["exit_code"] == done.returncode


def test_a_bundle_for_support_has_files_of_the_evidence() -> None:
    of_proof = dict(evidence.COMMANDS)
    of_proof["nvidia-driver.txt"] += "; dkms status"  # a check of the proof has it
    assert support_bundle.FILES.items() <= of_proof.items()


SECRETS = {
    "AKIAIOSFODNN7EXAMPLE": "cloud-init: aws_access_key_id AKIAIOSFODNN7EXAMPLE",
    "wJalrXUtnFEMI": "export AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "hunter2": 'write_files: db_password: "hunter2"',
    "hunter3": "curl postgres://app:hunter3@db.internal/x",
    "ghp_0123456789abcdef0123": "git clone token ghp_0123456789abcdef0123",
    "eyJhbGciOi": "Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.sig",
    "MIIEpAIBAAKCAQEA": "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_secret_is_not_kept(tmp_path: Path, secret: str) -> None:
    """cloud-init's output and the journal have what user data printed."""
    text = f"before\n{SECRETS[secret]}\nkernel: NVRM: Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus.\n"
    evidence.collect(recorder((0, b""), text), tmp_path, failed=False)
    kept = (tmp_path / "journal.log").read_text()
    assert secret not in kept and secret not in (tmp_path / "cloud-init.log").read_text()
    assert kept.startswith("before\n") and "Xid (PCI:0000:00:1e): 79, GPU has fallen off the bus." in kept


@pytest.mark.parametrize("secret", SECRETS)
def test_no_file_of_the_evidence_has_a_secret(tmp_path: Path, secret: str) -> None:
    """JSON, XML and the vendor's compressed report, too; JSON can still be read."""
    text = json.dumps({"said": ["before", SECRETS[secret]], "n": 1})
    host = recorder(gzip.compress(f"{SECRETS[secret]}\n".encode() * 2), text)
    evidence.collect(host, tmp_path, failed=True, kept={"kept.json": text, "kept.log": SECRETS[secret]})
    for path in tmp_path.iterdir():
        data = path.read_bytes()
        content = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
        assert secret.encode() not in content, path.name
    for name in (evidence.MATERIALS_FILE, "agent-config.json", "kept.json"):
        assert json.loads((tmp_path / name).read_text())["said"][0] == "before"
    assert secret_shapes.HIDDEN in gzip.decompress((tmp_path / evidence.BUG_REPORT).read_bytes()).decode()


def test_a_report_that_is_no_gzip_leaves_its_digest(tmp_path: Path) -> None:
    keep(tmp_path, "FAIL", (0, b"password=hunter2", b""))
    assert not (tmp_path / evidence.BUG_REPORT).exists()
    note = (tmp_path / f"{evidence.BUG_REPORT}.txt").read_text()
    assert note.startswith("not gzip from byte 0") and "not kept; sha256:" in note and "hunter2" not in note


def test_a_link_in_the_evidence_is_replaced(tmp_path: Path) -> None:
    """A folder that somebody sent, in which a proof is repeated."""
    (tmp_path / "victim").write_text("of the user")
    (tmp_path / "out").mkdir()
    for name in ("journal.log", evidence.FACTS_FILE, evidence.BUG_REPORT):
        (tmp_path / "out" / name).symlink_to(tmp_path / "victim")
    keep(tmp_path / "out", "FAIL", (0, gzip.compress(b"report"), b""))
    assert (tmp_path / "victim").read_text() == "of the user"
    assert (tmp_path / "out/journal.log").read_text() == "journalctl"
