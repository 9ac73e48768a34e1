"""The image boots, completely and without complaint."""

from __future__ import annotations

import json
from typing import Any

import pytest

from validator import kernel
from validator.machine import CLOCK_SECONDS, MachineUnderTest
from validator.observe import Observe, output, unproven


@pytest.mark.survives
def test_no_unit_failed(host: Any, observe: Observe) -> None:
    """No unit failed while it booted: a failed one is a feature that the image promised and does not have."""
    listed = output(host, "systemctl list-units --failed --plain --no-legend --no-pager")
    observe.nothing([line.split()[0] for line in listed.splitlines() if line.strip()], "failed units")


@pytest.mark.survives
def test_system_is_running(host: Any, observe: Observe) -> None:
    """systemd has come to rest: no job waits, nothing is degraded."""
    observe.same(host.run("systemctl is-system-running").stdout.strip(), "running", "systemctl is-system-running")


def test_cloud_init_is_done(host: Any, observe: Observe) -> None:
    """cloud-init ran to its end without an error, so key pair and user data were applied."""
    result = host.run("cat /run/cloud-init/result.json")
    if result.rc != 0:
        observe(host.run("cloud-init status").stdout.strip(), "done")
        observe.fail("cloud-init has not come to its end (no /run/cloud-init/result.json)")
    observe.nothing(json.loads(result.stdout)["v1"]["errors"], "errors of cloud-init")


def test_datasource_is_ec2(host: Any, observe: Observe) -> None:
    """cloud-init took its data from EC2's metadata service, not from a seed that the build left behind."""
    result = host.run("cat /run/cloud-init/result.json")
    if result.rc != 0:
        unproven("cloud-init has not come to its end")
    found = str(json.loads(result.stdout)["v1"]["datasource"] or "none")
    observe(found, "DataSourceEc2")
    if not found.startswith("DataSourceEc2"):
        observe.fail(f"cloud-init's datasource is {found}, expected DataSourceEc2")


@pytest.mark.survives
def test_kernel_has_its_modules(host: Any, observe: Observe) -> None:
    """The kernel that runs is one whose modules are installed; else no driver can be loaded after boot."""
    release = output(host, "uname -r").strip()
    listed = host.run("ls -1 /lib/modules").stdout.split()
    observe(release, listed)
    if release not in listed:
        observe.fail(f"kernel {release} runs, but modules are installed for {', '.join(listed) or 'none'}")


@pytest.mark.survives
def test_kernel_did_not_give_up(host: Any, observe: Observe) -> None:
    """No boot that the machine remembers had a panic, an oops or a lockup: the kernel's log, and its journal."""
    # What a process has written to /dev/kmsg is no kernel's: both lists hold the kernel's own facility alone.
    now = output(host, "dmesg --facility kern --notime")
    before = host.run("journalctl --quiet --no-pager --output cat _TRANSPORT=kernel SYSLOG_FACILITY=0")
    boots = host.run("journalctl --quiet --no-pager --list-boots")
    found = sorted(set(kernel.troubles(now) + kernel.troubles(before.stdout)))
    remembered = max(1, len(boots.stdout.splitlines()) if before.rc == boots.rc == 0 else 1)
    observe(found or f"{remembered} boots, none with a panic or an oops", "no panic, no oops")
    if found:
        observe.fail(f"the kernel gave up: {'; '.join(found[:5])}")


@pytest.mark.survives
def test_kernel_log_is_calm(host: Any, observe: Observe) -> None:
    """The kernel logged nothing critical in this boot: no oops, no machine check, no failing disk."""
    listed = output(host, "dmesg --level emerg,alert,crit --facility kern --notime")
    observe.nothing([line for line in listed.splitlines() if line.strip()], "critical kernel messages")


@pytest.mark.survives
def test_root_volume_can_be_written_and_has_room(host: Any, observe: Observe) -> None:
    """The root file system is writable, a tenth of it is free, and a twentieth of its inodes.

    With less, a kubelet takes no work (its default for eviction), and every log ends soon.
    Source: https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds
    """
    options = output(host, "findmnt -no OPTIONS /").strip().split(",")
    blocks, free, inodes, free_inodes = map(int, output(host, "stat -f -c '%b %a %c %d' /").split())
    room = 100 * free / blocks
    inode_room = 100 * free_inodes / inodes if inodes else 100.0  # some file systems make them as they go
    observe(f"{options[0]}, {room:.0f} % free, {inode_room:.0f} % of inodes", "rw, 10 % free, 5 % of inodes")
    if "rw" not in options:
        observe.fail(f"/ is mounted {options[0]}: its file system has errors, or fstab says so")
    if room < 10 or inode_room < 5:
        observe.fail(
            f"/ has {room:.1f} % of its blocks and {inode_room:.1f} % of its inodes free, wanted are 10 % and 5 %"
        )


def test_clock_is_right(machine: MachineUnderTest, observe: Observe) -> None:
    """The clock agrees with ours within two seconds; CloudWatch drops or misplaces what a wrong clock stamps."""
    offset = machine.clock.offset
    observe(f"{offset:+.2f} s", f"within {CLOCK_SECONDS:g} s")
    if abs(offset) > CLOCK_SECONDS:
        observe.fail(f"the host's clock is {offset:+.2f} s off ours, allowed are {CLOCK_SECONDS:g} s")


@pytest.mark.survives
def test_instance_type_is_the_one_asked_for(host: Any, machine: MachineUnderTest, plan: Any, observe: Observe) -> None:
    """The machine has the processors and the memory of its instance type, so it is what the plan is about."""
    promised = plan.instance_type(machine.instance_type)
    observe.same(machine.metadata["instance-type"], promised["name"], "instance type in the metadata")
