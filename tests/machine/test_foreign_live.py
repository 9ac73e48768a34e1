"""Images of a pipeline that knows nothing of gpu-ami are built, observed, booted and judged.

    pytest -m machine -s tests/machine/test_foreign_live.py

Packer builds images in the local region with tests/machine/foreign/: a plain template and shell scripts that install
the vendors' packages, the team's own units and its agent's configuration. The careful one must be healthy. The careless
one captures no Xid, loads no nvidia-uvm, so that CUDA is dead, and has the build's keys and logs. The others have
Debian's own driver, a driver of no package, a fabric manager of another version, and no module of the driver. The
builder is a sandbox. All are booted but that with Debian's own driver, which drives no emulated GPU: of it the files
are judged.
GPU_AMI_FOREIGN_OUT names a folder that keeps the images' manifests and the proofs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import pytest

from gpu_ami.files import home_dir, read_json

pytestmark = pytest.mark.machine
ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).with_name("foreign")
MIRROR = "http://169.254.169.252"  # docs/local-region.md, addresses
MOST_UNPROVEN = 40
PLANS = ("debian12-gpu", "debian12-distribution")  # the mirror serves what these need
# Kind → the scripts that the template runs.
KINDS = {
    "careful": ("nvidia_repository.sh", "agent.sh", "install.sh", "cleanup.sh"),
    "careless": ("nvidia_repository.sh", "agent.sh", "install.sh"),
    "distribution": ("agent.sh", "distribution_driver.sh", "cleanup.sh"),
    "installer": ("nvidia_repository.sh", "agent.sh", "installer.sh", "cleanup.sh"),
    "fabric-manager": ("nvidia_repository.sh", "other_fabric_manager.sh", "cleanup.sh"),
    "no-module": ("nvidia_repository.sh", "without_headers.sh", "cleanup.sh"),
}
# Checks that must fail on the careless image; its other checks pass.
CARELESS = {
    "compute::test_cuda_starts", "device_nodes::test_device_nodes_are_there", "device_nodes::test_uvm_module_is_loaded",
    "hygiene::test_no_builder_logs", "hygiene::test_no_package_cache", "hygiene::test_no_private_key_of_the_build",
    "image::test_no_host_keys",
    "image::test_no_log", "observed::test_an_xid_arrives_where_kernel_lines_are_sent",
}  # fmt: skip
# What fails of others once they are booted, their files included.
BOOTED = {
    "installer": {
        "cloudwatch_agent::test_agent_is_active_and_enabled", "cloudwatch_agent::test_agent_log_has_no_error",
        "cloudwatch_agent::test_agent_reports_configured",  # nothing configures it
        "hygiene::test_no_builder_logs", "image::test_no_log",  # the installer's
    },
    "fabric-manager": {
        "boot::test_no_unit_failed", "boot::test_system_is_running",
        "fabric_manager::test_fabric_manager_is_of_the_driver_s_version",
        "fabric_manager::test_fabric_manager_runs_where_nvswitch_is",
        "compute::test_cuda_starts", "device_nodes::test_device_nodes_are_there",
        "device_nodes::test_uvm_module_is_loaded",  # nothing loads nvidia-uvm
    },
    "no-module": {
        "device_nodes::test_uvm_module_is_on_disk_for_every_kernel",
        "kernel::test_modules_can_be_built_for_the_running_kernel",
        "nvidia_driver::test_every_promised_gpu_is_there", "nvidia_driver::test_module_on_disk_is_the_planned_one",
    },
}  # fmt: skip
COMPUTES = {"installer": "PASS", "fabric-manager": "FAIL", "no-module": "UNPROVEN"}
VERDICTS = ("PASS", "FAIL", "UNPROVEN", "ERROR")


@dataclass(frozen=True)
class Files:
    """What the files of an image show. failed: checks of `validate --root`, and no others."""

    driver: str
    findings: frozenset[str]
    others: frozenset[str]  # findings that it must not have
    failed: frozenset[str] = frozenset()


JUDGED_BY_FILES = {
    "distribution": Files(
        "535.309.01",
        frozenset({"xid-capture", "not-held"}),
        frozenset({"module-missing", "sources-differ", "no-package", "nouveau", "no-gpu-metrics"}),
    ),
    "installer": Files(
        "580.178.04",
        frozenset({"no-package", "agent-unconfigured", "xid-capture"}),
        frozenset({"not-held", "module-missing", "sources-differ", "nouveau", "no-uvm", "dkms"}),
        failed=frozenset({"image::test_no_log"}),  # the installer's
    ),
    "fabric-manager": Files(
        "580.178.04",
        frozenset({"fabric_manager-version", "no-agent", "xid-capture"}),
        frozenset({"not-held", "module-missing", "sources-differ"}),
        failed=frozenset({"fabric_manager::test_fabric_manager_is_of_the_driver_s_version"}),
    ),
    "no-module": Files(
        "580.178.04",
        frozenset({"module-missing", "no-agent", "xid-capture"}),
        frozenset({"not-held", "sources-differ", "no-package"}),
        failed=frozenset({
            "device_nodes::test_uvm_module_is_on_disk_for_every_kernel",
            "nvidia_driver::test_module_on_disk_is_the_planned_one",
        }),
    ),
}  # fmt: skip


def gpu_ami(*words: str, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("gpu-ami")), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode in codes, f"{words}: {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@contextmanager
def region(*plans: Path) -> Iterator[dict[str, Any]]:
    """The local region with the packages and source AMIs of plans, for Packer by hand."""
    named = [word for plan in plans for word in ("--plan", str(plan))]
    command = [str(Path(sys.executable).with_name("gpu-ami")), "region", "up", *named]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as up:
        try:
            assert up.stdout
            next(line for line in up.stdout if line.startswith("up until"))
            yield read_json(home_dir() / "region" / "region.json") or {}
        finally:
            gpu_ami("region", "down")


def build(kind: str, up: dict[str, Any], out: Path) -> Path:
    """The manifest of an image of a kind, as Packer's post-processor writes it."""
    ec2 = boto3.client(
        "ec2", endpoint_url=up["endpoint"], region_name=up["region"],
        aws_access_key_id="local", aws_secret_access_key="local",
    )  # fmt: skip
    (source, *_) = [one for one in ec2.describe_images()["Images"] if one["Name"].startswith("debian-12-amd64")]
    manifest = out / f"manifest-{kind}.json"
    values = {
        "endpoint": up["endpoint"], "source_ami": source["ImageId"], "subnet_id": up["subnet_id"],
        "security_group_id": up["security_group_ids"][0], "mirror": MIRROR, "kind": kind, "manifest": str(manifest),
        "scripts": [str(FOLDER / name) for name in KINDS[kind]],
        "run_tags": {"gpu-ami:machine": "sandbox"},
    }  # fmt: skip
    file = out / f"{kind}.pkrvars.json"
    file.write_text(json.dumps(values))
    done = subprocess.run(
        ["packer", "build", "-color=false", f"-var-file={file}", str(FOLDER / "image.pkr.hcl")],
        capture_output=True, text=True, check=False, cwd=out,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:]
    return manifest


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = Path(os.environ.get("GPU_AMI_FOREIGN_OUT") or tmp_path_factory.mktemp("foreign")).resolve()
    kept = {kind: out / f"manifest-{kind}.json" for kind in KINDS}
    missing = [kind for kind, path in kept.items() if not path.is_file()]
    if missing:
        for name in PLANS:
            gpu_ami("plan", str(ROOT / "variables" / "recipes" / f"{name}.yml"), "-o", str(out / name))
        with region(*(out / name / "plan.json" for name in PLANS)) as up:
            for kind in missing:
                build(kind, up, out)
    return kept


