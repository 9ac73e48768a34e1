"""Files that no package owns, and which are expected: those of official AMIs, of a first boot, and of the roles.

A role declares its files in meta/footprint.yml, as for the file account. Patterns here are as in fnmatch (`*` also
matches `/`). The patterns for official AMIs (Debian 12, Ubuntu 22.04 and 24.04, Amazon Linux 2023) and for cloud-init
are reasoned and unverified: they were neither read from the AMIs' build recipes nor compared with a running AMI. A
missing pattern shows as a finding on an official AMI; a pattern that is too wide hides a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from validator import remote
from validator.file_account import Entry as BaseEntry
from validator.file_account import Footprint, Inventory, load_footprints, plan_variables
from validator.observe import Observe
from validator.plan import OBSERVED

_SYSTEM = (
    # made by packages' own scripts: caches, indexes, kernel modules of DKMS, initial RAM disks, boot loader
    "/usr/lib/modules/*/modules.*", "/usr/lib/modules/*/updates/*", "/usr/lib/modules/*/extra/*",
    "/usr/lib/modules/*/weak-updates/*", "/usr/lib/modules/*/kernel/drivers/video/nvidia*", "/usr/lib/*.cache",
    "/usr/lib*/gconv/gconv-modules*", "/usr/lib/locale/*", "/usr/lib/udev/hwdb.bin", "/usr/lib/firmware/*",
    "/usr/lib/*/gio/modules/giomodule.cache", "/usr/lib/*/glib-2.0/*", "/usr/lib/fontconfig/cache/*",
    "/usr/lib/sysimage/*", "/usr/lib/rpm/*", "/usr/lib*/fipscheck/*", "/usr/lib/python3*/*.pyc", "/usr/lib*.pyc",
    "/boot/*", "/etc/pam.d/common-*", "/etc/security/opasswd", "/etc/profile", "/etc/environment",
    "/etc/apparmor.d/*", "/etc/kernel/*", "/etc/selinux/*",
    # cloud-init at a first boot
    "/etc/sudoers.d/90-cloud-init-users", "/etc/ssh/sshd_config.d/50-cloud-init.conf", "/etc/ssh/ssh_host_*_key*",
    "/etc/systemd/network/10-cloud-init-*.network", "/etc/udev/rules.d/70-persistent-net.rules",
    "/etc/udev/rules.d/85-persistent-net-cloud-init.rules", "/etc/cloud/cloud-init.disabled",
    # the SSM agent adds its user at its first session
    "/etc/sudoers.d/ssm-agent-users",
    # official AMIs
    "/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d/60-cloudimg-settings.conf", "/etc/cloud/cloud.cfg.d/*_dpkg.cfg",
    "/etc/cloud/cloud.cfg.d/00_debian.cfg", "/etc/cloud/cloud.cfg.d/01_debian_cloud.cfg",
    "/etc/cloud/cloud.cfg.d/1?_*.cfg", "/etc/cloud/cloud.cfg.d/99-*cloudimg*.cfg",
    "/etc/default/grub.d/40-force-partuuid.cfg", "/etc/default/grub.d/50-cloudimg-settings.cfg",
    "/etc/default/grub.d/10_cloud.cfg", "/etc/default/grub.d/15_timeout.cfg", "/etc/default/grub.d/init-select.cfg",
    "/etc/udev/rules.d/75-cloud-ifupdown.rules", "/etc/udev/rules.d/70-snap.*.rules",
    "/etc/udev/rules.d/51-ec2-*.rules", "/etc/sysctl.d/99-cloudimg-ipv6.conf", "/etc/sysctl.d/*cloud*.conf",
    "/etc/systemd/system/snap*", "/etc/systemd/system/*/snap*", "/etc/systemd/journald.conf.d/*cloud*.conf",
    "/etc/systemd/timesyncd.conf.d/*cloud*.conf", "/etc/apt/sources.list", "/etc/apt/sources.list.d/debian.sources",
    "/etc/apt/sources.list.d/ubuntu.sources", "/etc/apt/sources.list.d/ubuntu-esm-*.sources",
    "/etc/apt/trusted.gpg.d/ubuntu-*.gpg", "/etc/apt/apt.conf.d/9?cloud-init*", "/etc/dracut.conf.d/ec2.conf",
    "/etc/dracut.conf.d/xen.conf", "/etc/dnf/vars/*", "/etc/yum/vars/*", "/etc/apt/preferences.d/ubuntu-pro-*",
    "/etc/apt/apt.conf.d/20auto-upgrades", "/etc/apt/apt.conf.d/10periodic", "/etc/apt/apt.conf.d/01autoremove*",
    "/etc/apt/apt.conf.d/00CDMountPoint", "/etc/apt/apt.conf.d/00trustcdrom", "/etc/apt/apt.conf.d/70debconf",
    "/etc/chrony.d/*", "/etc/apt/mirrors/*",
    # the base image of the local region (localregion/replicas/*_ami)
    "/etc/ssh/sshd_config.d/10-gpu-ami.conf", "/etc/default/grub.d/10_gpu-ami.cfg",
    "/etc/initramfs-tools/conf.d/gpu-ami", "/etc/apt/apt.conf.d/90gpu-ami", "/etc/cloud/cloud.cfg.d/10-ec2.cfg",
    "/etc/cloud/cloud.cfg.d/20-modules.cfg", "/etc/systemd/journald.conf.d/gpu-ami.conf",
    "/etc/systemd/network/10-dhcp.network", "/etc/modprobe.d/gpu-ami*.conf", "/etc/modules-load.d/gpu-ami*.conf",
    "/usr/lib/gpu-ami/*", "/etc/udev/rules.d/*gpu-ami*.rules",
    "/etc/systemd/system/systemd-networkd.service.d/10-names.conf",
)  # fmt: skip


@dataclass(frozen=True)
class Declared:
    """Files that an official AMI and the roles of an image leave beside those of packages.

    footprints: of the planned roles and those that they include (meta/footprint.yml). undeclared: roles without one.
    build: the folder that may have the base AMI's inventory.
    """

    footprints: tuple[Footprint, ...]
    undeclared: tuple[str, ...]
    build: Path | None = None

    def has(self, path: str) -> bool:
        """Whether a regular file is expected there."""
        rules = (rule for footprint in self.footprints for rule in footprint.files if "f" in rule.kinds)
        return any(fnmatchcase(path, pattern) for pattern in _SYSTEM) or any(rule.matches(path) for rule in rules)

    def roles_of(self, kind: str) -> dict[str, str]:
        """Each name or path that a role declares as one of the `listeners`, `setuid` or `capabilities` → the role."""
        return {name: footprint.role for footprint in self.footprints for name in getattr(footprint, kind)}


def load(folders: Sequence[Path], plan: Mapping[str, Any], build: Path | None = None) -> Declared:
    """Of a plan. folders: of roles, as the option --roles-path has them.

    What stands for no role in the plan of an image as found (`observed`) declares nothing.
    """
    roles = [role for role in plan["roles"] if role != OBSERVED]
    footprints, without = load_footprints(folders, roles, plan_variables(plan))
    return Declared(tuple(footprints.values()), tuple(sorted(without)), build)


def of_services(host: Any, rows: list[list[str]]) -> set[str]:
    """Names of listening processes that systemd started as services, or a container engine as containers."""
    named = {(pid, name) for row in rows if len(row) > 5 for name, pid in re.findall(r'\("([^"]+)",pid=(\d+)', row[-1])}
    shown = (
        host.run(f"grep -Hs . {' '.join(f'/proc/{pid}/cgroup' for pid, _ in sorted(named))}").stdout if named else ""
    )
    started = re.findall(r"(?m)^/proc/(\d+)/cgroup:\S*/system\.slice/(?:\S+/)?(\S+\.(?:service|scope))", shown)
    # A service that `systemd-run` started is no part of the image; a container's scope is made the same way.
    transient = set(host.run("ls /run/systemd/transient").stdout.split()) if started else set()
    of_units = {pid for pid, unit in started if unit.endswith(".scope") or unit not in transient}
    return {name for pid, name in named if pid in of_units}


def with_declared(text: str, used: Mapping[str, str]) -> str:
    """What a report shows of a check: first the programs that only a role declares, each with the role."""
    return "; ".join([*(f"{name}: declared by role {role}" for name, role in sorted(used.items())), text])


def require_none(observe: Observe, unknown: Sequence[str], what: str, kind: str) -> None:
    """Fails with what is neither known nor declared. kind: the key under which a role declares it."""
    __tracebackhide__ = True
    if unknown:
        own = f"a role's own are declared in its meta/footprint.yml: {kind}"
        observe.fail(f"{what}: {', '.join(unknown)} ({own})")


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Basenames of setuid and setgid programs in packages of Debian 12, Ubuntu 22.04 and 24.04, and Amazon Linux 2023.
SETUID = _names("""
    Xorg.wrap at authdaemon bsd-write camel-lock-helper-1.2 chage chfn chkpwd chsh crontab
    dbus-daemon-launch-helper dotlockfile enroot-aufs2ovlfs enroot-mksquashovlfs exim4 expiry fusermount
    fusermount3 gpasswd grub2-set-bootflag locate lockfile mlocate mount mount.cifs mount.lustre mount.nfs
    mtr-packet munged newgidmap newgrp newuidmap ntfs-3g nvidia-modprobe pam-tmpdir-helper pam_extrausers_chkpwd
    pam_timestamp_check passwd ping ping6 pkexec plocate polkit-agent-helper-1 postdrop postqueue screen slurmd
    snap-confine ssh-agent ssh-keysign staprun starter-suid su sudo sudoedit traceroute6.iputils umount
    unix_chkpwd userhelper usernetctl utempter vmware-user-suid-wrapper wall write write.ul
