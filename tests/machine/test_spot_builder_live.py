"""An image of a builder that gpu-ami launches as a Spot Instance, provisioned by Packer's null builder.

    pytest -m machine -s tests/machine/test_spot_builder_live.py

The builder is a sandbox of this host, as in `make prove`; root. The image differs from one of an On-Demand builder in
nothing that a role wrote: its tags, its name and its build.json are compared.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.build import image
from gpu_ami.cloud import Cloud, runs, tags_of
from gpu_ami.files import home_dir, read_json
from gpu_ami.plan import make_plan
from gpu_ami.progress import Progress
from gpu_ami.recipes import find_recipe
from localregion.mirror import mirror
from tests.machine.guest import debian_region

pytestmark = pytest.mark.machine

ROOT = Path(__file__).resolve().parents[2]
_OF_A_RUN = ("Name", "gpu-ami:run")


def test_a_spot_builder_makes_the_image_that_an_on_demand_builder_makes(tmp_path: Path) -> None:
    progress = Progress("plain")
    with debian_region(progress) as region:
        place = replace(region, machines=replace(region.machines, sandbox_builder=True))
        plan = make_plan(find_recipe(Path("debian12-gpu")), place)
        mirror.ensure(home_dir(), plan=plan.document, progress=progress)
        built: dict[str, Any] = {}
        for way in ("on-demand", "spot"):
            folder = tmp_path / way
            where = replace(place, capacity=replace(place.capacity, ways={"*": (way,)}))
            plan.write(folder, where)
            cloud = Cloud(where)
            with runs.begin(home_dir(), where.name) as run:
                made = image.build_image(plan, folder, cloud, run, ROOT, progress=progress)
                left = [*cloud.instances_of(run.id, "pending", "running", "stopping", "stopped")]
                keys = cloud.ec2.describe_key_pairs()["KeyPairs"]
            found = cloud.image(made.ami)
            assert found is not None and (left, keys) == ([], [])
            built[way] = (read_json(folder / "build.json"), found)
    attempts = {
        way: [(row["way"], row["answer"]) for row in document["attempts"]] for way, (document, _) in built.items()
    }
    assert attempts == {"on-demand": [("on-demand", "launched")], "spot": [("spot", "launched")]}
    (one, of_demand), (other, of_spot) = built["on-demand"], built["spot"]
    assert one["ansible"]["ok"] == other["ansible"]["ok"] and other["ansible"]["ok"] > 50
    assert other["cost_usd"] > 0 and other["base_inventory"].startswith("sha256:")
    shown = [
        {key: value for key, value in tags_of(each).items() if key not in _OF_A_RUN} for each in (of_demand, of_spot)
    ]
    assert shown[0] == shown[1] and shown[1]["gpu-ami:expires"] == "never"
    for key in ("Architecture", "RootDeviceName", "EnaSupport", "ImdsSupport", "State", "Description"):
        assert of_demand.get(key) == of_spot.get(key), key
    (device,), (expected,) = of_spot["BlockDeviceMappings"], of_demand["BlockDeviceMappings"]
    sizes = [
        {key: each["Ebs"].get(key) for key in ("VolumeSize", "Encrypted", "VolumeType")} for each in (device, expected)
    ]
    assert sizes[0] == sizes[1] and sizes[0]["Encrypted"]
