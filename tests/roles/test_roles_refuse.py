"""What the roles refuse before they trust or install it: keys, signatures and versions other than the planned ones.

The roles' own tasks run here, on this machine, as far as the refusal; nothing is installed.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.process import Completed, run

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
OTHER = "0123456789ABCDEF0123456789ABCDEF01234567"


@dataclass(frozen=True)
class Vendor:
    """A vendor with a key, and a package that is signed with it."""

    folder: Path
    fingerprint: str

    @property
    def key(self) -> str:
        return (self.folder / "key.asc").as_uri()

    @property
    def package(self) -> Path:
        return self.folder / "agent.deb"

    def gpg(self, *words: str | Path) -> Completed:
        return run(["gpg", "--homedir", self.folder / "gnupg", "--batch", "--quiet", *words], timeout=60)

    def sign(self, path: Path) -> str:
        signature = path.with_suffix(".sig")
        self.gpg("--yes", "--output", signature, "--detach-sign", path)
        return signature.as_uri()


@pytest.fixture(scope="module")
def vendor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vendor]:
    folder = tmp_path_factory.mktemp("vendor")
    (folder / "gnupg").mkdir(mode=0o700)
    made = Vendor(folder, "")
    made.gpg("--passphrase", "", "--quick-gen-key", "Vendor <vendor@localhost>", "ed25519", "sign", "never")
    listed = made.gpg("--with-colons", "--list-keys").stdout
    (folder / "key.asc").write_text(made.gpg("--armor", "--export").stdout)
    tree = folder / "tree" / "DEBIAN"
    tree.mkdir(parents=True)
    (tree / "control").write_text(
        "Package: amazon-cloudwatch-agent\nVersion: 1.2.3b4-1\nArchitecture: all\n"
        "Maintainer: x <x@localhost>\nDescription: x\n"
    )
    run(["dpkg-deb", "--build", "--root-owner-group", tree.parent, folder / "agent.deb"], timeout=60)
    fingerprint = next(line for line in listed.splitlines() if line.startswith("fpr")).split(":")[9]
    yield Vendor(folder, fingerprint)
    run(["gpgconf", "--homedir", folder / "gnupg", "--kill", "all"], timeout=60)


@pytest.fixture(scope="module")
def amazon_linux_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A PATH without what gnupg2-minimal of Amazon Linux 2023 lacks: gpgv, and every daemon of GnuPG."""
    folder = tmp_path_factory.mktemp("path")
    for program in Path("/usr/bin").iterdir():
        if program.name not in {"gpgv", "gpgv2", "gpg-agent", "gpgsm", "dirmngr", "keyboxd"}:
            (folder / program.name).symlink_to(program)
    return str(folder)


def play(tmp_path: Path, role: str, tasks_from: str, path: str = os.defpath, **variables: Any) -> Completed:
    """Runs one task file of a role on this machine, with the programs of `path`."""
    playbook = tmp_path / "play.yml"
    include = {"ansible.builtin.include_role": {"name": role, "tasks_from": tasks_from}}
    playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [include]}]))
    beside = Path(sys.executable).parent
    return run(
        [beside / "ansible-playbook", "--connection=local", "--inventory=here,", "-e", json.dumps(variables), playbook],
        timeout=120,
        env={"ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"), "ANSIBLE_NOCOLOR": "1", "PATH": path},
        check=False,
    )


def key_variables(vendor: Vendor, tmp_path: Path, fingerprint: str) -> dict[str, str]:
    return {
        "vendor_key_url": vendor.key,
        "vendor_key_fingerprint": fingerprint,
        "vendor_key_keyring": str(tmp_path / "keyring.gpg"),
        "__vendor_key_work": str(tmp_path / "work"),
        "ansible_python_interpreter": sys.executable,
    }


def test_another_key_is_refused(vendor: Vendor, tmp_path: Path) -> None:
    done = play(tmp_path, "vendor_key", "main", **key_variables(vendor, tmp_path, OTHER))
    assert done.returncode == 2
    assert f"expected key {OTHER}, got {vendor.fingerprint}" in done.stdout + done.stderr
    assert not (tmp_path / "keyring.gpg").exists()
    assert not (tmp_path / "work").exists()


