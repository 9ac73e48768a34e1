"""Each check of the inventory, once green and once red with its message."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, FakeMachine, Judge, Since
from validator.checks import inventory
from validator.file_account import Footprint, collect
from validator.plan import as_plan
from validator.probes import Declared, packages

WITH_NODE = as_plan(PLAN | {"node": {"family": "ec2"}, "roles": ["cuda", "tuning"]})
REPOSITORY = {"url": "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/", "suite": "./"}
GOOD_FILES = (
    "f\t644\t/etc/profile.d/cuda.sh\t\nf\t440\t/etc/sudoers.d/90-cloud-init-users\t\n"
    "l\t777\t/usr/bin/awk\t/etc/alternatives/awk\nf\t644\t/etc/sysctl.d/90-tuning.conf\t\n"
    "f\t644\t/usr/lib/modules/6.1/updates/dkms/nvidia.ko\t\nf\t644\t/etc/apt/preferences.d/cuda\t\n"
    "f\t644\t/etc/apt/sources.list.d/developer.download.nvidia.com-compute-cuda-repos-debian12-x86-64.list\t\n"
)
MODPROBE = "/opt/nvidia/pb/usr/bin/nvidia-modprobe"
PASSWD = "root:x:0:0:root:/root:/bin/bash\nadmin:x:1000:1000::/home/admin:/bin/bash\nsync:x:4:65534:s:/bin:/bin/sync\n"
GROUP = "root:x:0:\nsudo:x:27:admin\nadmin:x:1000:\nnogroup:x:65534:\n"
SSHD = "authorizedkeyscommand none\ntrustedusercakeys none\nauthorizedkeysfile .ssh/authorized_keys\n"
SS = 'tcp LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=1,fd=3))\n'


END = "-\t\tend\n"
UNIT = f"f\t644\t/etc/systemd/system/kubelet.service\t\n{END}"


def files(*paths: str, mode: str = "644") -> str:
    return GOOD_FILES + "".join(f"f\t{mode}\t{path}\t\n" for path in paths) + END


def unowned(
    check: Any, path: str, message: str, mode: str = "644", **more: Any
) -> list[tuple[Any, dict[str, Any], str, str]]:
    others = {"find /var/spool*": (1, ""), "grep*": (1, "")} | more
    return [
        (check, {"(*": files()} | others, "PASS", ""),
        (check, {"(*": GOOD_FILES}, "UNPROVEN", "was cut off: see system::test_tools_of_the_checks_work"),
        (check, {"(*": files(path, mode=mode)} | others, "FAIL", f"{message}: {path}"),
        (check, {"(*": (3, "")}, "UNPROVEN", "the package database does not own the system's programs"),
    ]


BILL = json.dumps(
    {
        "components": [
            {
                "type": "library", "name": "libc6", "version": "2.36",
                "purl": "pkg:deb/debian/libc6@2.36?arch=amd64&distro=debian-12",
            },
            {
                "type": "device-driver", "name": "nvidia", "version": "580.1",
                "properties": [{"name": "gpu-ami:path", "value": "/usr/lib/modules/6.1/updates/nvidia.ko"}],
            },
        ]
    }
)  # fmt: skip
LIBC, MODULE = "installed\tlibc6\t2.36\tamd64\n", "/lib/modules/6.1/updates/nvidia.ko\n"


def bill(packages: str = LIBC, modules: str = MODULE, kept: tuple[int, str] = (0, BILL)) -> dict[str, Any]:
    return {"cat*": kept, "if test -e /var/lib/dpkg/status*": packages, "find /lib/modules*": modules}


_BILL = inventory.test_bill_of_materials_is_current

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (_BILL, bill(), "PASS", ""),
    (_BILL, bill(LIBC.replace("2.36", "2.37")), "FAIL", "package libc6 2.37 amd64: installed, not in the bill"),
    (_BILL, bill(LIBC + "installed\tnmap\t7\tamd64\n"), "FAIL", "package nmap 7 amd64: installed, not in the bill"),
    (_BILL, bill(modules=""), "FAIL", "module /lib/modules/6.1/updates/nvidia.ko: in the bill, not installed"),
    (_BILL, bill(kept=(0, "{")), "FAIL", "not a bill of materials"),
    (_BILL, bill(kept=(1, "")), "UNPROVEN", "the image has no /usr/share/gpu-ami/bom.cdx.json"),
    *unowned(inventory.test_programs_are_packaged, "/usr/bin/helper", "programs of no package", "755"),
    *unowned(inventory.test_programs_are_packaged, "/usr/lib/libx.so.1", "programs of no package"),
    *unowned(inventory.test_programs_are_packaged, "/usr/lib/python3/dist-packages/x/a.py", "programs of no package"),
    *unowned(inventory.test_local_files_are_declared, "/usr/local/bin/step", "files of no package"),
    *unowned(inventory.test_units_are_declared, "/etc/systemd/system/b.timer", "drop-ins of no package"),
    *unowned(inventory.test_login_settings_are_declared, "/etc/sudoers.d/90-build", "login settings of no package"),
    *unowned(
        inventory.test_environment_settings_are_declared,
        "/etc/profile.d/b.sh",
        "shell and loader settings of no package",
    ),
    *unowned(inventory.test_kernel_settings_are_declared, "/etc/udev/rules.d/9.rules", "kernel settings of no package"),
    *unowned(inventory.test_scheduled_jobs_are_declared, "/etc/cron.d/build", "jobs and scripts of no package"),
    *unowned(inventory.test_scheduled_jobs_are_declared, "/etc/rc.local", "jobs and scripts of no package"),
    *unowned(
        inventory.test_package_sources_are_planned, "/etc/apt/sources.list.d/b.list", "sources that are not planned"
    ),
    *unowned(inventory.test_package_sources_are_planned, "/etc/pip.conf", "package sources that are not planned"),
    *unowned(
        inventory.test_certificates_are_packaged, "/usr/local/share/ca-certificates/b.crt", "certificates of no package"
    ),
    (
        inventory.test_scheduled_jobs_are_declared,
        {"(*": files(), "find*": "/var/lib/cloud/scripts/per-boot/x\n"},
        "FAIL",
        "jobs and scripts of no package: /var/lib/cloud/scripts/per-boot/x",
    ),
    (
        inventory.test_package_sources_are_planned,
        {"(*": files(), "grep*": "/etc/dnf/dnf.conf:proxy=http://10.0.0.9\n"},
        "FAIL",
        "package sources that are not planned: /etc/dnf/dnf.conf:proxy=http://10.0.0.9",
    ),
    (inventory.test_packaged_files_are_unchanged, {"for p*": "dpkg: /usr/bin/dpkg\n", "dpkg --verify": ""}, "PASS", ""),
    (
        inventory.test_packaged_files_are_unchanged,
        {
            "for p*": "dpkg: /usr/bin/dpkg\n",
            "dpkg --verify": "??5?????? c /etc/default/grub\nmissing     /usr/share/doc/x/copyright\n"
            "??5??????   /etc/ssl/openssl.cnf\n??5??????   /opt/aws/agent/etc/x\n.M.......   /usr/bin/who\n",
        },
        "PASS",
        "",
    ),
    (
        inventory.test_packaged_files_are_unchanged,
        {
            "for p*": "dpkg: /usr/bin/dpkg\n",
            "dpkg --verify": "??5?????? c /etc/pam.d/su\n??5??????   /usr/bin/who\nmissing     /usr/lib/x.so\n",
        },
        "FAIL",
        "files that differ from their package: /etc/pam.d/su, /usr/bin/who, /usr/lib/x.so (missing)",
    ),
    (inventory.test_packaged_files_are_unchanged, {"for p*": (1, "")}, "UNPROVEN", "does not own the system's"),
    (
        inventory.test_packaged_files_are_unchanged,
        {
            "for p*": "dpkg: /usr/bin/dpkg\n",
            "dpkg --verify": "??5?????? c /usr/share/nvidia/nvswitch/fabricmanager.cfg\n??5?????? c /etc/default/x\n",
        },
        "FAIL",
        "files that differ from their package: /usr/share/nvidia/nvswitch/fabricmanager.cfg",
    ),
    (
        inventory.test_accounts_are_known,
        {"cat /etc/passwd": PASSWD, "cat /etc/group": GROUP + "disk:x:6:admin\nadm:x:4:admin\n"},
        "FAIL",
        "accounts and groups that are not known: admin in disk",
    ),
    (inventory.test_shell_files_are_those_of_a_new_account, {"*": ""}, "PASS", ""),
    (
        inventory.test_shell_files_are_those_of_a_new_account,
        {"*": "/home/admin/.bashrc\n"},
        "FAIL",
        "shell files that are not those of a new account: /home/admin/.bashrc",
    ),
    *unowned(inventory.test_local_files_are_declared, "/usr/src/own-1.0/Makefile", "files of no package"),
    *unowned(inventory.test_local_files_are_declared, "/opt/nccl/all_reduce_perf", "files of no package"),
    (inventory.test_local_files_are_declared, {"(*": files("/opt/aws/amazon-cloudwatch-agent/var/x")}, "PASS", ""),
    (inventory.test_local_files_are_declared, {"(*": files("/opt/x/__pycache__/y.pyc")}, "PASS", ""),
    (
        inventory.test_units_are_declared,
        {"(*": GOOD_FILES + "l\t777\t/etc/systemd/system/multi-user.target.wants/d.service\t/opt/d/d.service\n" + END},
        "FAIL",
        "drop-ins of no package: /etc/systemd/system/multi-user.target.wants/d.service -> /opt/d/d.service",
    ),
    *(
        (
            inventory.test_certificates_are_packaged,
            {"(*": GOOD_FILES + f"l\t777\t/etc/ssl/certs/deadbeef.0\t{target}\n" + END},
            verdict,
            message,
        )
        for target, verdict, message in (
            ("/usr/local/share/corp.pem", "FAIL", "/etc/ssl/certs/deadbeef.0 -> /usr/local/share/corp.pem"),
            ("/usr/share/ca-certificates/mozilla/A.crt", "PASS", ""),
            ("A.pem", "PASS", ""),
        )
    ),
    *(
        (
            inventory.test_units_are_declared,
            {"(*": GOOD_FILES + f"l\t777\t/etc/systemd/system/multi-user.target.wants/d.service\t{target}\n" + END},
            "PASS",
            "",
        )
        for target in ("/lib/systemd/system/d.service", "/etc/systemd/system/d.service", "../d.service", "/dev/null")
    ),
    *unowned(inventory.test_scheduled_jobs_are_declared, "/etc/tmpfiles.d/b.conf", "jobs and scripts of no package"),
    (
        inventory.test_file_systems_are_known,
        {"cat*": "/dev/nvme9n1 /mnt auto defaults,comment=cloudconfig 0 2\n", "test -e*": (1, ""), "*": ""},
        "FAIL",
        "file systems that are not planned: /dev/nvme9n1 /mnt auto",
    ),
    (
        inventory.test_file_systems_are_known,
        {"cat*": "/dev/nvme1n1 /mnt auto defaults,comment=cloudconfig 0 2\n", "*": ""},
        "PASS",
        "",
    ),
    (inventory.test_accounts_are_known, {"cat /etc/passwd": PASSWD, "cat /etc/group": GROUP}, "PASS", ""),
    (
        inventory.test_accounts_are_known,
        {
            "cat /etc/passwd": PASSWD + "builder:x:1999:1::/:/usr/sbin/nologin\nsvc:x:300:1::/:/bin/sh\n",
            "cat /etc/group": GROUP + "disk:x:6:svc\nteam:x:1500:\n",
        },
        "FAIL",
        "accounts and groups that are not known: builder, svc, svc in disk, group team",
    ),
    (
        inventory.test_setuid_programs_are_known,
        {
            "find*": "s/usr/bin/su\ns/usr/lib/openssh/ssh-keysign\n",
            "owner=*in /usr/bin/su *": "login: /bin/su\n",
        },
        "PASS",
        "",
    ),
    (
        inventory.test_setuid_programs_are_known,
        {"find*": "s/usr/bin/su\ns/usr/bin/env\n", "owner=*": "login: /bin/su\n"},
        "FAIL",
        "known: /usr/bin/env",
    ),
    (
        inventory.test_setuid_programs_are_known,
        {"find*": "s/usr/bin/su\ns/opt/tool/su\n", "owner=*in /usr/bin/su;*": "login: /bin/su\n"},
        "FAIL",
        "known: /opt/tool/su",
    ),
    (
        inventory.test_setuid_programs_are_known,
        {
            "find*": "s/usr/bin/su\ns/usr/bin/at\n",
            "owner=*": "login: /bin/su\nof no package: /usr/bin/at\n",
        },
        "FAIL",
        "known: /usr/bin/at",
    ),
    (  # a kept driver of EKS's AMI, whose package lies beside it
        inventory.test_setuid_programs_are_known,
        {
            "find*": f"s/usr/bin/su\ns{MODPROBE}\n",
            "*nvidia-modprobe-*.rpm*": f"{MODPROBE}\n",
            "owner=*in /usr/bin/su;*": "login: /bin/su\n",
        },
        "PASS",
        "",
    ),
    (
        inventory.test_setuid_programs_are_known,
        {
            "find*": f"s/usr/bin/su\ns{MODPROBE}\n",
            "*nvidia-modprobe-*.rpm*": "",
            "owner=*in /usr/bin/su;*": "login: /bin/su\n",
        },
        "FAIL",
        f"known: {MODPROBE}",
    ),
    (  # an emulated system whose database owns no program
        inventory.test_setuid_programs_are_known,
        {"find*": "s/usr/bin/su\n", "owner=*": "of no package: /usr/bin/su\n"},
        "PASS",
        "",
    ),
    (inventory.test_file_capabilities_are_known, {"command*": (1, "")}, "UNPROVEN", "getcap is not installed"),
    (
        inventory.test_file_capabilities_are_known,
        {"command*": "/sbin/getcap", "PATH*": "/usr/bin/ping cap_net_raw=ep\n"},
        "PASS",
        "",
    ),
    (
        inventory.test_file_capabilities_are_known,
        {"command*": "/sbin/getcap", "PATH*": "/usr/bin/env cap_net_raw=ep\n"},
        "FAIL",
        "file capabilities that are not known: /usr/bin/env cap_net_raw=ep",
    ),
    (inventory.test_nothing_is_world_writable, {"find*": ""}, "PASS", ""),
    (
        inventory.test_nothing_is_world_writable,
        {"find*": "w/tmp/x\nw/opt/share\n"},
        "FAIL",
        "writable by every user: /opt/share",
    ),
    (
        inventory.test_no_files_in_homes,
        {"find*": "/root/.bashrc\n/root/.ssh\n/home/admin/.cache\n", "for *": ""},
        "PASS",
        "",
    ),
    (
        inventory.test_no_files_in_homes,
        {"find*": "/root/.npm\n/root/.bashrc\n", "for h*": "/root/.cache/pip/x\n", "for d*": ""},
        "FAIL",
        "files in home directories: /root/.cache/pip/x, /root/.npm",
    ),
    (
        inventory.test_no_files_in_homes,
        {"find*": "/root/.bashrc\n", "for h*": "", "for d*": "/home/builder\n"},
        "FAIL",
        "files in home directories: /home/builder (of no account)",
    ),
    (
        inventory.test_authorized_keys_are_in_homes_only,
        {"cat*": PASSWD, "find*": "k/home/admin/.ssh/authorized_keys\n", "PATH*": SSHD},
        "PASS",
        "",
    ),
    (
        inventory.test_authorized_keys_are_in_homes_only,
        {
            "cat*": PASSWD,
            "find*": "k/srv/authorized_keys\n",
            "PATH*": "authorizedkeyscommand /bin/keys\ntrustedusercakeys /etc/ca\nauthorizedkeysfile /etc/keys/%u\n",
        },
        "FAIL",
        "other sources of authorized keys: /srv/authorized_keys, AuthorizedKeysCommand /bin/keys, TrustedUserCAKeys"
        " /etc/ca, AuthorizedKeysFile /etc/keys/%u",
    ),
    (
        inventory.test_authorized_keys_are_in_homes_only,
        {"cat*": PASSWD, "find*": "", "PATH*": "authorizedkeyscommand /opt/aws/bin/eic_run_authorized_keys %u %f\n"},
        "PASS",
        "",
    ),
    (inventory.test_no_leftover_files, {"find*": (1, ""), "{ find*": ""}, "PASS", ""),
    (
        inventory.test_no_leftover_files,
        {"find*": "", "{ find*": "/var/lib/systemd/coredump/core.python3.1000.zst\n"},
        "FAIL",
        "core dumps and mail: /var/lib/systemd/coredump/core.python3.1000.zst",
    ),
    (
        inventory.test_no_leftover_files,
        {"find /etc*": "", "find /var/mail*": "/var/mail/root\n", "{ find*": ""},
        "FAIL",
        "/var/mail/root",
    ),
    (
        inventory.test_no_leftover_files,
        {"find /etc*": "/etc/fstab~\n", "{ find*": "/core\n", "find*": ""},
        "FAIL",
        "/core, /etc",
    ),
    (
        inventory.test_file_systems_are_known,
        {
            "cat*": "# x\nUUID=1 / ext4 rw\n/dev/vda2 /boot/efi vfat rw\n/dev/vdc /mnt auto comment=cloudconfig\n",
            "tail*": "",
            "ls*": (2, ""),
            "test -e*": "",
        },
        "PASS",
        "",
    ),
    (
        inventory.test_file_systems_are_known,
        {"cat*": "10.0.0.9:/b /mnt nfs rw 0 0\n", "tail*": "/dev/vdb partition 1 0 -2\n", "ls*": "/swapfile\n"},
        "FAIL",
        "file systems that are not planned: 10.0.0.9:/b /mnt nfs, swap /dev/vdb, swap /swapfile",
    ),
    (inventory.test_no_file_is_immutable, {"lsattr*": "--------------e------- /etc/motd\n\n/etc/ssh:\n"}, "PASS", ""),
    (inventory.test_no_file_is_immutable, {"lsattr*": "----i---------e------- /etc/motd\n"}, "FAIL", ": /etc/motd"),
    (
        inventory.test_names_and_time_are_default,
        {
            "hostname*": "10.0.0.4 \n",
            "cat*": "127.0.0.1 localhost\n::1 ip6-localhost\nff02::1 all\n10.0.0.4 me\n",
            "readlink*": "/usr/share/zoneinfo/Etc/UTC\n",
            "find*": (1, ""),
        },
        "PASS",
        "",
    ),
    (
        inventory.test_names_and_time_are_default,
        {
            "hostname*": "",
            "cat*": "10.0.0.9 packages\n",
            "readlink*": "/usr/share/zoneinfo/Europe/Berlin\n",
            "find*": "/etc/chrony/sources.d/build.sources\n",
        },
        "FAIL",
        "/etc/hosts: 10.0.0.9 packages, time zone /usr/share/zoneinfo/Europe/Berlin, /etc/chrony/sources.d/build",
    ),
    (
        inventory.test_kernel_command_line_is_safe,
        {"cat*": "BOOT_IMAGE=/boot/vmlinuz root=UUID=1 ro quiet mitigations=auto,nosmt log_buf_len=4M console=ttyS0"},
        "PASS",
        "",
    ),
    (
        inventory.test_kernel_command_line_is_safe,
        {"cat*": "root=UUID=1 init=/bin/sh mitigations=off single"},
        "FAIL",
        "kernel options: init=/bin/sh, mitigations=off, single",
    ),
    (inventory.test_listeners_are_known, {"PATH*": SS}, "PASS", ""),
    (
        inventory.test_listeners_are_known,
        {"PATH*": SS + 'tcp LISTEN 0 5 *:8099 *:* users:(("python3",pid=9,fd=3))\n'},
        "FAIL",
        "listening programs that are not known: python3 on *:8099",
    ),
    (inventory.test_listeners_are_known, {"PATH*": (127, "", "ss: not found")}, "UNPROVEN", "ss: not found"),
]


@pytest.mark.parametrize(
    ("cgroup", "verdict"),
    [
        ("/proc/9/cgroup:0::/system.slice/team-metrics.service\n", "PASS"),
        ("/proc/9/cgroup:0::/system.slice/docker-0123.scope\n", "PASS"),
        ("/proc/9/cgroup:0::/system.slice/build-web.service\n", "FAIL"),  # systemd-run
        ("/proc/9/cgroup:0::/user.slice/user-1000.slice/session-1.scope\n", "FAIL"),
        ("", "FAIL"),
    ],
)
def test_image_as_found_may_have_services_of_its_own(judge: Judge, cgroup: str, verdict: str) -> None:
    table = {"PATH*": SS + 'tcp LISTEN 0 5 *:9400 *:* users:(("team-metrics",pid=9,fd=3))\n', "grep -Hs*": cgroup}
    table |= {"ls*": "build-web.service\ndocker-0123.scope\n"}
    observed = as_plan(PLAN | {"origin": "observed"})
    assert judge(inventory.test_listeners_are_known, table, plan=observed).verdict == verdict
    assert judge(inventory.test_listeners_are_known, table).verdict == "FAIL"


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_inventory(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    plan = as_plan(WITH_NODE | {"cuda": {"repository": REPOSITORY}})
    judged = judge(check, table, plan=plan)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


class _WithoutType:
    """The machine of image files: nothing says of which type it will be."""

    @property
    def instance_type(self) -> str:
        pytest.fail("asked for the instance type")


@pytest.mark.parametrize(("table", "verdict"), [(bill(), "PASS"), (bill(LIBC + "installed\tnmap\t7\tamd64\n"), "FAIL")])
def test_bill_of_materials_is_judged_on_image_files(judge: Judge, table: dict[str, Any], verdict: str) -> None:
    judged = judge(_BILL, table, plan=as_plan(WITH_NODE), machine=_WithoutType())
    assert judged.verdict == verdict, judged


def test_unreadable_package_database_says_nothing_of_the_bill(judge: Judge) -> None:
    table = bill(packages="") | {"dpkg-query*": (2, "error: database is corrupted")}
    judged = judge(_BILL, table, plan=as_plan(WITH_NODE))
    assert judged.verdict == "UNPROVEN" and "database is corrupted" in judged.message, judged


OURS = Declared(
    (Footprint("agent", listeners=("telegraf",), setuid=("/opt/agent/ping",), capabilities=("/opt/agent/agent",)),), ()
)
_LISTENS = 'tcp LISTEN 0 5 *:9100 *:* users:(("telegraf",pid=9,fd=3))\n'


def test_certificate_authority_of_a_build_fails_an_image_as_found(judge: Judge) -> None:
    """`observed` in the roles of such a plan is no role without declared files."""
    plan = as_plan(WITH_NODE | {"origin": "observed", "roles": ["nvidia_driver", "observed"]})
    table = {"(*": files("/usr/local/share/ca-certificates/build.crt")}
    judged = judge(inventory.test_certificates_are_packaged, table, plan=plan)
    assert judged.verdict == "FAIL", judged
    site = as_plan(WITH_NODE | {"roles": ["nvidia_driver", "acme_agent"]})
    assert judge(inventory.test_certificates_are_packaged, table, plan=site).verdict == "UNPROVEN"


@pytest.mark.parametrize(
    ("check", "table", "key", "name"),
    [
        (inventory.test_listeners_are_known, {"PATH*": SS + _LISTENS}, "listeners", "telegraf"),
        (
            inventory.test_setuid_programs_are_known,
            {"find*": "s/usr/bin/su\ns/opt/agent/ping\n", "owner=*": "login: /bin/su\n"},
            "setuid",
            "/opt/agent/ping",
        ),
        (
            inventory.test_file_capabilities_are_known,
            {"command*": "", "PATH*": "/opt/agent/agent cap_net_raw=ep\n"},
            "capabilities",
            "/opt/agent/agent",
        ),
    ],
)
def test_what_a_role_declares_is_known_and_shown(
    judge: Judge, check: Any, table: dict[str, Any], key: str, name: str
) -> None:
    """A site's daemon passes if its role says so; the report names it, so that it is no silent waiver."""
    plan = as_plan(WITH_NODE)
    refused = judge(check, table, plan=plan)
    assert refused.verdict == "FAIL" and name in refused.message
    assert f"declared in its meta/footprint.yml: {key}" in refused.message
    accepted = judge(check, table, plan=plan, declared_programs=OURS)
    assert accepted.verdict == "PASS", accepted
    # The certificate's table cuts a cell off at its end.
    assert str(accepted.check.observed).startswith(f"{name}: declared by role agent; ")


