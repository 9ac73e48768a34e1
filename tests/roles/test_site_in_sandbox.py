"""The example of docs/site.md in a sandbox: the role installs, its check passes, its fault turns the check red.

`make roles` runs this (marker `sandbox`; root). The sandbox is the tree of the recipe's own base image.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_ami.build.ansible import Machine, converge
from gpu_ami.cloud.place import Place
from gpu_ami.faults import catalogue, trials
from gpu_ami.files import home_dir
from gpu_ami.plan import ANSIBLE_FILE, PLAN_FILE, make_plan, site_files
from gpu_ami.progress import Progress
from localregion.images.source_ami import base_of
from localregion.machines.boards import Devices
from localregion.sandbox import sandbox
from tests.roles.test_sources_in_sandbox import sh

ROOT = Path(__file__).resolve().parents[2]
ROLE = "company_monitor"
CHECK = "test_company_monitor::test_endpoint_is_the_planned_one"


@pytest.fixture(scope="module")
def home() -> Path:
    """The user's own state folder, which holds the base images: resolved before a test gets a home of its own."""
    return home_dir()


def verdict(out: Path, inside: sandbox.Sandbox, checks: list[Path]) -> str:
    """Runs the site's checks over SSH, as a proof does, and returns the verdict of the one that there is."""
    results = out / "checks.json"
    command: list[str | Path] = [
        sys.executable, "-m", "pytest", "-p", "validator.plugin", "-p", "no:cacheprovider", "-q", "--no-evidence",
        f"--hosts=ssh://{inside.user}@{inside.host}:{inside.port}", f"--ssh-identity-file={inside.key}",
        f"--known-hosts={out / 'known_hosts'}", f"--plan={out / PLAN_FILE}", f"--results={results}", *checks,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    (record,) = json.loads(results.read_text())["checks"]
    assert record["id"].endswith(CHECK)
    return str(record["verdict"])


@pytest.mark.sandbox
def test_role_installs_and_its_fault_turns_its_check_red(home: Path, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "examples" / "site", tmp_path / "site")
    out = tmp_path / "out"
    plan = make_plan(tmp_path / "site" / "recipes" / "monitored.yml", Place("aws", "eu-central-1"))
    plan.write(out, Place("aws", "eu-central-1"))
    checks = site_files(out, "checks", "test_{}.py", plan["roles"])
    more = site_files(out, "faults", "{}.yml", plan["roles"])
    (fault,) = catalogue.load(trials.folder(), ["company-monitor-other-endpoint"], more=more)
    assert fault.caught_by == CHECK
    with sandbox.entered(base_of(plan.document), Devices(gpu=4), home, Progress(mode="quiet")) as inside:
        machine = Machine(inside.host, inside.port, inside.user, Path(inside.key), slow_python=True)
        assert verdict(out, inside, checks) == "FAIL"  # the role has not run yet
        assert converge(ROOT, out / ANSIBLE_FILE, machine, roles=[ROLE]).changed
        assert converge(ROOT, out / ANSIBLE_FILE, machine, roles=[ROLE]).changed == ()
        assert sh(inside, "stat -c '%U %a' /etc/company-monitor.conf").split() == ["root", "644"]
        assert verdict(out, inside, checks) == "PASS"
        sh(inside, fault.inject)
        assert verdict(out, inside, checks) == "FAIL"
        sh(inside, fault.revert)
        assert verdict(out, inside, checks) == "PASS"
