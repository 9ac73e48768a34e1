"""A driver that is killed by SIGKILL while a builder runs, and again while a machine is proven; the region stays up.

    pytest -m machine -s tests/machine/test_killed_live.py

As tests/test_killed_pipeline.py, with Packer, a real builder and a machine that boots. The seconds after which it is
killed are drawn by seed; GPU_AMI_KILL_SEED names another one.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import runs
from gpu_ami.files import home_dir, read_json
from gpu_ami.progress import Progress
from localregion import region

pytestmark = pytest.mark.machine
RECIPE = Path(__file__).parents[2] / "variables" / "recipes" / "debian12-gpu.yml"
SEED = int(os.environ.get("GPU_AMI_KILL_SEED", "38"))
WORDS = ["prove", str(RECIPE), "--instance-type", "g5.12xlarge", "--restarts", "none"]
LEFT_OUT = 7  # nothing failed; restarts were left out on purpose


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "gpu_ami", *words]


def gpu_ami(*words: str) -> Any:
    done = subprocess.run(command(*words, "--json"), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return json.loads(done.stdout)


@pytest.fixture
def place() -> Iterator[None]:
    """The region is up, as AWS is, whoever ends."""
    region.up(embedded=True, progress=Progress("plain"))
    yield
    region.release()


def instances(name: str) -> list[dict[str, Any]]:
    """Running instances whose Name ends so: ` builder`, or the run's id of a machine under proof."""
    found: list[dict[str, Any]] = [dict(row) for row in region.status().get("instances", [])]
    is_builder = name == "builder"
    return [
        row for row in found
        if row["state"] == "running" and row["tags"].get("Name", "").endswith(" builder") == is_builder
    ]  # fmt: skip


def kill_when(out: Path, is_there: Callable[[], object], seconds: float) -> None:
    """Starts a run, and kills its driver so many seconds after something is there."""
    with (out.parent / "driver.log").open("a") as log:
        driver = subprocess.Popen(command(*WORDS, "-o", str(out)), stdout=log, stderr=log, start_new_session=True)
    deadline = time.monotonic() + 600
    while not is_there():
        assert driver.poll() is None and time.monotonic() < deadline, (out.parent / "driver.log").read_text()[-4000:]
        time.sleep(0.5)
    time.sleep(seconds)
    assert driver.poll() is None, "it had ended"
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()


def sweep() -> list[str]:
    """What kinds of leftovers a sweep removed; then nothing is left that runs, and no run."""
    swept = gpu_ami("sweep")
    assert [row for row in swept if row["error"]] == []
    assert [row for row in region.status().get("instances", []) if row["state"] != "terminated"] == []
    assert runs.records(home_dir()) == []
    assert gpu_ami("sweep") == []
    return sorted({str(row["kind"]) for row in swept})


def test_after_sigkill_nothing_is_left_and_the_next_run_succeeds(place: None, tmp_path: Path) -> None:
    out, chosen = tmp_path / "out", random.Random(SEED)
    known = {row["id"] for row in region.status()["images"]}
    moments = chosen.uniform(1, 40), chosen.uniform(1, 20)

    kill_when(out, lambda: instances("builder"), moments[0])
    print(f"\n| {moments[0]:.1f} s after the builder ran | {', '.join(sweep())} |", flush=True)
    assert {row["id"] for row in region.status()["images"]} == known and not (out / "build.json").exists()

    kill_when(out, lambda: instances("machine"), moments[1])
    print(f"| {moments[1]:.1f} s after the machine ran | {', '.join(sweep())} |", flush=True)
    made = (read_json(out / "build.json") or {})["ami"]
    assert {row["id"] for row in region.status()["images"]} == known | {made}

    done = subprocess.run(command(*WORDS, "-o", str(out)), capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == LEFT_OUT, done.stdout[-2000:] + done.stderr[-4000:]
    report = read_json(out / "report.json") or {}
    assert report["image"] == made and not report["incomplete"]
    assert sweep() == []