def disk(manifest: Path) -> Path:
    """The raw disk of the image that a manifest names."""
    (*_, built) = (read_json(manifest) or {})["builds"]
    return home_dir() / "images" / str(built["artifact_id"]).partition(":")[2] / "disk.raw"


def proven(manifest: Path, *, codes: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, list[str]]]:
    """The report of an image's proof, and verdict → checks of it. Without restarts: half an hour less."""
    out = manifest.with_name(manifest.stem.replace("manifest", "proof"))
    if not (out / "report.json").is_file():
        words = ("--instance-type", "g5.xlarge", "--restarts", "none", "--provoke-xid")
        gpu_ami("prove", "--manifest", str(manifest), "-o", str(out), *words, codes=codes)
    report = read_json(out / "report.json") or {}
    verdicts: dict[str, list[str]] = {}
    for host in report["hosts"]:
        for check in host["checks"]:
            verdicts.setdefault(check["verdict"], []).append(str(check["id"]))
    tiers = {row["name"]: row["verdict"] for row in report["tiers"]}
    print(manifest.stem, dict(Counter({key: len(ids) for key, ids in verdicts.items()})), tiers, flush=True)
    return report, verdicts


def test_files_of_a_careful_image_have_no_problem(manifests: dict[str, Path], tmp_path: Path) -> None:
    text = gpu_ami("observe", "--manifest", str(manifests["careful"]), "--strict", "-o", str(tmp_path))
    assert "PROBLEM" not in text
    assert "/var/log/team-xid.log → /team/gpu/xid / {instance_id}: captures" in text
    assert "driver            580.178.04 open" in text