""")
# Basenames of programs that these packages install with file capabilities.
CAPABLE = _names("""
    arping clockdiff dumpcap enroot-aufs2ovlfs enroot-mksquashovlfs gst-ptp-helper kubelet mtr-packet newgidmap
    newuidmap ping ping6 rcp rlogin rsh snap-confine suexec systemd-detect-virt traceroute6
""")
# Programs that listen on sockets, by the first 15 characters of their names (comm).
LISTENERS = _names("""
    agent amazon-cloudwat amazon-ssm-agen avahi-daemon aws-k8s-agent chronyd containerd cupsd dcgm-exporter
    dhclient dhcpcd dnsmasq docker-proxy dockerd ecs-agent exim4 init kube-proxy kubelet master munged nodeadm
    ntpd nv-fabricmanage nv-hostengine nvidia-imex nvlsm rpc.statd rpcbind slurmctld slurmd snapd sshd
    ssm-agent-worke ssm-session-wor systemd systemd-journal systemd-network systemd-resolve systemd-timesyn
""")


_AT_ONCE = 2000
_SECONDS = 600.0  # reads the package database and the file system's directories; emulation is slow


@dataclass(frozen=True)
class Entry:
    """A file or link. kind: "f" or "l"; mode: permission bits; target: the stored target of a link."""

    kind: str
    mode: int
    path: str
    target: str = ""

    @property
    def is_executable(self) -> bool:
        return self.kind == "f" and bool(self.mode & 0o111)


class NotListed(Exception):
    """The list of files was cut off: a tool of the system does not work."""


def find(host: Any, *, whole: bool = False) -> list[Entry] | None:
    """Files below /etc, /usr, /boot, /opt and /srv that no package owns; None if packages do not own the system.

    whole: lists them even then, with the system's own programs among them. NotListed: the list is incomplete.
    """
    set_whole = "whole=1\n" if whole else ""
    done = host.run(f"(\n{set_whole}{remote.text('unpackaged')})", pure=True, timeout=_SECONDS)
    if done.rc != 0:
        return None
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    if not rows or rows.pop() != ["-", "", "end"]:
        raise NotListed("the list of files that no package owns was cut off")
    return [Entry(row[0], int(row[1], 8), row[2], row[3]) for row in rows if len(row) == 4]


def not_of_base(host: Any, entries: Iterable[Entry], base: Inventory) -> list[Entry]:
    """The entries without those that the base AMI has with the same type, mode, content and target.

    What the builder's own first boot wrote is not the base AMI's.
    """
    entries = list(entries)
    same = {entry.path: before for entry in entries if (before := _in_base(entry, base))}
    files = [path for path, before in same.items() if before.kind == "f" and "\n" not in path]
    digests = _digests(host, files) if files else {}
    unchanged = {path for path, before in same.items() if before.kind == "l" or digests.get(path, "-") == before.sha256}
    return [entry for entry in entries if entry.path not in unchanged]


def _in_base(entry: Entry, base: Inventory) -> BaseEntry | None:
    before = base.entries.get(entry.path)
    if before is None or before.kind != entry.kind or (base.running and before.changed >= base.boot_time - 1):
        return None
    return before if before.target == entry.target and (entry.kind == "l" or before.mode == entry.mode) else None


def _digests(host: Any, paths: Sequence[str]) -> dict[str, str]:
    """SHA-256 by path. An answer has a limited size."""
    digests: dict[str, str] = {}
    for some in (paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE)):
        listed = "\n".join(some)
        command = f"xargs -d '\\n' sha256sum -z -- <<'END_OF_PATHS'\n{listed}\nEND_OF_PATHS"
        rows = (line.partition("  ") for line in host.run(command, pure=True, timeout=_SECONDS).stdout.split("\0"))
        digests |= {path: digest for digest, _, path in rows}
    return digests


def unexpected(entries: Iterable[Entry], below: Iterable[str], declared: Declared) -> list[str]:
    """Paths of the entries below these directories that neither an official AMI nor one of the roles leaves.

    Links are expected: packages make them by alternatives and `systemctl enable`.
    """
    directories = tuple(f"{directory.rstrip('/')}/" for directory in below)
    return [
        entry.path
        for entry in entries
        if entry.kind == "f" and entry.path.startswith(directories)
        if not declared.has(entry.path)
    ]
