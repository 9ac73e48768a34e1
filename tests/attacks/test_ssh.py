"""Attempts 4 and 5: another machine in the place of a known host, and a password in an address."""

from __future__ import annotations

import getpass
from pathlib import Path

import pytest

from tests.attacks.conftest import GpuAmi
from tests.validator.conftest import Sshd

pytestmark = pytest.mark.slow
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIDCSMrv9dYnmunKAtjNZ6713aCYG46AOFtkLvEAeDGhR"


def address(sshd: Sshd) -> str:
    return f"ssh://{getpass.getuser()}@127.0.0.1:{sshd.port}"


@pytest.mark.parametrize(
    "words", [("validate",), ("events",), ("record", "--instance-type", "g5.xlarge"), ("attach", "plan")]
)
def test_a_changed_key_is_refused(words: tuple[str, ...], gpu_ami: GpuAmi, sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/known_hosts").write_text(f"[127.0.0.1]:{sshd.port} {OTHER}\n")
    if words[0] == "attach":
        recipe = Path(__file__).parents[2] / "variables/recipes/debian12-gpu.yml"
        assert gpu_ami("plan", recipe, "-o", "plan").returncode == 0
    done = gpu_ami(*words, "--host", address(sshd), "-i", sshd.key, env={"HOME": str(tmp_path)})
    said = (done.stderr + done.stdout).decode()
    assert done.returncode == 4 and f"differs from the one in {tmp_path}/.ssh/known_hosts:1" in said, said
    assert f"ssh-keygen -f {tmp_path}/.ssh/known_hosts -R '[127.0.0.1]:{sshd.port}'" in said


def test_first_contact_shows_the_fingerprint_and_records_it_where_asked(
    gpu_ami: GpuAmi, sshd: Sshd, tmp_path: Path
) -> None:
    known = tmp_path / "known"
    words = ("validate", "--host", address(sshd), "-i", sshd.key, "-k", "nothing", "--known-hosts", known)
    text = gpu_ami(*words, env={"HOME": str(tmp_path)}).stderr.decode()
    assert f"first contact with [127.0.0.1]:{sshd.port}: ssh-ed25519 key SHA256:" in text
    assert f"added to {known}" in text
    assert known.read_text() == f"[127.0.0.1]:{sshd.port} {sshd.host_key}\n"
    assert "first contact" not in gpu_ami(*words, env={"HOME": str(tmp_path)}).stderr.decode()


@pytest.mark.parametrize("command", ["validate", "events", "record", "attach"])
def test_a_password_in_an_address_is_refused(command: str, gpu_ami: GpuAmi, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("{}")
    done = gpu_ami(command, *(["."] if command == "attach" else []), "--host", "ssh://root:S3cret@127.0.0.1:1")
    assert done.returncode == 2 and b"S3cret" not in done.stdout + done.stderr
    assert command == "attach" or b"has a password in it" in done.stderr, done.stderr
    assert not any(b"S3cret" in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