def test_files_of_a_careless_image_are_read_rightly(manifests: dict[str, Path], tmp_path: Path) -> None:
    text = gpu_ami("observe", "--manifest", str(manifests["careless"]), "-o", str(tmp_path))
    assert "this image does not capture Xids" in text
    assert "no package of the driver is held" in text


def test_a_careful_image_is_proven(manifests: dict[str, Path]) -> None:
    report, verdicts = proven(manifests["careful"], codes=(0, 7))
    assert verdicts.get("FAIL", []) == []
    assert verdicts.get("ERROR", []) == []
    assert len(verdicts.get("UNPROVEN", [])) <= MOST_UNPROVEN
    tiers = {row["name"]: row["verdict"] for row in report["tiers"]}
    assert {tiers[name] for name in ("T0", "T2", "T3")} == {"PASS"}
    assert tiers["T1"] == "UNPROVEN"  # without restarts


def test_a_careless_image_fails_where_it_is_wrong(manifests: dict[str, Path]) -> None:
    report, verdicts = proven(manifests["careless"], codes=(1,))
    failed = {check.partition("@")[0] for check in verdicts["FAIL"]}
    assert failed == CARELESS
    assert len(verdicts.get("UNPROVEN", [])) <= MOST_UNPROVEN
    assert {row["name"]: row["verdict"] for row in report["tiers"]}["T2"] == "FAIL"


@pytest.mark.parametrize("kind", BOOTED)
def test_another_image_fails_where_it_is_wrong(kind: str, manifests: dict[str, Path]) -> None:
    report, verdicts = proven(manifests[kind], codes=(1,))
    assert {check.partition("@")[0] for check in verdicts["FAIL"]} == BOOTED[kind]
    assert verdicts.get("ERROR", []) == []
    assert len(verdicts.get("UNPROVEN", [])) <= MOST_UNPROVEN
    assert {row["name"]: row["verdict"] for row in report["tiers"]}["T2"] == COMPUTES[kind]


@pytest.mark.parametrize("kind", JUDGED_BY_FILES)
def test_files_show_what_is_wrong(kind: str, manifests: dict[str, Path], tmp_path: Path) -> None:
    expected = JUDGED_BY_FILES[kind]
    read = json.loads(gpu_ami("observe", "--json", "--manifest", str(manifests[kind]), "-o", str(tmp_path / "read")))
    versions = {one["name"]: one["version"] for one in read["components"]}
    assert versions["nvidia_driver"] == expected.driver
    ids = {one["id"] for one in read["findings"]}
    assert expected.findings <= ids
    assert not expected.others & ids

    gpu_ami("validate", str(tmp_path / "read"), "--root", str(disk(manifests[kind])), codes=(0, 1, 7))
    (host,) = (read_json(tmp_path / "read" / "report.json") or {})["hosts"]
    by_verdict = {verdict: {one["id"] for one in host["checks"] if one["verdict"] == verdict} for verdict in VERDICTS}
    assert by_verdict["FAIL"] == expected.failed
    assert not by_verdict["ERROR"]
    assert len(by_verdict["UNPROVEN"]) <= MOST_UNPROVEN