@pytest.mark.parametrize(
    ("instance_type", "verdict"), [("g7.12xlarge", "PASS"), ("g5.12xlarge", "FAIL"), ("g6.12xlarge", "UNPROVEN")]
)
def test_driver_of_the_first_boot_is_not_in_the_bill(judge: Judge, instance_type: str, verdict: str) -> None:
    """EKS's NVIDIA AMI installs the driver of the machine's type; that of another type is not its."""
    branches = {
        "lts": {"version": "580.178.04", "instance_types": ["g5.12xlarge"]},
        "pb": {"version": "595.91.07", "instance_types": ["g7.12xlarge"]},
    }
    plan = as_plan(WITH_NODE | {"nvidia_driver": {"version": "580.178.04", "branches": branches}})
    packages = f"{LIBC}installed\tnvidia-driver-cuda\t595.91.07-1.amzn2023\tx86_64\n"
    modules = f"{MODULE}/lib/modules/6.1/extra/nvidia-uvm.ko\n"
    judged = judge(_BILL, bill(packages, modules), plan=plan, machine=FakeMachine({}, instance_type=instance_type))
    assert judged.verdict == verdict, judged


def test_files_of_a_base_ami_without_an_inventory_are_unproven(judge: Judge) -> None:
    plan = as_plan(WITH_NODE | {"node": {"family": "eks"}})
    judged = judge(inventory.test_units_are_declared, {"(*": UNIT, "sha256sum*": (1, "")}, plan=plan)
    assert judged.verdict == "UNPROVEN"
    assert judged.message.startswith("the base AMI (eks) has files that no package owns, and it is not known which: ")


