"""A base AMI with several drivers has all of them, takes that of the machine's type at the first boot, and keeps it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

import pytest

from validator.checks.grid_driver import require_licences
from validator.observe import Observe, output, unproven
from validator.plan_document import DriverBranch, NvidiaDriver, PlanDocument, section
from validator.probes import MachineUnderTest, base_ami, base_driver

pytestmark = [pytest.mark.planned("nvidia_driver.branches"), pytest.mark.beside_live]

_KERNELS = 'for k in $(ls -1 /lib/modules); do [ -e "/lib/modules/$k/modules.dep" ] && echo "$k"; done; true'
_MODULE = 'f=$(ls -1 %s/flavors/%s/lib/modules/%s/extra/nvidia.ko* 2>/dev/null) && modinfo -F version "$f"; true'
# Programs and units of a driver, below its tree (amazon-eks-ami, install-nvidia-driver-trees.sh and setup-nvidia.sh).
_FILES = ("usr/bin/nvidia-smi", "usr/bin/nvidia-persistenced", "usr/lib/systemd/system/nvidia-persistenced.service")
_OF_FABRIC = ("usr/bin/nv-fabricmanager", "usr/lib/systemd/system/nvidia-fabricmanager.service")


def _branches(plan: PlanDocument) -> Mapping[str, DriverBranch]:
    return section(plan, "nvidia_driver", NvidiaDriver)["branches"]


def _trees(plan: PlanDocument) -> str:
    """The folder of all trees."""
    return str(PurePosixPath(next(iter(_branches(plan).values()))["tree"]).parent)


def _flavours(plan: PlanDocument, branch: DriverBranch) -> list[str]:
    """The flavours of the kernel module that the branch's instance types need."""
    of_types = section(plan, "nvidia_driver", NvidiaDriver)["flavour_by_instance_type"]
    return sorted({of_types[name] for name in branch["instance_types"]}) or ["open"]


