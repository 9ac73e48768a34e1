"""The EFA installer on a Neuron image: its package for NVIDIA drivers is removed (marker `sandbox`, `make roles`)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami.build.ansible import Machine, converge
from gpu_ami.files import home_dir
from gpu_ami.plan import ansible_variables, make_plan
from gpu_ami.progress import Progress
from localregion import region
from localregion.images.rootfs_layers import Base
from localregion.machines.boards import Devices
from localregion.mirror import mirror
from localregion.sandbox import sandbox
from tests.roles.test_sources_in_sandbox import sh

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def home() -> Path:
    """The home of whoever runs the tests, with its base images: asked for before each test gets a home of its own."""
    return home_dir()


@pytest.mark.sandbox
@pytest.mark.parametrize(("base", "recipe"), [("al2023", "al2023-neuron"), ("ubuntu2404", "ubuntu2404-neuron")])
def test_nothing_loads_the_nvidia_driver_at_boot(base: str, recipe: str, home: Path, tmp_path: Path) -> None:
    """systemd-modules-load would fail: efa-nv-peermem names a module of a driver that the image does not have."""
    progress = Progress(mode="quiet")
    plan = make_plan(ROOT / "variables" / "recipes" / f"{recipe}.yml", region.local_place(home))
    mirror.ensure(home, plan=plan.document, only=["efa"], progress=progress)
    file = tmp_path / "ansible.json"
    file.write_text(json.dumps(ansible_variables(plan.document) | {"gpu_ami_roles": ["efa"]}))
    with sandbox.entered(Base.parse(base), Devices(efa=8, neuron=16), home, progress) as inside:
        machine = Machine(inside.host, inside.port, inside.user, Path(inside.key), slow_python=True)
        assert converge(ROOT, file, machine).changed
        assert sh(inside, "grep -rl nvidia /etc/modules-load.d || true") == ""
        assert "efa-nv-peermem" in sh(inside, "cat /opt/amazon/efa_installed_packages")  # the installer did bring it
        assert converge(ROOT, file, machine).changed == ()