@pytest.mark.parametrize(
    ("listed", "content", "verdict"),
    [("644", "a", "PASS"), ("644", "changed", "FAIL"), ("755", "a", "FAIL")],
)
def test_files_of_a_base_ami_are_known_by_its_inventory(
    judge: Judge, listed: str, content: str, verdict: str, tmp_path: Path
) -> None:
    """Unchanged ones are the base AMI's; one that a build has written, or changed, is of no package."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    entry = {"p": "/etc/systemd/system/kubelet.service", "t": "f", "m": 0o644, "u": 0, "g": 0, "s": 1, "a": 1, "c": 1}
    header = {"schema": "gpu-ami/inventory/1", "running": False, "time": 1, "os": "amzn", "os_version": "2023"}
    rows = [header | {"accounts": {"root": [0, 0, "/root", "", ""]}, "groups": {"root": [0, []]}}]
    rows += [entry | {"h": hashlib.sha256(b"a").hexdigest()}, {"end": 1}]
    data = gzip.compress("\n".join(map(json.dumps, rows)).encode())
    (tmp_path / "base-inventory.jsonl.gz").write_bytes(data)
    table = {
        "(*": UNIT.replace("644", listed),
        f"sha256sum {collect.IN_IMAGE}": f"{hashlib.sha256(data).hexdigest()}  x\n",
        "xargs*": f"{digest}  /etc/systemd/system/kubelet.service\0",
        "cat *": (1, ""),
    }
    plan = as_plan(WITH_NODE | {"node": {"family": "eks"}})
    judged = judge(inventory.test_units_are_declared, table, plan=plan, declared=Declared((), (), tmp_path))
    assert judged.verdict == verdict, judged


def test_files_of_a_role_without_a_declared_footprint_are_unproven(judge: Judge) -> None:
    plan = as_plan(WITH_NODE | {"roles": ["tuning", "acme_agent"]})
    judged = judge(inventory.test_units_are_declared, {"(*": files("/etc/systemd/system/acme.service")}, plan=plan)
    assert (judged.verdict, judged.message) == (
        "UNPROVEN",
        "systemd units and drop-ins of no package: /etc/systemd/system/acme.service (the plan has roles whose files are"
        " not declared: acme_agent)",
    )


_OWNED = {"for p*": "dpkg: /usr/bin/dpkg\n"}
_CHANGED = "??5??????   /opt/x/tool\n"


@pytest.mark.parametrize(
    ("since", "answers"),
    [
        (Since(("/usr", "/var/lib/dpkg")), "(*(usr)/*"),  # /opt/x has changed: dpkg reads it
        (Since(("/usr", "/opt/x")), "dpkg --verify"),  # dpkg's database has changed
        (Since(("/usr", "/var/lib/dpkg"), judged=False), "dpkg --verify"),  # the image's files have not passed
        (Since(()), "dpkg --verify"),
    ],
)
def test_only_what_may_have_changed_is_read_again(judge: Judge, since: Since, answers: str) -> None:
    check = inventory.test_packaged_files_are_unchanged
    passed = judge(check, {**_OWNED, answers: ""}, plan=WITH_NODE, since_image=since)
    assert passed.verdict == "PASS", passed.message
    assert ("/usr" in str(passed.check.observed)) is answers.startswith("(")
    failed = judge(check, {**_OWNED, answers: _CHANGED}, plan=WITH_NODE, since_image=since)
    assert (failed.verdict, "/opt/x/tool" in failed.message) == ("FAIL", True)


@pytest.mark.parametrize(
    ("role", "uid", "verdict"),
    [("node_parallelcluster", 401, "PASS"), ("node_parallelcluster", 1401, "FAIL"), ("", 401, "FAIL")],
)
def test_accounts_of_a_node_s_base_ami_are_known(judge: Judge, role: str, uid: int, verdict: str) -> None:
    passwd = f"{PASSWD}slurm:x:{uid}:{uid}:slurm user:/home/slurm:/bin/bash\n"
    plan = as_plan(PLAN | ({role: {"version": "3.16.3"}} if role else {}))
    judged = judge(inventory.test_accounts_are_known, {"cat /etc/passwd": passwd, "cat /etc/group": GROUP}, plan=plan)
    assert (judged.verdict, "slurm" in judged.message) == (verdict, verdict == "FAIL"), judged


@pytest.mark.parametrize("manager", ["dpkg-query", "rpm"])
def test_setuid_programs_are_asked_of_the_package_manager(tmp_path: Path, manager: str) -> None:
    """A path is known as itself, or, where /bin is a link to /usr/bin, without /usr; dpkg is started once."""
    owned = "/bin/su /usr/bin/at /opt/tool"
    (tmp_path / "dpkg-query").write_text(
        f"#!/bin/sh\necho dpkg >> {tmp_path}/log\nshift\nfor f; do\n"
        f'case " {owned} " in *" $f "*) echo "x: $f" ;; *) echo "no path found matching pattern $f" >&2 ;; esac; done\n'
    )
    (tmp_path / "rpm").write_text(f'#!/bin/sh\ncase " {owned} " in *" $2 "*) ;; *) exit 1 ;; esac\n')
    for program in ("dpkg-query", "rpm"):
        (tmp_path / program).chmod(0o755)
    status = tmp_path / "status"
    if manager == "dpkg-query":
        status.touch()
    paths = ["/usr/bin/su", "/usr/bin/at", "/opt/tool", "/usr/bin/at2", "/usr/bin/my tool"]
    command = packages.ask_owners(paths).replace("/var/lib/dpkg/status", str(status))
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    done = subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["of no package: /usr/bin/at2", "of no package: /usr/bin/my tool"]
    if manager == "dpkg-query":
        assert (tmp_path / "log").read_text().split() == ["dpkg"]
