"""What an image has of its base AMI: files that the build recorded, kernel options, masked units.

The masks are reasoned and unverified, as the patterns of `footprints`: they were not compared with running AMIs. One
that is missing here shows as a finding on an official AMI.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from typing import Any

from validator.observe import Observe

RECORDS = "/usr/share/gpu-ami"


def check_unchanged(host: Any, role: str, observe: Observe) -> None:
    """Fails if a recorded file (`<role>.sha256`, in sha256sum's format) is missing or has other content."""
    __tracebackhide__ = True
    record = f"{RECORDS}/{role}.sha256"
    files = [line.split(None, 1)[1] for line in host.run("cat %s", record).stdout.splitlines() if " " in line]
    if not files:
        observe.fail(f"no {record}: the build did not record the files of the base AMI")
    done = host.run("env LC_ALL=C sha256sum --check --quiet --strict %s", record)
    wrong = [line.replace(": FAILED", "") for line in done.stdout.splitlines() if ": FAILED" in line]
    observe({"files": files, "changed": wrong}, {"files": files, "changed": []})
    if wrong or done.rc != 0:
        observe.fail(f"differs from the base AMI: {', '.join(wrong) or done.stderr.strip()}")


def check_enabled(host: Any, units: list[str], observe: Observe) -> None:
    """Fails if one of the units does not start at boot."""
    __tracebackhide__ = True
    states = {unit: host.run("systemctl is-enabled %s", unit).stdout.strip() for unit in units}
    observe.same(states, dict.fromkeys(units, "enabled"), "units of the node at boot")


def check_executable(host: Any, paths: list[str], observe: Observe) -> None:
    """Fails if one of the paths is missing or not executable."""
    __tracebackhide__ = True
    tests = "; ".join("test -x %s && echo %s" for _ in paths)
    executable = host.run(f"{tests}; true", *(word for path in paths for word in (path, path))).stdout.split()
    observe(executable, paths)
    missing = [path for path in paths if path not in executable]
    if missing:
        observe.fail(f"missing or not executable: {', '.join(missing)}")


# Other init systems' scripts, which Debian and Ubuntu mask; sleep; storage that EC2 has none of.
_HARMLESS_MASKS = (
    "hwclock*", "cryptdisks*", "motd.service", "rc.service", "rcS.service", "x11-common.service", "sudo.service",
    "alsa-utils.service", "screen-cleanup.service", "lvm2*", "multipathd*", "rmnologin.service", "bootlogs.service",
    "ctrl-alt-del.target", "rpcbind.*", "nfs-*", "saned*", "sleep.target", "suspend*.target", "hibernate.target",
    "hybrid-sleep.target", "tmp.mount", "dev-hugepages.mount", "systemd-repart*", "plymouth*", "ModemManager.service",
    "udisks2.service", "iscsi*", "open-iscsi*", "fwupd*", "kdump*", "lxd-*", "isc-dhcp-server*", "whoopsie*", "apport*",
)  # fmt: skip
# The base images of the local region mask these (localregion/replicas/debian_ami/masked.txt).
_LOCAL_BASE_MASKS = frozenset({
    "apt-daily-upgrade.service", "apt-daily-upgrade.timer", "apt-daily.service", "apt-daily.timer",
    "cloud-config.service", "cloud-init-hotplugd.socket", "cloud-init-local.service", "dev-mqueue.mount",
    "dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer", "getty@tty1.service",
    "man-db.timer", "modprobe@configfs.service", "modprobe@fuse.service", "proc-sys-fs-binfmt_misc.automount",
    "sys-fs-fuse-connections.mount", "sys-kernel-config.mount", "systemd-binfmt.service",
    "systemd-network-generator.service", "systemd-pstore.service", "user@.service",
})  # fmt: skip
# What every machine of ours needs at its start. Base AMIs of node families mask others on purpose.
_NEEDED = (
    "cloud-*", "ssh.*", "sshd*", "systemd-networkd*", "systemd-resolved*", "systemd-udev*", "systemd-modules-load*",
    "systemd-sysctl*", "systemd-logind*", "systemd-journald*", "systemd-tmpfiles*", "systemd-timesyncd*", "chrony*",
    "NetworkManager*", "networking.service", "network*.target", "local-fs*.target", "multi-user.target", "basic.target",
    "sysinit.target", "dbus*", "amazon-*", "snap.amazon-ssm-agent*", "aws-*", "gpu-ami-*", "nvidia-*", "nv*", "dcgm*",
    "docker*", "containerd*", "kubelet*", "nodeadm*", "ecs*", "neuron*", "gdrcopy*", "efa*", "dkms*", "rsyslog*",
    "getty*", "serial-getty*", "setup-local-disks*",
)  # fmt: skip
_OPTIONS = re.compile(
    r"(?:init|rdinit|systemd\.unit|systemd\.mask|systemd\.run|systemd\.debug[\w-]*|rd\.break|mitigations|apparmor|audit|pti"
    r"|spectre_v2|module\.sig_enforce|efi|cloud-init|network-config)=.*|ds=(?!ec2).*|single|emergency|rescue|nokaslr|nopti"
    r"|nosmep|nosmap|rd\.break|[1-5sS]|(?:module_blacklist|modprobe\.blacklist|rd\.driver\.blacklist|initcall_blacklist)="
    r"(?:.*,)?(?:nvidia|ena|nvme|efa|gdrdrv|neuron|virtio|xen)[\w-]*(?:,.*)?"
)
_HARMLESS_OPTIONS = re.compile(
    r"(?:mitigations|apparmor|audit|pti|spectre_v2)=(?:auto.*|on|1)|module\.sig_enforce=1|efi=.*|cloud-init=enabled"
)


def is_unsafe_option(word: str) -> bool:
    """Whether a word of the kernel's command line replaces init, or disables a protection, a driver or cloud-init."""
    return _OPTIONS.fullmatch(word) is not None and _HARMLESS_OPTIONS.fullmatch(word) is None


def is_harmless_mask(unit: str, family: str) -> bool:
    """family: the plan's node family; "ec2" for a machine of its own, anything else for one that others set up."""
    if unit in _LOCAL_BASE_MASKS:
        return True
    if family != "ec2":
        return not any(fnmatchcase(unit, pattern) for pattern in _NEEDED)
    return any(fnmatchcase(unit, pattern) for pattern in _HARMLESS_MASKS)


def planned_text(plan: Any) -> str:
    """All of the plan: an address in it was asked for."""
    return json.dumps(plan, default=str)
