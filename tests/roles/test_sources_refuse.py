"""What the roles refuse of an installer and of a git repository before anything of it is unpacked or run.

The roles' own tasks run here, on this machine, as far as the refusal; nothing is installed. Each damage is a host of
one play, because an Ansible that starts costs more than all of them.
"""

from __future__ import annotations

import datetime
import json
import re
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.build.ansible import ansible_settings
from gpu_ami.build.layering import included_roles
from gpu_ami.process import run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
VERSION = "1.38.0"
# A start of Python for each host instead of one for each task.
FEW_STARTS = dict(setting.split("=", 1) for setting in ansible_settings(slow_python=True))
MOVED = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Key:
    """A signing key of our own, in a home of its own; `when`: the time at which gpg believes itself."""

    home: Path
    when: str = ""

    def gpg(self, *words: str | Path) -> str:
        past = ["--faked-system-time", self.when] if self.when else []
        return run(["gpg", "--homedir", self.home, "--batch", "--quiet", *past, *words], timeout=60).stdout

    @property
    def fingerprint(self) -> str:
        listed = self.gpg("--with-colons", "--list-keys")
        return next(line for line in listed.splitlines() if line.startswith("fpr")).split(":")[9]

    def export(self, path: Path) -> Path:
        path.write_text(self.gpg("--armor", "--export"))
        return path

    def sign(self, file: Path, signature: Path) -> Path:
        self.gpg("--yes", "--output", signature, "--detach-sign", file)
        return signature


def make_key(home: Path, days: str = "never", when: str = "") -> Key:
    home.mkdir(mode=0o700)
    key = Key(home, when)
    key.gpg("--passphrase", "", "--quick-gen-key", f"{home.name} <x@localhost>", "ed25519", "sign", days)
    return key


def make_installer(folder: Path) -> Path:
    """An archive in the vendor's layout; its script would leave a trace."""
    tree = folder / "aws-efa-installer"
    tree.mkdir()
    (tree / "env.sh").write_text(f"EFA_INSTALLER_VERSION={VERSION}\n")
    (tree / "efa_installer.sh").write_text(f"#!/bin/sh\ntouch {folder}/has-run\n")
    (tree / "efa_installer.sh").chmod(0o755)
    with tarfile.open(folder / "installer.tar.gz", "w:gz") as archive:
        archive.add(tree, "aws-efa-installer")
    return folder / "installer.tar.gz"


def play(
    folder: Path, role: str, tasks_from: str, hosts: Mapping[str, Mapping[str, Any]], internals: Mapping[str, str]
) -> dict[str, str]:
    """Runs one task file of a role on this machine, once a host; the last failure's message of each.

    internals: the role's own variables, changed so that everything is written below `folder`.
    """
    playbook, inventory = folder / f"{role}.yml", folder / f"{role}.json"
    include = {"ansible.builtin.include_role": {"name": role, "tasks_from": tasks_from}}
    playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [include]}]))
    usual = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory.write_text(json.dumps({"all": {"hosts": {name: {**usual, **given} for name, given in hosts.items()}}}))
    command = [Path(sys.executable).parent / "ansible-playbook", f"--inventory={inventory}", "--forks=8"]
    command += ["--extra-vars", json.dumps(internals)]
    done = run(
        [*command, playbook],
        timeout=300,
        env={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", **FEW_STARTS},
        check=False,
    )
    assert done.returncode == 2, done.stdout
    fatal = re.findall(r"^fatal: \[(\S+)\]: FAILED! => (\{.*\})$", done.stdout, re.MULTILINE)
    return {name: str(json.loads(said).get("msg", "")) for name, said in fatal}


@dataclass(frozen=True)
class Tried:
    """What became of the damaged installers. said: message by damage."""

    folder: Path
    fingerprint: str
    said: dict[str, str]


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Tried:
    folder = tmp_path_factory.mktemp("efa")
    vendor, other = make_key(folder / "vendor"), make_key(folder / "other")
    past = (datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)).strftime("%Y%m%dT%H%M%S")
    old = make_key(folder / "old", "1d", past)
    archive = make_installer(folder)
    data = archive.read_bytes()
    (folder / "tampered.tar.gz").write_bytes(
        data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 1]) + data[len(data) // 2 + 1 :]
    )
    (folder / "half.tar.gz").write_bytes(data[: len(data) // 2])
    good = {
        "url": archive.as_uri(),
        "signature_url": vendor.sign(archive, folder / "good.sig").as_uri(),
        "key_url": vendor.export(folder / "vendor.asc").as_uri(),
        "key_fingerprint": vendor.fingerprint,
        "version": VERSION,
        "mode": "full",
    }
    damages: dict[str, dict[str, str]] = {
        "tampered": {"url": (folder / "tampered.tar.gz").as_uri()},
        "half": {"url": (folder / "half.tar.gz").as_uri()},
        "missing": {"url": (folder / "missing.tar.gz").as_uri()},
        "unsigned": {"signature_url": (folder / "missing.sig").as_uri()},
        "other-version": {"version": "1.50.0"},
        "other-key": {"key_url": other.export(folder / "other.asc").as_uri()},
        "other-signature": {"signature_url": other.sign(archive, folder / "other.sig").as_uri()},
        "expired": {"signature_url": old.sign(archive, folder / "old.sig").as_uri()},
    }
    # By its exit status alone gpg calls that one good: the key was in the keyring before it expired.
    old.gpg("--output", folder / "expired.gpg", "--export")
    hosts = {name: {f"efa_{key}": value for key, value in (good | damage).items()} for name, damage in damages.items()}
    own = f"{folder}/{{{{ inventory_hostname }}}}"
    internals = {"__efa_keyring": f"{own}.gpg", "__efa_work": f"{own}.work", "__vendor_key_work": f"{own}.key"}
    said = play(folder, "efa", "installer", hosts, internals | {"__efa_family": "debian"})
    for key in (vendor, other, old):
        run(["gpgconf", "--homedir", key.home, "--kill", "all"], timeout=60)
    return Tried(folder, str(good["key_fingerprint"]), said)


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("tampered", "BAD signature"),
        ("half", "BAD signature"),
        ("missing", '"Download the installer and its signature" failed'),
        ("unsigned", '"Download the installer and its signature" failed'),
        ("other-version", "expected version 1.50.0, got 1.38.0"),
        ("other-key", "expected key"),
        ("other-signature", "No public key"),
        ("expired", '"Verify the signature with the vendor\'s key" failed'),
    ],
)
def test_installer_is_refused(tried: Tried, damage: str, why: str) -> None:
    said = tried.said[damage]
    version = "1.50.0" if damage == "other-version" else VERSION
    assert re.match(rf"file://\S+: expected the EFA installer {re.escape(version)}, signed \(file://", said), said
    assert f"with key {tried.fingerprint}" in said
    assert why in said, said


