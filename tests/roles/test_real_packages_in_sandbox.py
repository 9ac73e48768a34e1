"""An image of real packages alone: Debian's NVIDIA driver is installed in a sandbox, and the image's files are judged.

`make real` runs this (marker `real`; root, the network, some minutes): no replica, no GPU. The image is then booted,
emulated, and what needs a board is UNPROVEN by name.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from gpu_ami import pipeline
from gpu_ami.build.ansible import Converged, Machine, converge
from gpu_ami.files import home_dir
from gpu_ami.plan import ANSIBLE_FILE, PLAN_FILE, Plan, ansible_variables, make_plan
from gpu_ami.process import run
from gpu_ami.progress import Progress
from gpu_ami.region import SessionRequest
from gpu_ami.report import HostReport, Report, certificate
from gpu_ami.validate import Proof, ProofOptions, host_proof
from localregion import region
from localregion.images import source_ami
from localregion.images.source_ami import base_of
from localregion.machines.boards import Devices
from localregion.mirror import mirror
from localregion.sandbox import sandbox
from tests.roles import sandbox_files
from validator import remote
from validator.probes import compute
from validator.transport import cage

ROOT = Path(__file__).resolve().parents[2]
TRANSCRIPTS = ROOT / "tests" / "transcripts"
WITHOUT_DRIVER = TRANSCRIPTS / "nvidia_smi_without_driver.yml"
# Recipe → what cuInit of its libcuda ends with in the image's files, beside which there is no driver.
CUDA_INIT = {
    "debian12-distribution": "CUDA_ERROR_NO_DEVICE (100): ",
    "debian13-distribution": "CUDA_ERROR_OPERATING_SYSTEM (304): ",
}
# Recipe → what its driver says on a machine without a board.
RECIPES = {
    "debian12-distribution": TRANSCRIPTS / "nvidia_driver_without_board.yml",
    "debian13-distribution": TRANSCRIPTS / "nvidia_driver_without_board_550.yml",
}
# Role hygiene does not run in a sandbox, and no inventory of the base AMI is taken: their checks are left out.
_NOT_OF_A_SANDBOX = ("hygiene", "image.py", "inventory", "file_account")
_OF_THE_AGENT = ("cloudwatch_agent", "logs.py", "metrics.py", "diagnosis")
_CHECKS = ("-k", "nvidia_driver or kernel or event_parser or boot")


@dataclass(frozen=True)
class Image:
    """A built image: its plan, the folder of its files, and what Ansible and nvidia-smi printed."""

    recipe: str
    plan: Plan
    out: Path
    tree: Path
    converged: Converged
    smi: dict[str, object]

    def inside(self, command: str) -> str:
        """The output of a shell command in the image's files, which stay as they are."""
        mount_point = self.out / "mnt"
        mount_point.mkdir(exist_ok=True)
        words = cage.command("files", mount_point, ["/bin/sh", "-c", command], str(self.tree))
        return run(words, timeout=300, check=False).stdout


def _plan(recipe: str, agent: Path | None) -> Plan:
    """Without the CloudWatch agent's own package, which comes from AWS alone, its role is left out."""
    overrides = ["tuning.network=false"]  # a sandbox has a network of its own, without the settings of the whole kernel
    if agent is None:
        overrides.append("roles=[kernel, nvidia_driver, tuning, event_parser, hygiene]")
    return make_plan(ROOT / f"variables/recipes/{recipe}.yml", region.local_place(home_dir()), overrides)


@pytest.fixture(scope="module", params=RECIPES)
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    agent = Path(os.environ["AGENT_PACKAGE"]) if os.environ.get("AGENT_PACKAGE") else None
    home, progress = home_dir(), Progress(mode="plain")
    plan, out = _plan(request.param, agent), tmp_path_factory.mktemp("real")
    mirror.ensure(home, plan=plan.document, agent_package=agent, progress=progress)
    variables = ansible_variables(plan.document) | {"cloudwatch_agent_started": False, "event_parser_started": False}
    (out / ANSIBLE_FILE).write_text(json.dumps(variables))
    (out / PLAN_FILE).write_text(json.dumps(plan.document))
    base, tree = base_of(plan.document), out / "tree"
    tree.mkdir()
    with sandbox.entered(base, Devices(), home, progress) as box:
        machine = Machine(box.host, box.port, box.user, Path(box.key), slow_python=True)
        converged = converge(ROOT, out / ANSIBLE_FILE, machine, note=progress.note)
        done = run(["chroot", box.root, "nvidia-smi"], timeout=60, check=False)
        smi = {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}
        sandbox_files.copy(box, tree)
    sandbox_files.restore_base_files(tree, base, home, progress)
    yield Image(request.param, plan, out, tree, converged, smi)


@pytest.fixture(scope="module")
def report(image: Image) -> HostReport:
    """The checks of tier T0 on the image's files, as `gpu-ami validate --root` runs them."""
    proof = Proof(
        image.plan.document,
        image.out / PLAN_FILE,
        None,
        image.out,
        Progress(mode="plain"),
        ProofOptions(validator_options=_CHECKS),
    )
    return host_proof.check(proof, image.tree)


