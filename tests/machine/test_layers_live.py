"""An image that was made in layers has the files of one from nothing, and a change costs the layers above it alone.

    pytest -m machine -s tests/machine/test_layers_live.py

Four builds of one recipe in the local region: from nothing, with `--layers all`, and with `--layers auto` after a
change of telemetry and of the driver. GPU_AMI_LAYERS_OUT names a folder that keeps them: a build there is used again.
GPU_AMI_LAYERS_BUILDER=sandbox does not boot the builders (minutes instead of an hour).
By hand: gpu-ami diff --same FOLDER FOLDER.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.files import home_dir, read_json, write_json

pytestmark = pytest.mark.machine
RECIPE = Path(__file__).parents[2] / "variables" / "recipes" / "debian12-gpu.yml"
BUILDER = os.environ.get("GPU_AMI_LAYERS_BUILDER", "machine")
TELEMETRY, DRIVER = "telemetry.interval_s=30", "nvidia_driver.version=580.167.08"
ABOVE_DRIVER = ["nvidia_driver", "fabric_manager", "cuda", "cudnn", "nccl", "efa", "tuning", "cloudwatch_agent"]
# Times of a build from nothing, which a change may cost at most.
MOST_TELEMETRY, MOST_DRIVER = 0.25, 0.80


def gpu_ami(*words: str, json_lines: bool = False) -> list[dict[str, Any]]:
    """Runs the program; the JSON lines of its progress."""
    command = [str(Path(sys.executable).with_name("gpu-ami")), *words, *(["--json"] if json_lines else ["-q"])]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return [json.loads(line) for line in done.stderr.splitlines() if json_lines and line.startswith("{")]


@dataclass(frozen=True)
class Built:
    """A build in a folder. seconds: of Packer and of what it waited for, layer images included."""

    folder: Path
    seconds: float
    layers: tuple[dict[str, Any], ...]

    @property
    def disk(self) -> Path:
        return home_dir() / "images" / str((read_json(self.folder / "build.json") or {})["ami"]) / "disk.raw"

    @property
    def roles(self) -> list[str]:
        """Roles that this build ran, without those of layer images that it made."""
        rows = (read_json(self.folder / "build.json") or {})["ansible"]["roles"]
        return [str(row[0]) for row in rows]


@dataclass(frozen=True)
class Builds:
    """Builds below a folder, each made when it is first asked for."""

    folder: Path

    def get(self, name: str, layers: str, *changes: str) -> Built:
        out = self.folder / name
        if not (out / "times.json").is_file():
            settings = [word for change in changes for word in ("--set", change)]
            gpu_ami("plan", str(RECIPE), "-o", str(out), *settings)
            progress = gpu_ami("build", str(out), "--builder", BUILDER, "--layers", layers, json_lines=True)
            times = {row["text"]: row["seconds"] for row in progress if row["event"] == "done"}
            write_json(out / "times.json", times)
        times = read_json(out / "times.json") or {}
        build = read_json(out / "build.json") or {}
        print(f"{name}: {times}", flush=True)
        return Built(out, float(times[f"build {RECIPE.stem}"]), tuple(build["layers"]))

    @property
    def from_nothing(self) -> Built:
        return self.get("nothing", "none")

    @property
    def layered(self) -> Built:
        return self.get("all", "all")


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Builds:
    kept = os.environ.get("GPU_AMI_LAYERS_OUT")
    return Builds(Path(kept) if kept else tmp_path_factory.mktemp("layers"))


def test_an_image_in_layers_has_the_same_files(builds: Builds) -> None:
    images = builds.from_nothing, builds.layered
    assert [row["from_image"] for row in images[1].layers] == [True, True, True, True, False]
    gpu_ami("diff", "--same", *(str(image.disk) for image in images))


def test_a_change_of_telemetry_builds_the_last_layer_alone(builds: Builds) -> None:
    before, full = builds.layered, builds.from_nothing
    changed = builds.get("telemetry", "auto", TELEMETRY)
    assert changed.roles == ["cloudwatch_agent", "event_parser", "drain_hook", "hygiene"]
    assert [row["ami"] for row in changed.layers] == [row["ami"] for row in before.layers]
    print(f"telemetry alone: {changed.seconds / full.seconds:.0%} of {full.seconds:.0f} s", flush=True)
    assert changed.seconds <= MOST_TELEMETRY * full.seconds


def test_a_change_of_the_driver_builds_the_layers_above_the_kernel(builds: Builds) -> None:
    before, full = builds.layered, builds.from_nothing
    changed = builds.get("driver", "auto", DRIVER)
    assert [role for role in ABOVE_DRIVER if role not in changed.roles] == []
    assert "kernel" not in changed.roles
    assert changed.layers[0]["ami"] == before.layers[0]["ami"] != ""
    print(f"driver: {changed.seconds / full.seconds:.0%} of {full.seconds:.0f} s", flush=True)
    assert changed.seconds <= MOST_DRIVER * full.seconds
