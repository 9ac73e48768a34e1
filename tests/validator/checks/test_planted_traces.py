"""Traces that an image can have: each is planted in a tree, in which the check finds nothing without it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scripted_host import Reply, on_this_machine
from tests.validator.checks.conftest import PLAN, Judge
from validator.checks import image
from validator.plan import OBSERVED, as_plan

# What `validate --root` says of somebody's AMI, without a recipe.
AS_FOUND = PLAN | {"origin": OBSERVED, "observed": {"request": {}, "absent": [], "absent_by": [], "captures": []}}
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END OPENSSH PRIVATE KEY-----\n"
BOTH, PLANNED_ALONE = ("FAIL", "FAIL"), ("FAIL", "UNPROVEN")

# check, path, content, verdicts as planned and as found
TRACES: list[tuple[Any, str, str | bytes, tuple[str, str]]] = [
    (image.test_no_private_key, "/opt/x/.ssh/deploy", KEY, BOTH),
    (image.test_no_private_key, "/srv/tls/server.key", KEY.replace("OPENSSH", "RSA"), BOTH),
    (image.test_no_private_key, "/var/lib/dkms/mok.key", KEY.replace("OPENSSH ", ""), PLANNED_ALONE),
    (image.test_no_state_of_a_machine, "/var/lib/dhcp/dhclient.ens5.leases", 'lease { interface "ens5"; }', BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/dhclient/dhclient--eth0.lease", "lease {}", BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/NetworkManager/internal-1-ens5.lease", "ADDRESS=10.0.0.4", BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/systemd/network/dhcp-server-lease/br0", "{}", BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/systemd/random-seed", b"\x01" * 512, BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/systemd/credential.secret", b"\x01" * 4096, BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/amazon/ssm/registration", '{"ManagedInstanceID":"mi-0"}', BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/amazon/ssm/Vault/Store/EC2RegistrationKey", "{}", BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/ecs/data/agent.db", b"\x00bolt", BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/docker/engine-id", "9f1c", PLANNED_ALONE),
    (image.test_no_state_of_a_machine, "/var/lib/NetworkManager/secret_key", b"nm-key\x01", PLANNED_ALONE),
    (image.test_no_log, "/var/log/lastlog", b"\x00" * 292 + b"\x65\x7a\x11\x01pts/0", BOTH),
    (image.test_no_log, "/var/log/wtmp", b"\x07" * 384, BOTH),
]
# What healthy images have.
HEALTHY: dict[str, str | bytes] = {
    "/var/log/lastlog": b"\x00" * 292_000,
    "/var/log/faillog": b"",
    "/var/lib/dhcp/dhclient.leases": "",
    "/var/lib/amazon/ssm/ipc/x": "",
    "/var/lib/systemd/network/.keep": "",
    "/var/lib/NetworkManager/NetworkManager.state": "[main]\nNetworkingEnabled=true\n",
    "/opt/conda/lib/python3.12/test/certdata/keycert.pem": KEY,
    "/opt/parallelcluster/lib/python3.12/site-packages/tornado/test/test.key": KEY,
    "/opt/x/id_rsa.pub": "ssh-rsa AAAA x\n",
}
FOLDERS = ("/etc", "/root", "/home", "/opt", "/srv", "/usr/local", "/var/lib", "/var/log", "/boot")


def write(root: Path, path: str, content: str | bytes) -> None:
    file = root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for folder in FOLDERS:
        (tmp_path / folder.lstrip("/")).mkdir(parents=True, exist_ok=True)
    for path, content in HEALTHY.items():
        write(tmp_path, path, content)
    return tmp_path


def in_tree(root: Path) -> Callable[[str], Reply]:
    """Runs the check's commands on this machine, with the paths of the tree in place of the system's.

    No package owns a file of it.
    """
    folders = re.compile(r"(?<![\w.*/}])/(?=(?:boot|etc|home|opt|root|srv|usr/local|var)\b)")

    def answer(command: str) -> Reply:
        if "of no package" in command:
            paths = re.findall(r"^for f in (.*); do$", command, re.MULTILINE)[0].split()
            return "".join(f"of no package: {path}\n" for path in paths)
        reply = on_this_machine(folders.sub(f"{root}/", command))
        assert isinstance(reply, tuple) and isinstance(reply[1], bytes)
        return reply[0], reply[1].replace(str(root).encode(), b""), reply[2]

    return answer


@pytest.mark.parametrize(("check", "path", "content", "verdicts"), TRACES)
def test_trace_is_seen(
    judge: Judge, tree: Path, check: Any, path: str, content: str | bytes, verdicts: tuple[str, str]
) -> None:
    for plan, verdict in zip((PLAN, AS_FOUND), verdicts, strict=True):
        before = judge(check, in_tree(tree), plan=as_plan(plan))
        assert before.verdict == "PASS", before
        kept = (tree / path.lstrip("/")).read_bytes() if (tree / path.lstrip("/")).exists() else None
        write(tree, path, content)
        found = judge(check, in_tree(tree), plan=as_plan(plan))
        assert (found.verdict, path in found.message) == (verdict, True), found
        (tree / path.lstrip("/")).unlink()
        if kept is not None:
            write(tree, path, kept)
