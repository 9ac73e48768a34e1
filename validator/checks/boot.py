"""The image boots completely and without errors."""

from __future__ import annotations

import json
from typing import Any

import pytest

from validator.observe import Observe, output, unproven
from validator.plan import planned_instance_type
from validator.plan_document import PlanDocument
from validator.probes import CLOCK_SECONDS, MachineUnderTest, hardware, kernel_log

# Units of chrony (Debian, Ubuntu), chrony (Amazon Linux), systemd, NTPsec, ntp and OpenNTPD.
_TIME_SERVICES = ("chrony", "chronyd", "systemd-timesyncd", "ntpsec", "ntp", "ntpd", "openntpd")
_UNIT_FILES = (
    *(f"{parent}/systemd/system/$unit.service" for parent in ("/etc", "/run", "/usr/local/lib", "/usr/lib", "/lib")),
    "/etc/init.d/$unit",
)
# Debian's driver packages have a file for it; the real driver says "NVRM: No NVIDIA GPU found" and does not load.
_LOADS_MODULES = "systemd-modules-load.service"


@pytest.mark.survives
def test_no_unit_failed(host: Any, observe: Observe) -> None:
    """No systemd unit failed during boot. A failed unit is a missing feature of the image."""
    failed = _failed_units(host)
    if failed == [_LOADS_MODULES]:
        _require_board(host)
    observe.nothing(failed, "failed units")


@pytest.mark.survives
def test_system_is_running(host: Any, observe: Observe) -> None:
    """systemd reports `running`: no job is pending and no unit is degraded."""
    state = host.run("systemctl is-system-running").stdout.strip()
    if state == "degraded" and _failed_units(host) == [_LOADS_MODULES]:
        _require_board(host)
    observe.same(state, "running", "systemctl is-system-running")


