"""The image before its first boot (tier T0): its services are enabled, and nobody and nothing has lived in it yet."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator import policy
from validator.observe import Observe, output, unproven

pytestmark = [pytest.mark.offline, pytest.mark.tier("T0")]

_UNITS = {"cloudwatch_agent": "amazon-cloudwatch-agent.service", "event_parser": "aws-hw-monitor.service"}
# A merged /usr: dpkg knows some files by the name that they had before.
_OWNER = (
    'owner() { if command -v dpkg >/dev/null; then dpkg -S "$1" || dpkg -S "${1#/usr}";'
    ' else rpm -qf "$1"; fi >/dev/null 2>&1; }'
)
_OF_THE_SYSTEM = tuple(f"{top}{name}/" for top in ("/usr/", "/") for name in ("bin", "sbin", "lib", "lib64", "libexec"))
_HOMES = "$(cut -d: -f6 /etc/passwd | sort -u)"


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_services_start_at_boot(host: Any, plan: Any, observe: Observe) -> None:
    """Agent and parser are enabled in the image itself: no boot has to have run for that."""
    units = [unit for role, unit in _UNITS.items() if role in plan["roles"]]
    if not units:
        unproven("the plan has no service")
    found = {unit: host.run("systemctl is-enabled %s", unit).stdout.strip() or "not there" for unit in units}
    observe.same(found, dict.fromkeys(units, "enabled"), "units in the image")


def test_kernel_ring_is_asked_for(host: Any, plan: Any, observe: Observe) -> None:
    """Every entry of the boot menu asks for the planned size of the kernel's log."""
    wanted = f"log_buf_len={plan['event_parser']['log_buf_len']}"
    entries = _lines(host.run("grep -hE '^[[:space:]]*linux' /boot/grub/grub.cfg").stdout)
    entries += _lines(host.run("grep -h '^options' /boot/loader/entries/*.conf").stdout)
    if not entries:
        unproven("there is no boot menu in /boot/grub/grub.cfg or /boot/loader/entries")
    without = [entry.strip() for entry in entries if wanted not in entry.split()]
    observe(f"{len(entries) - len(without)} of {len(entries)} entries", wanted)
    if without:
        observe.fail(f"{len(without)} of {len(entries)} boot entries lack {wanted}, the first: {without[0]}")


def test_catalogue_decides_alone(host: Any, observe: Observe) -> None:
    """The image brings no policy of its own: an Xid weighs what the catalogue says until an operator changes it."""
    observe.nothing(policy.decided(host.run(f"cat {policy.PATH}").stdout), "Xids that a policy in the image decides")


def test_no_key_lets_in(host: Any, observe: Observe) -> None:
    """No account has an authorized key: the launch brings the only one."""
    found = host.run(f"for h in {_HOMES}; do grep -Hs '^[^#]' $h/.ssh/authorized_keys $h/.ssh/authorized_keys2; done")
    observe.nothing([line.partition(":")[0] for line in _lines(found.stdout)], "authorized keys in the image")


def test_no_host_keys(host: Any, observe: Observe) -> None:
    """The image has no SSH host key: each instance makes its own."""
    found = output(host, "find /etc/ssh -name 'ssh_host_*_key'")
    observe.nothing(sorted(_lines(found)), "host keys in the image")


def test_no_machine_id(host: Any, observe: Observe) -> None:
    """machine-id is unset, so that each instance makes its own at its first boot."""
    text = host.run("cat /etc/machine-id").stdout.strip()
    observe(text or "empty", "empty, or uninitialized")
    if text not in ("", "uninitialized"):
        observe.fail(f"/etc/machine-id holds {text!r}: every instance of this image would share it")


def test_cloud_init_has_run_nowhere(host: Any, observe: Observe) -> None:
    """cloud-init knows no instance: the builder's state is gone."""
    found = host.run("ls -1 /var/lib/cloud/instances").stdout
    observe.nothing(_lines(found), "instances that cloud-init knows")


def test_no_instance_id(host: Any, observe: Observe) -> None:
    """No file of system, agent or logs names an instance: there has been none but the builder."""
    found = host.run(
        "grep -rIoE '\\bi-([0-9a-f]{17}|[0-9a-f]{8})\\b' /etc /var/log /var/lib/cloud /var/lib/amazon /opt/aws"
        " 2>/dev/null | sort -u | head -n 200"
    )
    observe.nothing(_lines(found.stdout), "instance ids in the image")


def test_no_log(host: Any, observe: Observe) -> None:
    """No log holds a line: what the builder logged says nothing of the instances to come."""
    found = output(host, "find /var/log -xdev -type f -size +0 ! -path '/var/log/journal/*'")
    # Lists of log-ins are empty at their full size: a record of zeros.
    kept = [path for path in _lines(found) if not re.search(r"/(lastlog|faillog|tallylog)$", path)]
    observe.nothing(kept, "logs with content in the image")


def test_no_program_becomes_root_by_itself(host: Any, observe: Observe) -> None:
    """Every program that runs with its owner's rights came with a package: any other is a way in that was left open."""
    found = _lines(output(host, "find / -xdev -type f -perm /6000 -print"))
    strange = [path for path in found if not path.startswith(_OF_THE_SYSTEM)]
    # Where the package manager does not know even su, the system's files did not come by it, and places alone can tell.
    if host.run(f"{_OWNER}; owner $(readlink -f $(command -v su))").rc == 0:
        each = " ".join(["%s"] * len(found))
        strange = _lines(host.run(f'{_OWNER}; for f in {each}; do owner "$f" || echo "$f"; done', *found).stdout)
    observe(f"{len(found)} programs", "each of a package")
    observe.nothing(strange, "set-id programs that no package has")
