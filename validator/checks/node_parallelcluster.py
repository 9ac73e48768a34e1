"""The image is still a ParallelCluster node: what a cluster looks for is there, untouched."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator import node
from validator.machine import MachineUnderTest
from validator.observe import Observe, output

pytestmark = pytest.mark.planned("node_parallelcluster")

_EXAMPLES = "/opt/parallelcluster/examples"


@pytest.mark.tier("T0")
def test_cookbook_is_the_planned_version(host: Any, plan: Any, observe: Observe) -> None:
    """The AMI says the planned ParallelCluster version: user data compares it as a whole and lets no other node in."""
    wanted = f"aws-parallelcluster-cookbook-{plan['node_parallelcluster']['version']}"
    observe.same(
        output(host, "cat /opt/parallelcluster/.bootstrapped").strip(), wanted, "/opt/parallelcluster/.bootstrapped"
    )


@pytest.mark.tier("T0")
def test_slurm_is_of_one_version(host: Any, observe: Observe) -> None:
    """slurmd, slurmctld and the commands are of one Slurm version."""
    programs = ("/opt/slurm/bin/sinfo", "/opt/slurm/sbin/slurmd", "/opt/slurm/sbin/slurmctld")
    found = {name: output(host, f"{name} -V").strip() for name in programs}
    observe(found, "slurm …, all the same")
    if len(set(found.values())) != 1 or not all(re.match(r"slurm \d+\.\d+", said) for said in found.values()):
        observe.fail(f"not one Slurm version: {', '.join(f'{name}: {said}' for name, said in found.items())}")


def test_munge_is_there(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """munged, by which nodes know each other, is there; its key comes with the cluster, not with the image."""
    observe(output(host, "munged --version").strip(), "munge-…")
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    if host.run(f"find /etc/munge/munge.key -size +0 ! -newermt @{since}").stdout.strip():
        observe.fail("/etc/munge/munge.key is in the image: every cluster made of it would trust every other")


@pytest.mark.tier("T0")
def test_containers_run_in_jobs(host: Any, observe: Observe) -> None:
    """enroot and pyxis are there as the AMI provides them, with the examples that a cluster configures them from."""
    said = host.run("enroot version")
    plugin = host.run("ls -1 /usr/local/lib/slurm/spank_pyxis.so /opt/slurm/lib/slurm/spank_pyxis.so").stdout.split()
    names = [f"{_EXAMPLES}/{name}" for name in ("enroot/enroot.conf", "pyxis/pyxis.conf", "spank/plugstack.conf")]
    there = host.run(f"ls -1 {' '.join(names)}").stdout.split()
    observe({"enroot": said.stdout.strip(), "pyxis": plugin, "examples": there}, {"examples": names})
    if said.rc != 0 or not re.match(r"\d+\.\d+", said.stdout):
        observe.fail(f"enroot version ended with {said.rc}: {(said.stdout + said.stderr).strip() or 'no output'}")
    if not plugin:
        observe.fail("Slurm has no spank_pyxis.so in /usr/local/lib/slurm or /opt/slurm/lib/slurm")
    gone = sorted(set(names) - set(there))
    if gone:
        observe.fail(f"what a cluster configures enroot and pyxis from is gone: {', '.join(gone)}")


@pytest.mark.tier("T0")
def test_base_files_are_untouched(host: Any, observe: Observe) -> None:
    """Cookbook marker, Slurm, munge, enroot and their examples are those of the base AMI."""
    node.check_unchanged(host, "node_parallelcluster", observe)
