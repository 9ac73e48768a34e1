"""Files that no package owns and that are expected: those of official AMIs, of a first boot, and of the roles.

A role declares its files in meta/footprint.yml, as for the file account. Patterns here are as in fnmatch (`*` also
matches `/`). The patterns for official AMIs (Debian 12, Ubuntu 22.04 and 24.04, Amazon Linux 2023) and for cloud-init
are reasoned and unverified: they were neither read from the AMIs' build recipes nor compared with a running AMI. A
missing pattern shows as a finding on an official AMI; a pattern that is too wide hides a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from validator.file_account import Footprint, load_footprints, plan_variables

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


def load(folders: Sequence[Path], plan: Mapping[str, Any], build: Path | None = None) -> Declared:
    """Of a plan. folders: of roles, as the option --roles-path has them."""
    footprints, without = load_footprints(folders, plan["roles"], plan_variables(plan))
    return Declared(tuple(footprints.values()), tuple(sorted(without)), build)


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
