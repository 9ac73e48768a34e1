"""Each kind of image in a sandbox: its roles run on its own system's tree, and a second time they change nothing.

`make roles` runs these (marker `sandbox`; root, some minutes). What a sandbox does not prove, ARCHITECTURE.md says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpu_ami.build.ansible import Converged, Machine, converge
from gpu_ami.files import home_dir
from gpu_ami.local import region
from gpu_ami.local.images.source_ami import base_of
from gpu_ami.local.machines.devices import Devices
from gpu_ami.local.mirror import mirror
from gpu_ami.local.sandbox import sandbox
from gpu_ami.plan import ANSIBLE_FILE, Plan, ansible_variables, make_plan
from gpu_ami.progress import Progress

ROOT = Path(__file__).resolve().parents[2]
# Done on the way to an image, whatever it finds; and it takes the keys by which we are in.
_NOT_AGAIN = "hygiene"


@dataclass(frozen=True)
class Case:
    """A recipe, and what hardware the tree of its base image shows."""

    image: str
    devices: Devices


CASES = [
    Case("debian12-gpu", Devices(gpu=8, nvswitch=6, efa=4)),
    Case("eks-1.33-al2023-gpu", Devices(gpu=8, nvswitch=4, efa=32)),
    Case("pcluster-3.16-ubuntu2404", Devices(gpu=8, nvswitch=4, efa=32)),
    Case("al2023-neuron", Devices(efa=8, neuron=16)),
    Case("ecs-al2023-gpu", Devices(gpu=8, nvswitch=6, efa=4)),
    Case("al2023-compute", Devices(gpu=8, nvswitch=6, efa=4)),
    Case("ubuntu2404-compute", Devices(gpu=8, nvswitch=6, efa=4)),
    Case("ubuntu2404-neuron", Devices(efa=8, neuron=16)),
]


@dataclass(frozen=True)
class Entered:
    """A sandbox, the plan's variables for it, and how to run the roles."""

    plan: Plan
    variables: Path
    machine: Machine

    def converge(self) -> Converged:
        return converge(ROOT, self.variables, self.machine)


@pytest.fixture(scope="module", params=CASES, ids=lambda case: case.image)
def entered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Entered]:
    case: Case = request.param
    home, progress = home_dir(), Progress(mode="plain")
    plan = make_plan(ROOT / "variables" / "recipes" / f"{case.image}.yml", region.local_place(home))
    mirror.ensure(home, plan=plan.document, agent_package=None, progress=progress)
    variables = ansible_variables(plan.document) | {"cloudwatch_agent_started": False, "event_parser_started": False}
    variables["gpu_ami_roles"] = [role for role in plan["roles"] if role != _NOT_AGAIN]
    if "tuning_sysctl" in variables:  # a sandbox has a network of its own, without the settings of the whole kernel
        variables["tuning_sysctl"] = {"net.ipv4.tcp_keepalive_time": "600"}
    file = tmp_path_factory.mktemp(case.image) / ANSIBLE_FILE
    file.write_text(json.dumps(variables))
    with sandbox.entered(base_of(plan.document), case.devices, home, progress) as found:
        yield Entered(plan, file, Machine(found.host, found.port, found.user, found.key, simulated=True))


@pytest.mark.sandbox
def test_the_second_converge_changes_nothing(entered: Entered) -> None:
    first = entered.converge()
    again = entered.converge()
    print(f"{entered.plan.image}: {first.text()}; again {again.text()}")
    assert first.changed
    assert again.changed == ()
    assert again.ok <= first.ok
