"""A machine whose container toolkit is NVIDIA's own: nvidia-ctk, nvidia-container-runtime and nvidia-cdi-hook.

The role installs them from the package, configures the runtime with them, and the image is booted with a simulated GPU:
the original nvidia-ctk asks the replica of libnvidia-ml and writes the CDI specification at boot, and the original
runtime starts the containers of the checks. `make real` (marker `real`; root, the network, many minutes without KVM).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpu_ami import pipeline
from gpu_ami.build.ansible import Machine, converge
from gpu_ami.files import home_dir
from gpu_ami.plan import ANSIBLE_FILE, PLAN_FILE, Plan, ansible_variables, make_plan
from gpu_ami.progress import Progress
from gpu_ami.region import SessionRequest
from gpu_ami.report import HostReport
from gpu_ami.validate import ProofOptions
from localregion import region
from localregion.images import source_ami
from localregion.images.source_ami import base_of
from localregion.machines.boards import Devices
from localregion.mirror import mirror
from localregion.mirror import table as replica_table
from localregion.sandbox import sandbox
from tests.originals import fetch
from tests.roles import sandbox_files
from tests.roles.test_real_packages_in_sandbox import ROOT

pytestmark = [pytest.mark.sandbox, pytest.mark.real, pytest.mark.slow]

RELEASE = "1.20.1"
INSTANCE_TYPE = "g5.xlarge"
PROGRAMS = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-cdi-hook")
# What the booted machine is asked beside the project's checks: that it is the original that answers.
_ASK = '''
import yaml


def test_the_specification_is_written_by_the_original(host, observe):
    """/var/run/cdi/nvidia.yaml has the GPU by index and UUID with the numbers of its device node."""
    version = host.run("nvidia-ctk --version").stdout
    document = yaml.safe_load(host.run("cat /var/run/cdi/nvidia.yaml").stdout)
    nodes = {row["name"]: row["containerEdits"]["deviceNodes"] for row in document["devices"]}
    shown = host.run("nvidia-smi --query-gpu=uuid --format=csv,noheader").stdout.strip()
    node = host.run("stat -c '%t %T' /dev/nvidia0").stdout.split()
    numbers = [int(number, 16) for number in node]
    observe.same("commit: original" in version, True, "nvidia-ctk --version")
    observe.same(sorted(nodes), sorted(["0", "all", shown]), "devices of the specification")
    observe.same([[row["major"], row.get("minor", 0)] for row in nodes["0"]], [numbers], "numbers of /dev/nvidia0")
'''


@pytest.fixture(scope="module")
def with_originals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The table of replicas, with NVIDIA's programs in the package that has them."""
    programs = fetch.toolkit(RELEASE)
    replicas = tmp_path_factory.mktemp("replicas") / "replicas"
    shutil.copytree(replica_table.REPLICAS, replicas, symlinks=True)
    family = replicas / "container_toolkit"
    for name in PROGRAMS:
        shutil.copy(programs / name, family / "base/usr/bin" / name)
    table = yaml.safe_load((family / "packages.yml").read_text(encoding="utf-8"))
    (row,) = [row for row in table["packages"] if row["name"] == "nvidia-container-toolkit-base"]
    del row["templates"]
    (family / "packages.yml").write_text(yaml.safe_dump(table), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_table, "REPLICAS", replicas)
        yield


@pytest.fixture(scope="module")
def plan() -> Plan:
    overrides = [
        "roles=[kernel, nvidia_driver, container_toolkit]",
        f"instance_types=[{INSTANCE_TYPE}]",
        f"container_toolkit.version={RELEASE}",
        "container_toolkit.runtime=docker",
    ]
    return make_plan(ROOT / "variables/recipes/debian12-gpu.yml", region.local_place(home_dir()), overrides)


@pytest.fixture(scope="module")
def tree(plan: Plan, with_originals: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the image that the roles made."""
    home, progress, out = home_dir(), Progress(mode="plain"), tmp_path_factory.mktemp("toolkit")
    mirror.ensure(home, plan=plan.document, progress=progress)
    (out / ANSIBLE_FILE).write_text(json.dumps(ansible_variables(plan.document)))
    (out / PLAN_FILE).write_text(json.dumps(plan.document))
    base, tree = base_of(plan.document), out / "tree"
    tree.mkdir()
    with sandbox.entered(base, Devices(), home, progress) as box:
        machine = Machine(box.host, box.port, box.user, Path(box.key), slow_python=True)
        print(converge(ROOT, out / ANSIBLE_FILE, machine, note=progress.note).text())
        sandbox_files.copy(box, tree)
    sandbox_files.restore_base_files(tree, base, home, progress)
    return tree


def test_programs_of_the_image_are_nvidia_s_own(tree: Path) -> None:
    for name in PROGRAMS:
        assert (tree / "usr/bin" / name).read_bytes() == (fetch.toolkit(RELEASE) / name).read_bytes()


def test_role_configured_docker_with_the_original(tree: Path) -> None:
    settings = json.loads((tree / "etc/docker/daemon.json").read_text(encoding="utf-8"))
    assert settings["runtimes"]["nvidia"]["path"] == "nvidia-container-runtime"
    assert settings["features"]["cdi"] is True
    assert (tree / "etc/nvidia-container-runtime/config.toml").stat().st_size > 0


@pytest.fixture(scope="module")
def booted(plan: Plan, tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[HostReport, ...]:
    """The image's files, and the machine that was started from it."""
    checks = tmp_path_factory.mktemp("checks")
    (checks / "test_original_toolkit.py").write_text(_ASK, encoding="utf-8")
    ami = source_ami.save(tree, "gpu-ami_original-toolkit", home_dir(), Progress(mode="plain"))
    expression = "container_toolkit or test_original_toolkit or test_every_promised_gpu_is_there"
    asked = ProofOptions([INSTANCE_TYPE], [checks], ("-k", expression))
    with pipeline.open_session(SessionRequest(), Progress(mode="plain")) as session:
        decided = pipeline.decide(plan, asked, session)
        return pipeline.validate_stage(plan, ami, tree.parent, session, decided).hosts


def test_checks_hold_with_the_original(booted: tuple[HostReport, ...]) -> None:
    for host in booted:
        for record in host.checks:
            print(f"{host.name}: {record.verdict:9} {record.id}: {record.message}")
    assert [host.error for host in booted] == ["", ""]
    machine = next(host for host in booted if not host.offline)
    verdicts = {record.id.rpartition("::")[2]: record.verdict for record in machine.checks}
    others = [record.id for host in booted for record in host.checks if record.verdict not in ("PASS", "UNPROVEN")]
    assert others == []
    assert verdicts["test_the_specification_is_written_by_the_original"] == "PASS"
    assert verdicts["test_cdi_lists_every_gpu"] == verdicts["test_device_nodes_are_there"] == "PASS"
    containers = {name: verdict for name, verdict in verdicts.items() if "[runtime]" in name or "[cdi]" in name}
    assert "PASS" in containers.values(), containers
