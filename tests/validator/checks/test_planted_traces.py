"""Traces that an image can have: each is planted in a tree, in which the check finds nothing without it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scripted_host import Reply, on_this_machine
from tests.validator.checks.conftest import PLAN, Judge
from validator.checks import hygiene, image, startup
from validator.plan import OBSERVED, as_plan

# What `validate --root` says of somebody's AMI, without a recipe.
PLANNED = PLAN | {"node": {}, "kernel": {"version": "6.1"}}
AS_FOUND = PLANNED | {"origin": OBSERVED, "observed": {"request": {}, "absent": [], "absent_by": [], "captures": []}}
KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEA\n-----END OPENSSH PRIVATE KEY-----\n"
BOTH, PLANNED_ALONE = ("FAIL", "FAIL"), ("FAIL", "UNPROVEN")
ACCOUNTS = (
    "root:x:0:0:root:/root:/bin/bash\ngames:x:5:60::/:/usr/sbin/nologin\nadmin:x:1000:1000::/home/admin:/bin/bash\n"
)
FORMER = "root:x:0:\nbuild:x:1001:\n"  # of group-
# As update-grub writes it; submenu and ids as on Debian and Ubuntu, whose recovery entries are part of it.
GRUB = """\
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
else
   set default="0"
fi
function savedefault {
  if [ -z "${boot_once}" ]; then
    saved_entry="${chosen}"
  fi
}
menuentry 'Debian GNU/Linux' --class debian $menuentry_id_option 'gnulinux-simple-1' {
	linux	/boot/vmlinuz-6.1.0-56-cloud-amd64 root=UUID=1 ro console=ttyS0
	initrd	/boot/initrd.img-6.1.0-56-cloud-amd64
}
submenu 'Advanced options' $menuentry_id_option 'gnulinux-advanced-1' {
	menuentry 'Linux 6.1.0-56' --class debian $menuentry_id_option 'gnulinux-6.1.0-56-advanced-1' {
		linux	/boot/vmlinuz-6.1.0-56-cloud-amd64 root=UUID=1 ro console=ttyS0
		initrd	/boot/initrd.img-6.1.0-56-cloud-amd64
	}
	menuentry 'Linux 6.1.0-56 (recovery mode)' --class debian $menuentry_id_option 'gnulinux-6.1.0-56-recovery-1' {
		linux	/boot/vmlinuz-6.1.0-56-cloud-amd64 root=UUID=1 ro single
		initrd	/boot/initrd.img-6.1.0-56-cloud-amd64
	}
	menuentry 'Linux 6.12.9' --class debian $menuentry_id_option 'gnulinux-6.12.9-advanced-1' {
		linux	/boot/vmlinuz-6.12.9 root=UUID=1 ro
		initrd	/boot/initrd.img-6.12.9
	}
}
"""
GRUBENV = "# GRUB Environment Block\n{}#########\n"
MODULES = "/lib/modules/6.1.0-56-cloud-amd64/modules."
INDEXES = {
    "dep": "kernel/drivers/net/ena.ko:\nupdates/dkms/nvidia.ko: kernel/drivers/char/ipmi.ko\n",
    "alias": "# Aliases extracted from modules themselves.\nalias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia\n",
    "softdep": "# Soft dependencies extracted from modules themselves.\nsoftdep ena pre: net_dim\n",
    "symbols": "# Aliases for symbols, used by symbol_request().\nalias symbol:nv_open nvidia\n",
}
DEVICES = "# Device nodes to trigger on-demand module loading.\nfuse fuse c10:229\n"


def grub(default: str, entries: str = GRUB) -> str:
    return entries.replace('default="0"', f'default="{default}"')


# check, path, content, verdicts as planned and as found
TRACES: list[tuple[Any, str, str | bytes, tuple[str, str]]] = [
    (image.test_no_private_key, "/opt/x/.ssh/deploy", KEY, BOTH),
    (image.test_no_private_key, "/srv/tls/server.key", KEY.replace("OPENSSH", "RSA"), BOTH),
    (image.test_no_private_key, "/var/lib/dkms/mok.key", KEY.replace("OPENSSH ", ""), PLANNED_ALONE),
    (image.test_no_state_of_a_machine, "/var/lib/dhcp/dhclient.ens5.leases", 'lease { interface "ens5"; }', BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/dhclient/dhclient--eth0.lease", "lease {}", BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/NetworkManager/internal-1-ens5.lease", "ADDRESS=10.0.0.4", BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/systemd/network/dhcp-server-lease/br0", "{}", BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/systemd/random-seed", b"\x01" * 512, PLANNED_ALONE),
    (image.test_no_state_of_a_machine, "/var/lib/systemd/credential.secret", b"\x01" * 4096, BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/amazon/ssm/registration", '{"ManagedInstanceID":"mi-0"}', BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/amazon/ssm/Vault/Store/EC2RegistrationKey", "{}", BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/ecs/data/agent.db", b"\x00bolt", BOTH),
    (image.test_no_state_of_a_machine, "/var/lib/docker/engine-id", "9f1c", PLANNED_ALONE),
    (image.test_no_state_of_a_machine, "/var/lib/NetworkManager/secret_key", b"nm-key\x01", PLANNED_ALONE),
    (image.test_no_login_is_recorded, "/var/log/lastlog", b"\x00" * 292 + b"\x65\x7a\x11\x01pts/0", PLANNED_ALONE),
    (image.test_no_log, "/var/log/wtmp", b"\x07" * 384, BOTH),
    (
        image.test_module_indexes_are_what_depmod_writes,
        f"{MODULES}softdep",
        f"{INDEXES['softdep']}softdep nvidia pre: floppy\n",
        PLANNED_ALONE,
    ),
    (
        image.test_module_indexes_are_what_depmod_writes,
        f"{MODULES}alias",
        f"{INDEXES['alias']}alias pci:v000010DEd* floppy\n",
        PLANNED_ALONE,
    ),
    (image.test_module_indexes_are_what_depmod_writes, f"{MODULES}dep", "kernel/drivers/net/ena.ko:\n", PLANNED_ALONE),
    (startup.test_next_boot_takes_a_kernel_that_is_there, "/boot/grub/grub.cfg", grub("2"), PLANNED_ALONE),
    (startup.test_next_boot_takes_a_kernel_that_is_there, "/boot/grub/grub.cfg", grub("1>1"), BOTH),
    (
        startup.test_next_boot_takes_a_kernel_that_is_there,
        "/boot/grub/grub.cfg",
        grub("gnulinux-advanced-1>gnulinux-6.12.9-advanced-1"),
        BOTH,
    ),
    (
        startup.test_next_boot_takes_a_kernel_that_is_there,
        "/boot/grub/grub.cfg",
        grub("0", GRUB.replace("/boot/initrd", "/boot/other")),
        BOTH,
    ),
    (
        startup.test_next_boot_takes_a_kernel_that_is_there,
        "/boot/grub/grubenv",
        GRUBENV.format("next_entry=1>1\n"),
        BOTH,
    ),
    (hygiene.test_former_accounts_are_known, "/etc/passwd-", f"{ACCOUNTS}evil:x:0:0::/:/bin/sh\n", BOTH),
    (hygiene.test_former_accounts_are_known, "/etc/group-", FORMER, PLANNED_ALONE),
    (hygiene.test_subordinate_ids_are_of_users, "/etc/subuid", "admin:100000:65536\ngames:0:65536\n", BOTH),
    (hygiene.test_subordinate_ids_are_of_users, "/etc/subgid", "games:231072:65536\n", ("FAIL", "PASS")),
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
    "/etc/passwd": ACCOUNTS,
    "/etc/passwd-": ACCOUNTS.partition("admin")[0],
    "/etc/group": "root:x:0:\nadmin:x:1000:\n",
    "/etc/group-": "root:x:0:\n",
    "/etc/subuid": "admin:100000:65536\ncontainers:2147483647:2147483648\n",
    "/etc/subgid": "admin:100000:65536\n",
    "/boot/vmlinuz-6.1.0-56-cloud-amd64": "MZ",
    "/boot/initrd.img-6.1.0-56-cloud-amd64": "x",
    "/boot/grub/grub.cfg": GRUB,
    "/boot/grub/grubenv": GRUBENV.format(""),
    **{f"{MODULES}{name}": text for name, text in INDEXES.items()},
    "/opt/x/id_rsa.pub": "ssh-rsa AAAA x\n",
}
REQUEST = SimpleNamespace(config=SimpleNamespace(getoption=lambda _name: None))
HEADER = {"schema": "gpu-ami/inventory/1", "accounts": {}, "groups": {}, "os": "debian", "os_version": "12"}


def base_inventory(*entries: dict[str, Any]) -> str:
    records = [HEADER | {"time": 0.0, "running": True}, *entries, {"end": len(entries)}]
    return "".join(f"{json.dumps(record)}\n" for record in records)


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
    folders = re.compile(r"(?<![\w.*/}])/(?=(?:boot|etc|home|lib/modules|opt|root|srv|usr/local|var)\b)")

    def answer(command: str) -> Reply:
        if "of no package" in command:
            paths = re.findall(r"^for f in (.*); do$", command, re.MULTILINE)[0].split()
            return "".join(f"of no package: {path}\n" for path in paths)
        if "depmod -n" in command:
            return "".join(INDEXES.values()) + DEVICES
        if command.startswith("sha256sum /usr/share/gpu-ami"):
            return 0, f"{'0' * 64}  x\n"
        if command.startswith("cat /usr/share/gpu-ami"):
            return base_inventory() if command.endswith(".gz") else (1, "")
        reply = on_this_machine(folders.sub(f"{root}/", command))
        assert isinstance(reply, tuple) and isinstance(reply[1], bytes)
        return reply[0], reply[1].replace(str(root).encode(), b""), reply[2]

    return answer


@pytest.mark.parametrize(("check", "path", "content", "verdicts"), TRACES)
def test_trace_is_seen(
    judge: Judge, tree: Path, check: Any, path: str, content: str | bytes, verdicts: tuple[str, str]
) -> None:
    for plan, verdict in zip((PLANNED, AS_FOUND), verdicts, strict=True):
        before = judge(check, in_tree(tree), plan=as_plan(plan), request=REQUEST)
        assert before.verdict == "PASS", before
        kept = (tree / path.lstrip("/")).read_bytes() if (tree / path.lstrip("/")).exists() else None
        write(tree, path, content)
        found = judge(check, in_tree(tree), plan=as_plan(plan), request=REQUEST)
        assert found.verdict == verdict, found
        assert verdict == "PASS" or any(word in found.message for word in (path, "floppy", "nvidia.ko")), found
        (tree / path.lstrip("/")).unlink()
        if kept is not None:
            write(tree, path, kept)


@pytest.mark.parametrize(
    ("text", "environment"),
    [
        (grub("gnulinux-advanced-1>gnulinux-6.1.0-56-advanced-1"), ""),  # role kernel
        (grub("1>Linux 6.1.0-56"), ""),
        (grub("${saved_entry}"), ""),
        (grub("${saved_entry}"), "saved_entry=gnulinux-simple-1\n"),
        ('set default="${saved_entry}"\nblscfg\n', "saved_entry=1-6.1.66\n"),  # Amazon Linux 2023
        ('set default="${saved_entry}"\nblscfg\n', "saved_entry=0\n"),
    ],
)
def test_defaults_of_healthy_images(judge: Judge, tree: Path, text: str, environment: str) -> None:
    write(tree, "/boot/grub/grub.cfg", text)
    write(tree, "/boot/grub/grubenv", GRUBENV.format(environment))
    entry = (
        "title Amazon Linux\nlinux /vmlinuz-6.1.66\ninitrd /initrd.img-6.1.66 $tuned_initrd\noptions root=UUID=1 ro\n"
    )
    write(tree, "/boot/loader/entries/1-6.1.66.conf", entry)
    write(tree, "/boot/vmlinuz-6.1.66", "MZ")
    write(tree, "/boot/initrd.img-6.1.66", "x")
    for plan in (PLANNED, AS_FOUND):
        found = judge(startup.test_next_boot_takes_a_kernel_that_is_there, in_tree(tree), plan=as_plan(plan))
        assert found.verdict == "PASS", found


def test_rescue_entry_of_the_loader_is_refused(judge: Judge, tree: Path) -> None:
    write(tree, "/boot/grub/grub.cfg", 'set default="${saved_entry}"\nblscfg\n')
    write(tree, "/boot/grub/grubenv", GRUBENV.format("saved_entry=1-0-rescue\n"))
    write(tree, "/boot/loader/entries/1-0-rescue.conf", "title Rescue\nlinux /boot/vmlinuz-0-rescue-1\noptions ro\n")
    found = judge(startup.test_next_boot_takes_a_kernel_that_is_there, in_tree(tree), plan=as_plan(AS_FOUND))
    assert (found.verdict, "grubenv: saved_entry=1-0-rescue: Rescue is for recovery" in found.message) == ("FAIL", True)


@pytest.mark.parametrize(
    ("base", "verdict"),
    [
        (None, "UNPROVEN"),  # whether a package's script of the base AMI took the group away
        (
            {
                "p": "/etc/group-",
                "t": "f",
                "m": 0o644,
                "u": 0,
                "g": 0,
                "a": 0,
                "c": 0,
                "h": sha256(FORMER.encode()).hexdigest(),
            },
            "PASS",
        ),
        ({"p": "/etc/group-", "t": "f", "m": 0o644, "u": 0, "g": 0, "a": 0, "c": 0, "h": "0" * 64}, "FAIL"),
    ],
)
def test_former_groups_of_the_base_ami(judge: Judge, tree: Path, base: dict[str, Any] | None, verdict: str) -> None:
    write(tree, "/etc/group-", FORMER)
    script = in_tree(tree)

    def answer(command: str) -> Reply:
        if "/usr/share/gpu-ami/base" not in command or command.startswith("sha256sum"):
            return script(command) if base else (1, "")
        return base_inventory(base) if base else (1, "")

    found = judge(
        hygiene.test_former_accounts_are_known,
        lambda command: script(command) if command.startswith("for f") else answer(command),
        plan=as_plan(PLANNED),
        request=REQUEST,
    )
    assert (found.verdict, "/etc/group-: build" in found.message) == (verdict, verdict != "PASS"), found


def test_no_configuration_of_grub_is_unproven(judge: Judge, tree: Path) -> None:
    (tree / "boot/grub/grub.cfg").unlink()
    found = judge(startup.test_next_boot_takes_a_kernel_that_is_there, in_tree(tree), plan=as_plan(PLANNED))
    assert (found.verdict, found.message) == ("UNPROVEN", "no configuration of GRUB in /boot/grub or /boot/grub2")


def test_depmod_that_does_not_run_is_unproven(judge: Judge, tree: Path) -> None:
    script = in_tree(tree)
    found = judge(
        image.test_module_indexes_are_what_depmod_writes,
        lambda command: (126, "", "cannot execute") if "depmod" in command else script(command),
        plan=as_plan(PLANNED),
    )
    assert (found.verdict, "cannot execute" in found.message) == ("UNPROVEN", True), found