pytestmark = [pytest.mark.sandbox, pytest.mark.real]


def test_real_driver_says_that_there_is_no_gpu(image: Image) -> None:
    print(f"\n{image.converged.text()}\nnvidia-smi: {json.dumps(image.smi)}")
    real = next(
        row for row in yaml.safe_load(WITHOUT_DRIVER.read_text(encoding="utf-8")) if row["command"] == "nvidia-smi"
    )
    assert (image.smi["status"], image.smi["stdout"]) == (real["status"], real["stdout"])


def test_compute_probe_names_the_error_of_the_real_libcuda(image: Image) -> None:
    """NVIDIA's own libcuda, in the image's files: cuInit ends with an error, and the probe names it."""
    printed = image.inside(remote.python("compute_probe", "--seconds", "60"))
    print(printed)
    result = compute.read(printed)
    assert result.error.startswith(f"cuInit: cuInit: {CUDA_INIT[image.recipe]}")
    assert (result.replica, result.count, result.gpus) == ("", 0, ())


def test_module_of_every_kernel_is_the_real_one(image: Image) -> None:
    driver = image.plan["nvidia_driver"]
    shown = image.inside(f"for k in $(ls /lib/modules); do modinfo -k $k {driver['module']}; done")
    print(shown[:600])
    assert f"\nversion:        {driver['version']}\n" in f"\n{shown}"
    assert "replica" not in shown


def test_files_of_the_image_hold(report: HostReport) -> None:
    for record in report.checks:
        print(f"{record.verdict:9} {record.id}: {record.message}")
    assert report.error == "" and any(record.verdict == "PASS" for record in report.checks)
    assert [record.id for record in report.checks if record.verdict not in ("PASS", "UNPROVEN")] == []


def test_report_names_no_replica(report: HostReport) -> None:
    assert report.error == "" and report.replicas == ()


# Runs the transcript's commands on the booted machine, and compares what they print with it. Of the kernel's log it has
# what the first load says of the module and what the last one, its own, finds: systemd ends a load at boot after 90 s.
_ASK = """
import re


def test_the_real_driver_says_what_is_recorded(host, observe):
    \"\"\"The real driver's own words on a machine without an NVIDIA board are those of the transcript.\"\"\"
    recorded = %r
    said = []
    for row in recorded["commands"]:
        done = host.run(row["command"], timeout=600)
        said.append({"command": row["command"], "status": done.rc, "stdout": done.stdout, "stderr": done.stderr})
    log = host.run("journalctl -k --no-pager -o cat | grep -iE 'nvidia|NVRM|nouveau'").stdout
    lines = [re.sub("number [0-9]+$", "number 244", line) for line in log.splitlines()]
    loads = [at for at, line in enumerate(lines) if "Nvlink Core is being initialized" in line] or [0]
    lines = lines[: loads[0]] + lines[loads[-1] :]
    observe.same({"kernel": lines, "commands": said}, recorded, "what the driver says")
"""


@pytest.fixture(scope="module")
def booted(image: Image, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """The proof of the image as an AMI, on one machine that is not restarted."""
    checks = tmp_path_factory.mktemp("checks")
    recorded = yaml.safe_load(RECIPES[image.recipe].read_text(encoding="utf-8"))
    (checks / "test_driver_without_board.py").write_text(_ASK % (recorded,))
    ami = source_ami.save(image.tree, f"gpu-ami_{image.recipe}-real", home_dir(), Progress(mode="plain"))
    left_out = _NOT_OF_A_SANDBOX + (() if "cloudwatch_agent" in image.plan.document["roles"] else _OF_THE_AGENT)
    expression = " and ".join(f"not {name}" for name in left_out)
    asked = ProofOptions(["g5.12xlarge"], [checks], ("-k", expression))
    with pipeline.open_session(SessionRequest(), Progress(mode="plain")) as session:
        decided = pipeline.decide(image.plan, asked, session)
        return pipeline.validate_stage(image.plan, ami, image.out, session, decided)


def test_what_needs_a_board_is_unproven(booted: Report, image: Image) -> None:
    for host in booted.hosts:
        print(f"{host.name} {host.error}")
        for record in host.checks:
            print(f"{record.verdict:9} {record.id}: {record.message}")
    verdicts = {record.id: record.verdict for host in booted.hosts for record in host.checks}
    assert [host.error for host in booted.hosts if host.error] == []
    assert [name for name, verdict in verdicts.items() if verdict not in ("PASS", "UNPROVEN")] == []
    assert verdicts["test_driver_without_board::test_the_real_driver_says_what_is_recorded"] == "PASS"
    assert verdicts["nvidia_driver::test_loaded_driver_is_the_planned_one"] == "UNPROVEN"


def test_certificate_names_no_replica(booted: Report) -> None:
    statement = certificate.certify(booted)
    assert statement.replicas == ()
