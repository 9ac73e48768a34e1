"""The image is a ParallelCluster node: the files that a cluster needs are present and unchanged."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.observe import Observe, output
from validator.plan_document import NodeRole, PlanDocument, section
from validator.probes import MachineUnderTest, base_ami

pytestmark = pytest.mark.planned("node_parallelcluster")

_EXAMPLES = "/opt/parallelcluster/examples"


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_cookbook_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The AMI names the planned ParallelCluster version. The cluster's user data rejects nodes of any other."""
    planned = section(plan, "node_parallelcluster", NodeRole)["version"]
    expected = f"aws-parallelcluster-cookbook-{planned}"
    observe.same(
        output(host, "cat /opt/parallelcluster/.bootstrapped").strip(), expected, "/opt/parallelcluster/.bootstrapped"
    )


# Slurm's commands read the configuration before they say their version, and a node has none before its cluster. Of an
# image's files, /dev alone can be written to.
_SINFO = """\
for folder in /dev/shm /dev; do file=$(mktemp -p $folder 2> /dev/null) && break; done
printf 'ClusterName=none\\nSlurmctldHost=localhost\\n' > "$file"
SLURM_CONF=$file /opt/slurm/bin/sinfo -V
status=$?; rm -f "$file"; exit $status
"""


@pytest.mark.tier("T0")
def test_slurm_is_of_one_version(host: Any, observe: Observe) -> None:
    """slurmd, slurmctld and the commands have one Slurm version."""
    commands = {f"/opt/slurm/sbin/{name}": f"/opt/slurm/sbin/{name} -V" for name in ("slurmd", "slurmctld")}
    commands["/opt/slurm/bin/sinfo"] = _SINFO
    versions = {name: output(host, command).strip() for name, command in commands.items()}
    observe(versions, "slurm …, all equal")
    # Debian's says slurm-wlm, SchedMD's slurm.
    one = len(set(versions.values())) == 1
    if not one or not all(re.match(r"slurm(-wlm)? \d+\.\d+", shown) for shown in versions.values()):
        rows = ", ".join(f"{name}: {shown}" for name, shown in versions.items())
        observe.fail(f"expected one Slurm version, got {rows}")


def test_munge_is_there(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """munged is installed and the image has no munge key. The key belongs to the cluster."""
    observe(output(host, "munged --version").strip(), "munge-…")
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    if host.run(f"find /etc/munge/munge.key -size +0 ! -newermt @{since}").stdout.strip():
        observe.fail("/etc/munge/munge.key is in the image: all clusters of this image would trust each other")


@pytest.mark.tier("T0")
def test_containers_run_in_jobs(host: Any, observe: Observe) -> None:
    """enroot and pyxis are installed, with the examples from which a cluster configures them."""
    enroot = host.run("enroot version")
    plugin = host.run("ls -1 /usr/local/lib/slurm/spank_pyxis.so /opt/slurm/lib/slurm/spank_pyxis.so").stdout.split()
    names = [f"{_EXAMPLES}/{name}" for name in ("enroot/enroot.conf", "pyxis/pyxis.conf", "spank/plugstack.conf")]
    examples = host.run(f"ls -1 {' '.join(names)}").stdout.split()
    observe({"enroot": enroot.stdout.strip(), "pyxis": plugin, "examples": examples}, {"examples": names})
    if enroot.rc != 0 or not re.match(r"\d+\.\d+", enroot.stdout):
        shown = (enroot.stdout + enroot.stderr).strip() or "no output"
        observe.fail(f"enroot version exited with status {enroot.rc}: {shown}")
    if not plugin:
        observe.fail("Slurm has no spank_pyxis.so in /usr/local/lib/slurm or /opt/slurm/lib/slurm")
    missing = sorted(set(names) - set(examples))
    if missing:
        observe.fail(f"missing examples of enroot and pyxis: {', '.join(missing)}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_base_files_are_untouched(host: Any, observe: Observe) -> None:
    """Cookbook marker, Slurm, munge, enroot and their examples are unchanged since the base AMI."""
    base_ami.check_unchanged(host, "node_parallelcluster", observe)