@pytest.mark.planned("boot_seconds")
@pytest.mark.survives
def test_boot_is_within_its_budget(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The boot takes at most the recipe's `boot_seconds`. An autoscaling group waits that long for each new instance.

    By systemd: from the start of the kernel to the last job of the boot, without what EC2 needs before.
    """
    shown = output(host, "systemctl show -p FinishTimestampMonotonic,UserspaceTimestampMonotonic")
    values = dict(line.partition("=")[::2] for line in shown.splitlines())
    finished, userspace = (int(values.get(f"{name}TimestampMonotonic") or 0) / 1e6 for name in ("Finish", "Userspace"))
    budget = plan["boot_seconds"]
    if not finished:
        observe.fail(f"the boot has not finished: expected at most {budget} s (systemctl list-jobs)")
    observe(f"{finished:.0f} s, {userspace:.0f} s of them before systemd", f"at most {budget} s")
    if finished > budget:
        blame = host.run("systemd-analyze blame --no-pager | head -n 5").stdout
        longest = ", ".join(" ".join(reversed(line.rsplit(None, 1))) for line in blame.splitlines() if line.strip())
        observe.fail(f"the boot took {finished:.0f} s, expected at most {budget} s; longest: {longest or 'unknown'}")


def _failed_units(host: Any) -> list[str]:
    listed = output(host, "systemctl list-units --failed --plain --no-legend --no-pager")
    return [line.split()[0] for line in listed.splitlines() if line.strip()]


def _require_board(host: Any) -> None:
    """UNPROVEN where the NVIDIA module of modules-load.d finds no board that it drives (on a real GPU it must load)."""
    __tracebackhide__ = True
    for module in ("nvidia", "nvidia-current"):
        if reason := hardware.without_board(host, module):
            unproven(f"{_LOADS_MODULES} failed: {reason}")


def test_cloud_init_is_done(host: Any, observe: Observe) -> None:
    """cloud-init finished without errors, so the key pair and the user data were applied."""
    result = host.run("cat /run/cloud-init/result.json")
    if result.rc != 0:
        observe(host.run("cloud-init status").stdout.strip(), "done")
        observe.fail("cloud-init has not finished (no /run/cloud-init/result.json)")
    observe.nothing(json.loads(result.stdout)["v1"]["errors"], "cloud-init errors")


def test_datasource_is_ec2(host: Any, observe: Observe) -> None:
    """cloud-init read the EC2 instance metadata service, not a seed that the build left in the image."""
    result = host.run("cat /run/cloud-init/result.json")
    if result.rc != 0:
        unproven("cloud-init has not finished")
    datasource = str(json.loads(result.stdout)["v1"]["datasource"] or "none")
    observe(datasource, "DataSourceEc2")
    if not datasource.startswith("DataSourceEc2"):
        observe.fail(f"cloud-init datasource: expected DataSourceEc2, got {datasource}")


@pytest.mark.survives
def test_kernel_has_its_modules(host: Any, observe: Observe) -> None:
    """Modules of the running kernel are installed. Without them no driver can be loaded after boot."""
    release = output(host, "uname -r").strip()
    listed = host.run("ls -1 /lib/modules").stdout.split()
    observe(release, listed)
    if release not in listed:
        observe.fail(f"kernel {release} is running, but modules are installed for {', '.join(listed) or 'no kernel'}")


@pytest.mark.survives
def test_kernel_has_not_panicked(host: Any, observe: Observe) -> None:
    """No boot in the kernel log or the journal had a kernel panic, oops or lockup."""
    # Lines that a process wrote to /dev/kmsg are excluded: both commands select the facility `kern`.
    this_boot = output(host, "dmesg --facility kern --notime")
    journal = host.run("journalctl --quiet --no-pager --output cat _TRANSPORT=kernel SYSLOG_FACILITY=0")
    boots = host.run("journalctl --quiet --no-pager --list-boots")
    messages = sorted(set(kernel_log.troubles(this_boot) + kernel_log.troubles(journal.stdout)))
    boot_count = max(1, len(boots.stdout.splitlines()) if journal.rc == boots.rc == 0 else 1)
    observe(messages or f"{boot_count} boots without a panic or an oops", "no panic, no oops")
    if messages:
        observe.fail(f"kernel panic, oops or lockup: {'; '.join(messages[:5])}")


@pytest.mark.survives
def test_kernel_log_has_no_critical_message(host: Any, observe: Observe) -> None:
    """The kernel logged no critical message in this boot, such as a machine check or a disk error."""
    listed = output(host, "dmesg --level emerg,alert,crit --facility kern --notime")
    observe.nothing([line for line in listed.splitlines() if line.strip()], "critical kernel messages")


@pytest.mark.survives
def test_root_volume_can_be_written_and_has_room(host: Any, observe: Observe) -> None:
    """The root file system is writable, with at least 10 % of its blocks and 5 % of its inodes free.

    With less, a kubelet evicts pods (its default thresholds), and logs soon stop.
    Source: https://kubernetes.io/docs/concepts/scheduling-eviction/node-pressure-eviction/#hard-eviction-thresholds
    """
    options = output(host, "findmnt -no OPTIONS /").strip().split(",")
    blocks, free, inodes, free_inodes = map(int, output(host, "stat -f -c '%b %a %c %d' /").split())
    free_percent = 100 * free / blocks
    free_inode_percent = (
        100 * free_inodes / inodes if inodes else 100.0
    )  # some file systems allocate inodes dynamically
    observe(
        f"{options[0]}, {free_percent:.0f} % free, {free_inode_percent:.0f} % of inodes", "rw, 10 % free, 5 % of inodes"
    )
    if "rw" not in options:
        observe.fail(f"/ is mounted {options[0]}, expected rw: the file system has errors, or /etc/fstab mounts it so")
    if free_percent < 10 or free_inode_percent < 5:
        observe.fail(
            f"/: expected 10 % of blocks, 5 % of inodes free, got {free_percent:.1f} % and {free_inode_percent:.1f} %"
        )


def test_clock_is_right(machine: MachineUnderTest, observe: Observe) -> None:
    """The host's clock is right within two seconds. CloudWatch drops or misplaces data with wrong timestamps."""
    offset = machine.clock.offset
    observe(f"{offset:+.2f} s", f"within {CLOCK_SECONDS:g} s")
    if abs(offset) > CLOCK_SECONDS:
        observe.fail(f"the host's clock is off by {offset:+.2f} s, expected at most {CLOCK_SECONDS:g} s")


@pytest.mark.tier("T0")
def test_time_service_starts_at_boot(host: Any, observe: Observe) -> None:
    """A time service is enabled. Without one the clock drifts, and after a stop and start nothing sets it.

    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/set-time.html
    """
    each = (
        f"for unit in {' '.join(_TIME_SERVICES)}; do for file in {' '.join(_UNIT_FILES)}; do"
        " [ -e $file ] || [ -L $file ] || continue;"
        " echo $unit $(systemctl is-enabled $unit.service 2>/dev/null); break; done; done"
    )
    rows = [line.split() for line in output(host, each).splitlines()]
    states = {row[0]: row[1] for row in rows if len(row) == 2}
    observe(states or "none installed", f"one of {', '.join(_TIME_SERVICES)} enabled")
    if "enabled" not in states.values():
        installed = ", ".join(f"{unit} is {state}" for unit, state in states.items()) or "none is installed"
        observe.fail(
            f"no time service starts at boot ({installed}): expected one of {', '.join(_TIME_SERVICES)} enabled"
        )


@pytest.mark.needs("observed")
@pytest.mark.survives
def test_instance_type_is_the_requested_one(
    host: Any, machine: MachineUnderTest, plan: PlanDocument, observe: Observe
) -> None:
    """The instance type in the metadata is the one that was requested, so the plan applies to this machine."""
    promised = planned_instance_type(plan, machine.instance_type)
    observe.same(machine.metadata["instance-type"], promised["name"], "instance type in the metadata")