def test_a_second_key_in_the_file_is_not_trusted(vendor: Vendor, tmp_path: Path, amazon_linux_path: str) -> None:
    """Intel's file holds former keys too. Only the planned key enters the keyring, also without an agent."""
    both = tmp_path / "both.asc"
    vendor.gpg("--passphrase", "", "--quick-gen-key", "Other <x@localhost>", "ed25519", "sign", "never")
    both.write_text(vendor.gpg("--armor", "--export").stdout)
    variables = key_variables(vendor, tmp_path, vendor.fingerprint) | {"vendor_key_url": both.as_uri()}
    done = play(tmp_path, "vendor_key", "main", path=amazon_linux_path, **variables)
    assert done.returncode == 0, done.stdout
    shown = vendor.gpg("--show-keys", "--with-colons", tmp_path / "keyring.gpg").stdout
    assert re.findall(r"^fpr:+([0-9A-F]{40}):", shown, re.MULTILINE) == [vendor.fingerprint]


def test_an_expired_key_is_refused(tmp_path: Path) -> None:
    """Its fingerprint is the planned one: what it signs today was not signed by the vendor."""
    home = tmp_path / "gnupg"
    home.mkdir(mode=0o700)
    gpg = ["gpg", "--homedir", home, "--batch", "--quiet", "--passphrase", ""]
    then = ["--faked-system-time", "20240101T000000", "--quick-gen-key", "Vendor <v@localhost>", "ed25519", "sign"]
    run([*gpg, *then, "2024-02-01"], timeout=60)
    (tmp_path / "key.asc").write_text(run([*gpg, "--armor", "--export"], timeout=60).stdout)
    listed = run([*gpg, "--with-colons", "--list-keys"], timeout=60).stdout
    run(["gpgconf", "--homedir", home, "--kill", "all"], timeout=60)
    fingerprint = next(line for line in listed.splitlines() if line.startswith("fpr")).split(":")[9]
    variables = key_variables(Vendor(tmp_path, fingerprint), tmp_path, fingerprint)
    done = play(tmp_path, "vendor_key", "main", **variables)
    assert done.returncode == 2
    assert f"key {fingerprint} has expired (expiry date: 2024-02-01)" in done.stdout + done.stderr
    assert not (tmp_path / "keyring.gpg").exists()


def agent_variables(vendor: Vendor, tmp_path: Path, signature: str, version: str) -> dict[str, str]:
    return key_variables(vendor, tmp_path, vendor.fingerprint) | {
        "cloudwatch_agent_version": version,
        "cloudwatch_agent_url": vendor.package.as_uri(),
        "cloudwatch_agent_signature_url": signature,
        "cloudwatch_agent_key_url": vendor.key,
        "cloudwatch_agent_key_fingerprint": vendor.fingerprint,
        "__cloudwatch_agent_keyring": str(tmp_path / "keyring.gpg"),
        "__cloudwatch_agent_package": str(tmp_path / "package.deb"),
        "__cloudwatch_agent_family": "debian",
    }


def test_package_with_a_signature_of_something_else_is_refused(vendor: Vendor, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("something else")
    done = play(
        tmp_path,
        "cloudwatch_agent",
        "package_install",
        **agent_variables(vendor, tmp_path, vendor.sign(other), "1.2.3"),
    )
    assert done.returncode == 2
    assert "BAD signature" in done.stdout + done.stderr
    assert "Read the package's version" not in done.stdout
    assert not (tmp_path / "package.deb").exists()


def test_package_of_another_version_is_refused(vendor: Vendor, tmp_path: Path, amazon_linux_path: str) -> None:
    """Key and signature are the planned ones here, and verified without gpgv; 1.2 is no short form of 1.2.3."""
    signature = vendor.sign(vendor.package)
    variables = agent_variables(vendor, tmp_path, signature, "1.2")
    done = play(tmp_path, "cloudwatch_agent", "package_install", path=amazon_linux_path, **variables)
    assert done.returncode == 2
    assert "expected version 1.2, got 1.2.3b4-1." in done.stdout + done.stderr
    assert "Install the package" not in done.stdout
    assert {path.name for path in tmp_path.iterdir()} == {"play.yml", "keyring.gpg"}
    run(["gpgv", "--keyring", tmp_path / "keyring.gpg", vendor.folder / "agent.sig", vendor.package], timeout=60)
