"""Each check of ParallelCluster nodes, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from tests.validator.checks.node_cases import unchanged
from validator.checks import node_parallelcluster
from validator.plan import as_plan

EXAMPLES = "".join(
    f"/opt/parallelcluster/examples/{name}\n"
    for name in ("enroot/enroot.conf", "pyxis/pyxis.conf", "spank/plugstack.conf")
)
PYXIS = "/usr/local/lib/slurm/spank_pyxis.so\n"
PLAN = as_plan({"node_parallelcluster": {"version": "3.16.3"}})

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    *unchanged(node_parallelcluster.test_base_files_are_untouched, "/opt/slurm/sbin/slurmd"),
    (
        node_parallelcluster.test_cookbook_is_the_planned_version,
        {"cat*": "aws-parallelcluster-cookbook-3.16.3\n"},
        "PASS",
        "",
    ),
    (
        node_parallelcluster.test_cookbook_is_the_planned_version,
        {"cat*": "aws-parallelcluster-cookbook-3.15.0\n"},
        "FAIL",
        "expected 'aws-parallelcluster-cookbook-3.16.3', got 'aws-parallelcluster-cookbook-3.15.0'",
    ),
    (node_parallelcluster.test_slurm_is_of_one_version, {"*/opt*": "slurm 24.11.6\n"}, "PASS", ""),
    (node_parallelcluster.test_slurm_is_of_one_version, {"*/opt*": "slurm-wlm 22.05.8\n"}, "PASS", ""),
    (
        node_parallelcluster.test_slurm_is_of_one_version,
        {"*slurmd -V": "slurm 24.05.1\n", "*/opt*": "slurm 24.11.6\n"},
        "FAIL",
        "expected one Slurm version, got /opt/slurm/sbin/slurmd: slurm 24.05.1, /opt/slurm/sbin/slurmctld: slurm 24.11",
    ),
    (
        node_parallelcluster.test_slurm_is_of_one_version,
        {"*sinfo*": (1, "", "sinfo: fatal: no library"), "/opt*": "slurm 24.11.6\n"},
        "FAIL",
        "sinfo: fatal: no library",
    ),
    (
        node_parallelcluster.test_slurm_is_of_one_version,
        {"*/opt*": "gone\n"},
        "FAIL",
        "expected one Slurm version, got",
    ),
    (node_parallelcluster.test_munge_is_there, {"munged*": "munge-0.5.16 (2024-03-15)\n", "find*": ""}, "PASS", ""),
    (
        node_parallelcluster.test_munge_is_there,
        {"munged*": "munge-0.5.16\n", "find /etc/munge/munge.key -size +0 ! -newermt @998": "/etc/munge/munge.key\n"},
        "FAIL",
        "/etc/munge/munge.key is in the image",
    ),
    (
        node_parallelcluster.test_munge_is_there,
        {"munged*": (127, "", "munged: not found"), "find*": ""},
        "FAIL",
        "munged: not found",
    ),
    (
        node_parallelcluster.test_containers_run_in_jobs,
        {"enroot*": "3.4.1\n", "ls*spank_pyxis*": (2, PYXIS), "ls*": EXAMPLES},
        "PASS",
        "",
    ),
    (
        node_parallelcluster.test_containers_run_in_jobs,
        {"enroot*": "3.4.1\n", "ls*spank_pyxis*": (2, ""), "ls*": EXAMPLES},
        "FAIL",
        "Slurm has no spank_pyxis.so",
    ),
    (
        node_parallelcluster.test_containers_run_in_jobs,
        {"enroot*": (127, "", "sh: enroot: not found"), "ls*spank_pyxis*": (2, PYXIS), "ls*": EXAMPLES},
        "FAIL",
        "enroot version exited with status 127: sh: enroot: not found",
    ),
    (
        node_parallelcluster.test_containers_run_in_jobs,
        {"enroot*": "3.4.1\n", "ls*spank_pyxis*": (2, PYXIS), "ls*": (2, "")},
        "FAIL",
        "missing examples of enroot and pyxis: /opt/parallelcluster/examples/enroot/enroot.conf,",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_node_parallelcluster(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found