def test_nothing_of_a_refused_installer_ran_or_stayed(tried: Tried) -> None:
    assert len(tried.said) == 8
    assert not (tried.folder / "has-run").exists()
    assert list(tried.folder.glob("*.work")) == []


def test_source_is_refused(tmp_path: Path) -> None:
    """A tag that was moved, and one that is not there."""
    repository = tmp_path / "repository"
    git = ["git", "-C", repository, "-c", "user.name=x", "-c", "user.email=x@localhost"]
    run(["git", "init", "--quiet", "--initial-branch=main", repository], timeout=60)
    (repository / "autogen.sh").write_text(f"#!/bin/sh\ntouch {tmp_path}/has-run\n")
    run([*git, "add", "."], timeout=60)
    run([*git, "commit", "--quiet", "-m", "one"], timeout=60)
    run([*git, "tag", "v1"], timeout=60)
    found = run([*git, "rev-parse", "v1"], timeout=60).stdout.strip()
    given = {"vendor_source_url": repository.as_uri(), "vendor_source_commit": MOVED}
    hosts = {name: given | {"vendor_source_tag": tag} for name, tag in (("moved", "v1"), ("missing", "v2"))}
    folder = {"vendor_source_folder": f"{tmp_path}/{{{{ inventory_hostname }}}}"}
    said = play(tmp_path, "vendor_source", "main", hosts, folder)
    assert f"tag v1: expected commit {MOVED}, got {found}" in said["moved"]
    assert "v2" in said["missing"]
    assert not (tmp_path / "has-run").exists()


def test_grid_installer_is_refused(tmp_path: Path) -> None:
    """Without a digest, and with another one: nothing of it runs, not even its check of itself."""
    (tmp_path / "grid.run").write_text(f"#!/bin/sh\ntouch {tmp_path}/has-run\n")
    url = (tmp_path / "grid.run").as_uri()
    given = {"nvidia_driver_url": url, "nvidia_driver_version": "580.65.06", "nvidia_driver_flavour": "open"}
    hosts = {"none": given | {"nvidia_driver_sha256": ""}, "other": given | {"nvidia_driver_sha256": "0" * 64}}
    own = f"{tmp_path}/{{{{ inventory_hostname }}}}.work"
    internals = {"__nvidia_driver_grid_work": own, "__nvidia_driver_grid_run": f"{own}/grid.run"}
    said = play(tmp_path, "nvidia_driver", "grid_install", hosts, internals)
    assert said["none"].startswith(f"nvidia_driver_sha256: expected the SHA-256 digest of {url}, got none.")
    assert f"with the digest sha256:{'0' * 64}" in said["other"] and "failed" in said["other"]
    assert not (tmp_path / "has-run").exists()
    assert list(tmp_path.glob("*.work")) == []


@pytest.mark.parametrize("role", ["gdrcopy", "nccl_tests", "ofi_nccl"])
def test_what_is_built_from_a_tag_is_cloned_by_one_role(role: str) -> None:
    assert "vendor_source" in included_roles(ROOT / "roles" / role)
    text = "".join(path.read_text() for path in (ROOT / "roles" / role / "tasks").glob("*.yml"))
    assert "ansible.builtin.git" not in text
