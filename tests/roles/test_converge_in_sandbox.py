"""Each kind of image in a sandbox: its roles run on its own system's tree, and a second time they change nothing.

Every file that they leave has an explanation: the base image's inventory is taken before the first role.

`make roles` runs these (marker `sandbox`; root, some minutes). What a sandbox does not prove, ARCHITECTURE.md says.
"""

from __future__ import annotations

import json
import math
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gpu_ami.build.ansible import Converged, Machine, converge
from gpu_ami.files import home_dir
from gpu_ami.plan import ANSIBLE_FILE, Plan, ansible_variables, make_plan
from gpu_ami.progress import Progress
from localregion import region
from localregion.images.source_ami import base_of
from localregion.machines.boards import Devices
from localregion.mirror import mirror
from localregion.sandbox import sandbox
from validator import file_account as account
from validator.file_account import Inventory, collect

ROOT = Path(__file__).resolve().parents[2]
# Done on the way to an image, whatever it finds; and it takes the keys by which we are in.
_NOT_AGAIN = "hygiene"
_EMPTIED_BY_HYGIENE = re.compile(r"/(home/[^/]+|root)/\.ansible(/tmp)?|/tmp/.+|/var/lib/dkms/mok\.(key|pub)")
# apt notes each update of its lists; dnf does not read the file.
_COUNTER = "/etc/apt/apt.conf.d/99count-updates"
_COUNT_UPDATES = 'APT::Update::Pre-Invoke {"echo update >> /run/apt-updates";};\n'
_SSH = ("-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR")


@dataclass(frozen=True)
class Case:
    """A recipe, values above it, and what hardware the tree of its base image shows."""

    image: str
    devices: Devices
    overrides: tuple[str, ...] = ()


CASES = [
    Case("debian12-gpu", Devices(gpu=8, nvswitch=6, efa=4)),
    Case("eks-1.33-al2023-gpu", Devices(gpu=8, nvswitch=4, efa=32)),
    Case("eks-1.35-al2023-nvidia", Devices()),  # it takes a driver at the first boot with a GPU
    Case("eks-1.35-ubuntu2404-gpu", Devices(gpu=4)),
    Case("pcluster-3.16-ubuntu2404", Devices(gpu=8, nvswitch=4, efa=32)),
    Case("pcluster-3.16-al2023", Devices(gpu=8, nvswitch=6, efa=4)),
    Case("al2023-neuron", Devices(efa=8, neuron=16)),
    Case("ecs-al2023-gpu", Devices(gpu=8, nvswitch=6, efa=4)),
    Case("al2023-compute", Devices(gpu=8, nvswitch=6, efa=4), ("gds.version=2.28.4",)),
    Case("ubuntu2404-compute", Devices(gpu=8, nvswitch=6, efa=4), ("gds.version=2.29.4",)),
    Case("ubuntu2404-neuron", Devices(efa=8, neuron=16)),
    Case("ubuntu2404-workstation", Devices(gpu=1)),
]


@dataclass(frozen=True)
class Entered:
    """A sandbox, the plan's variables for it, and how to run the roles."""

    plan: Plan
    variables: Path
    machine: Machine
    base: Inventory

    def converge(self) -> Converged:
        return converge(ROOT, self.variables, self.machine)


def ssh(machine: Machine, command: str, stdin: bytes = b"") -> bytes:
    """Standard output of a command in the sandbox; it must succeed."""
    words = [
        "ssh",
        "-i",
        str(machine.key),
        "-p",
        str(machine.port),
        *_SSH,
        f"{machine.user}@{machine.address}",
        command,
    ]
    return subprocess.run(words, input=stdin, capture_output=True, timeout=300, check=True).stdout


def inventory(machine: Machine) -> Inventory:
    """The inventory of the sandbox, as that of a machine which has booted: hygiene does not run here."""

    def run(program: Path, *options: str) -> bytes:
        return ssh(machine, " ".join(["sudo python3 -IS -", *options]), program.read_bytes())

    ramdisks = account.read_ramdisks(run(collect.PROGRAM.with_name("initial_ramdisk.py")).decode())
    return replace(account.read(run(collect.PROGRAM, "--running")), ramdisks=ramdisks)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.image)
def entered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entered]:
    case: Case = request.param
    home, progress = home_dir(), Progress(mode="plain")
    plan = make_plan(ROOT / "variables" / "recipes" / f"{case.image}.yml", region.local_place(home), case.overrides)
    mirror.ensure(home, plan=plan.document, agent_package=None, progress=progress)
    variables = ansible_variables(plan.document) | {"cloudwatch_agent_started": False, "event_parser_started": False}
    variables["gpu_ami_roles"] = [role for role in plan["roles"] if role != _NOT_AGAIN]
    if "tuning_sysctl" in variables:  # a sandbox has a network of its own, without the settings of the whole kernel
        variables["tuning_sysctl"] = {"net.ipv4.tcp_keepalive_time": "600"}
    file = tmp_path_factory.mktemp(case.image) / ANSIBLE_FILE
    file.write_text(json.dumps(variables))
    with sandbox.entered(base_of(plan.document), case.devices, home, progress) as found:
        machine = Machine(found.host, found.port, found.user, Path(found.key), slow_python=True)
        ssh(machine, f"sudo tee {_COUNTER} 2>/dev/null || true", _COUNT_UPDATES.encode())
        # The boot time is the host's, and no file is of a first boot: the sandbox made its login user just before.
        yield Entered(plan, file, machine, replace(inventory(machine), boot_time=math.inf))


def repositories(entered: Entered) -> set[str]:
    """Of the plan's packages, and the system's own archive."""
    sections = (section for section in entered.plan.document.values() if isinstance(section, dict))
    return {str(section["repository"]["url"]) for section in sections if "repository" in section} | {"the system's"}


@pytest.mark.sandbox
def test_the_second_converge_changes_nothing(entered: Entered) -> None:
    first = entered.converge()
    updates = ssh(entered.machine, "cat /run/apt-updates 2>/dev/null || true").splitlines()
    again = entered.converge()
    print(f"{entered.plan.image}: {first.text()}; again {again.text()}")
    assert first.changed
    assert again.changed == ()
    assert again.ok <= first.ok
    assert len(updates) <= len(repositories(entered)), "a repository that several roles share is downloaded once"


@pytest.mark.sandbox
def test_every_file_has_an_explanation(entered: Entered) -> None:
    entered.converge()
    image, plan = inventory(entered.machine), entered.plan.document
    variables = account.plan_variables(plan)
    footprints, without = account.load_footprints([ROOT / "roles"], plan["roles"], variables)
    assert without == []
    packages = account.account_packages(image, entered.base, account.planned_names(plan), footprints.values())
    assert list(packages.findings) == []
    result = account.explain(
        image,
        entered.base,
        account.load_system_rules(variables),
        footprints.values(),
        changed_packages=packages.explained,
    )
    print(f"{plan['image']}: {dict(result.explained)}; {dict(account.widest(result))}; {result.not_compared}")
    assert [account.unexplained_in_ramdisk(ramdisk, image) for ramdisk in image.ramdisks.values()].count([]) == len(
        image.ramdisks
    )
    left = [finding for finding in result.findings if not _EMPTIED_BY_HYGIENE.fullmatch(finding.path)]
    assert "\n".join(finding.text() for finding in left) == ""
    login = plan["os"]["ssh_user"]
    assert account.unexplained_accounts(image, entered.base, footprints.values(), login) == []