@pytest.mark.needs("promise")
@pytest.mark.offline
@pytest.mark.tier("T0")
def test_every_tree_is_there(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every driver of the base AMI is in the image, and none was taken: a machine that booted in the build took one."""
    folder = _trees(plan)
    names = output(host, "ls -A %s", folder).split()
    versions = {
        name: host.run("cat %s/.version", branch["tree"]).stdout.strip() or "missing"
        for name, branch in _branches(plan).items()
    }
    planned = {name: branch["version"] for name, branch in _branches(plan).items()}
    observe({"trees": sorted(names), **versions}, planned)
    if "current" in names:
        taken = host.run("cat %s/current/.version", folder).stdout.strip() or "unknown version"
        observe.fail(
            f"{folder}/current: driver {taken} was taken during the build, so machines of every type would have it; "
            "build on an instance without a GPU"
        )
    unmarked = [name for name in _branches(plan) if host.run("test -e %s/.tree-%s", f"{folder}/{name}", name).rc != 0]
    wrong = [f"{name}: {versions[name]}" for name in planned if versions[name] != planned[name]]
    wrong += [f"{name}: no .tree-{name}, without which it is not taken" for name in unmarked]
    if wrong:
        observe.fail(f"drivers in {folder}: expected {planned}, got {'; '.join(wrong)}")


@pytest.mark.needs("promise")
@pytest.mark.offline
@pytest.mark.tier("T0")
def test_trees_are_complete(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every tree has the driver's programs, units and libcuda: at the first boot nothing else brings them."""
    names = (*_FILES, *(_OF_FABRIC if "fabric_manager" in plan else ()))
    wanted = [
        f"{branch['tree']}/{name}"
        for branch in _branches(plan).values()
        for name in (*names, f"usr/lib64/libcuda.so.{branch['version']}")
    ]
    tests = "; ".join("test -e %s || echo %s" for _ in wanted)
    missing = host.run(f"{tests}; true", *(word for path in wanted for word in (path, path))).stdout.split()
    observe({"files": wanted, "missing": missing}, {"missing": []})
    if missing:
        observe.fail(f"missing: {', '.join(missing)}")


@pytest.mark.needs("promise")
@pytest.mark.offline
@pytest.mark.tier("T0")
def test_modules_are_there_for_every_kernel(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every tree has the kernel module, in each flavour that its types need, for every installed kernel.

    The trees have no source: a kernel without a module leaves the machine without a driver.
    """
    kernels = output(host, _KERNELS).split()
    versions = {
        f"{name} {flavour} {kernel}": output(host, _MODULE, branch["tree"], flavour, kernel).strip() or "missing"
        for name, branch in _branches(plan).items()
        for flavour in _flavours(plan, branch)
        for kernel in kernels
    }
    planned = {name: branch["version"] for name, branch in _branches(plan).items()}
    observe(versions, planned)
    wrong = [f"{where}: {version}" for where, version in versions.items() if version != planned[where.split()[0]]]
    if wrong or not kernels:
        observe.fail(f"modules in {_trees(plan)}: expected {planned}, got {'; '.join(wrong) or 'no installed kernel'}")


@pytest.mark.needs("promise")
@pytest.mark.offline
@pytest.mark.tier("T0")
def test_lists_select_the_planned_driver(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """By the base AMI's lists, each instance type takes the planned tree and flavour.

    The first driver whose list has the board, with the open module, or GRID's for a fraction of it; else the first,
    with the proprietary one, as where GSP firmware is off. Source: amazon-eks-ami 46d3c70a,
    templates/al2023/runtime/gpu/resolve-nvidia-driver.sh.
    """
    driver = section(plan, "nvidia_driver", NvidiaDriver)
    lists = {name: _gpus(host, branch["open_list"]) for name, branch in _branches(plan).items()}
    if unread := [_branches(plan)[name]["open_list"] for name, gpus in lists.items() if not gpus]:
        observe.fail(f"no GPU in {', '.join(unread)}: at the first boot no driver can be selected")
    first = next(iter(lists))
    selected, planned = {}, {}
    for row in plan["instance_types"]:
        board = row["gpu"].get("fraction_of", row["gpu"]["name"])
        able = [name for name, gpus in lists.items() if board in gpus]
        without_gsp = row["name"] in driver.get("without_gsp", [])
        tree, flavour = (able[0], "open") if able and not without_gsp else (first, "proprietary")
        selected[row["name"]] = f"{tree} {'grid' if 'fraction_of' in row['gpu'] else flavour}"
        branch = base_driver.planned_branch(plan, row["name"])[0]
        planned[row["name"]] = f"{branch} {driver['flavour_by_instance_type'][row['name']]}"
    observe(selected, planned)
    wrong = [
        f"{name}: expected {planned[name]}, got {selected[name]}" for name in planned if selected[name] != planned[name]
    ]
    if wrong:
        observe.fail(f"drivers by the base AMI's lists: {'; '.join(wrong)}")


def _gpus(host: Any, path: str) -> set[str]:
    """Names of the GPUs in a list; none if it cannot be read."""
    return set(re.findall(r"^0x[0-9A-Fa-f]{4}\s+(\S.*?)\s*$", host.run("cat %s", path).stdout, re.MULTILINE))


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_selection_starts_at_boot(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The units that select and install a driver are enabled. Without them no machine has one."""
    base_ami.check_enabled(host, section(plan, "nvidia_driver", NvidiaDriver)["selects_at_boot"], observe)


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_taken_driver_is_that_of_this_type(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """The machine has taken the tree and the flavour of its instance type, and keeps them after a restart.

    With another one GPUs are not initialised, or run with a driver that does not support them.
    """
    name, branch = base_driver.planned_branch(plan, machine.instance_type)
    flavour = section(plan, "nvidia_driver", NvidiaDriver)["flavour_by_instance_type"][machine.instance_type]
    current = f"{_trees(plan)}/current"
    listed = host.run("ls -A %s", _trees(plan))
    if listed.rc != 0:
        unproven(f"{_trees(plan)} cannot be read: {listed.stderr.strip()}")
    expected = {"tree": name, "version": branch["version"], "flavour": flavour}
    if "current" not in listed.stdout.split():
        observe(listed.stdout.split(), expected)
        observe.fail(f"{machine.instance_type} has taken no driver: no {current} (nvidia-driver-resolve.service)")
    marks = [
        file.removeprefix(".tree-") for file in output(host, "ls -A %s", current).split() if file.startswith(".tree-")
    ]
    taken = {
        "tree": " ".join(marks) or "none",
        "version": host.run("cat %s/.version", current).stdout.strip() or "none",
        "flavour": host.run("cat %s/.driver-flavor", current).stdout.strip() or "none",
    }
    observe(taken, expected)
    if taken != expected:
        observe.fail(
            f"driver of {machine.instance_type}: expected {' '.join(expected.values())}, got {' '.join(taken.values())}"
            f" ({current})"
        )


@pytest.mark.planned("nvidia_driver.fractions")
@pytest.mark.needs("promise")
@pytest.mark.tier("T2")
@pytest.mark.survives
@pytest.mark.usefixtures("board")
def test_every_fraction_is_licensed(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """Each fraction of a GPU has a licence. Without one CUDA fails after a day (amazon-eks-ami pull request 2450)."""
    if machine.instance_type not in section(plan, "nvidia_driver", NvidiaDriver)["fractions"]:
        observe(machine.instance_type, "a whole GPU needs no licence")
        return
    require_licences(host, observe)
