"""A site's daemon on a booted machine, and gpu-ami on that machine itself.

    pytest -m machine -s tests/machine/test_site_live.py

The image is that of the walk-through's last step: a role of the site installs an exporter that listens, and declares
it. GPU_AMI_SITE_OUT names a folder that keeps it.
"""

from __future__ import annotations

import importlib.util
import io
import os
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami import observe
from gpu_ami.cloud import Cloud
from gpu_ami.files import data_dir, read_json
from gpu_ami.progress import Progress
from tests.commands.test_docs import PAGE, blocks, write_if_shown
from tests.machine.guest import GPU_TYPE, Machine, debian_region, launched

pytestmark = pytest.mark.machine
ROOT = Path(__file__).parents[2]
LISTENERS = "inventory::test_listeners_are_known"
# What `gpu-ami observe` imports beside the standard library.
PACKAGES = ("gpu_ami", "validator", "onhost", "localregion", "yaml", "testinfra", "_pytest", "pytest", "py", "pluggy",
            "iniconfig", "packaging", "pygments")  # fmt: skip


def gpu_ami(*words: str, codes: tuple[int, ...] = (0,)) -> str:
    command = [str(Path(sys.executable).with_name("gpu-ami")), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in codes, f"{words}: {done.returncode}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


@dataclass(frozen=True)
class Booted:
    """A machine of the site's image, and the folder of its plan."""

    machine: Machine
    out: Path

    @property
    def address(self) -> tuple[str, ...]:
        target = self.machine.guest.target
        return ("--host", f"{target.user}@{target.address}:{target.port}", "-i", str(self.machine.key_file))

    def check(self, words: str, *, codes: tuple[int, ...]) -> dict[str, dict[str, Any]]:
        """The checks whose names have one of the words, by id."""
        gpu_ami("validate", str(self.out), *self.address, "--instance-type", GPU_TYPE, "-k", words, "-q", codes=codes)
        report = read_json(self.out / "report.json") or {}
        return {check["id"]: check for host in report["hosts"] for check in host["checks"]}


@pytest.fixture(scope="module")
def booted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Booted]:
    folder = Path(os.environ.get("GPU_AMI_SITE_OUT") or tmp_path_factory.mktemp("site")).resolve()
    progress = Progress("plain")
    with pytest.MonkeyPatch.context() as patch, debian_region(progress) as place:
        patch.chdir(folder)
        if not Path("out/exported/build.json").is_file():
            for command, output in blocks(PAGE):
                write_if_shown(command, output)
            gpu_ami("plan", "recipes/exported.yml", "-o", "out/exported", "-q")
            gpu_ami("build", "out/exported", "-q")
        ami = str((read_json(Path("out/exported/build.json")) or {})["ami"])
        with launched(Cloud(place), ami, GPU_TYPE, progress) as machine:
            yield Booted(machine, folder / "out" / "exported")


def test_declared_daemon_is_known_and_named(booted: Booted) -> None:
    checks = booted.check("listeners or setuid or file_capabilities or exporter", codes=(7,))
    assert {check["verdict"] for name, check in checks.items() if not name.startswith("boot::")} == {"PASS"}
    assert checks[LISTENERS]["observed"].startswith("prometheus-node: declared by role node_exporter; ")


def test_undeclared_daemon_is_found(booted: Booted) -> None:
    guest = booted.machine.guest
    guest.sudo("systemd-run --unit=stranger python3 -m http.server 9999")
    guest.until("it listens", lambda: ":9999" in guest.sudo("ss -Hltn"))
    try:
        check = booted.check("listeners", codes=(1,))[LISTENERS]
    finally:
        guest.sudo("systemctl stop stranger")
    assert check["verdict"] == "FAIL"
    assert "python3 on 0.0.0.0:9999" in check["message"] and "prometheus-node on" not in check["message"]


def test_machine_is_read_the_same_from_each_side(booted: Booted, tmp_path: Path) -> None:
    """By Image Builder's component on it, by `--host local://` on it, and over SSH."""
    guest = booted.machine.guest
    (phase,) = yaml.safe_load(gpu_ami("image-builder"))["phases"]
    collect, remove = (phase["steps"][index]["inputs"]["commands"][0] for index in (0, -1))
    guest.put(collect.encode(), "/root/collect.sh")
    guest.sudo("bash /root/collect.sh", timeout=600)
    (tmp_path / "collected.json").write_text(guest.sudo("cat /tmp/gpu-ami-observation/observation.json"))
    guest.sudo(f"{remove}; rm /root/collect.sh; ! ls -d /tmp/gpu-ami*")
    gpu_ami("observe", "--read", str(tmp_path / "collected.json"), "--strict", "-o", str(tmp_path / "out"))

    guest.put(packed(), "/root/gpu-ami.tar.gz")
    guest.sudo("mkdir /root/gpu-ami && tar xzf /root/gpu-ami.tar.gz -C /root/gpu-ami")
    local = "cd /root/gpu-ami && PYTHONPATH=. python3 -m gpu_ami observe --host local:// --strict -o out"
    shown = guest.sudo(local, timeout=600)
    assert "this machine: as found" in shown and "boot       ended: systemd says running" in shown
    (tmp_path / "local.json").write_text(guest.sudo("cat /root/gpu-ami/out/observation.json"))
    guest.sudo("rm -r /root/gpu-ami /root/gpu-ami.tar.gz")

    gpu_ami("observe", *booted.address, "--strict", "-o", str(tmp_path / "ssh"))
    paths = [tmp_path / "collected.json", tmp_path / "local.json", tmp_path / "ssh" / observe.OBSERVATION_FILE]
    collected, local_one, over_ssh = (observe.load(path).document for path in paths)
    own = {"read_of", "system_state", "components", "absent"}  # the collector waits, too, but judges nothing
    assert {"readings", "agent", "captures"} <= collected.keys() - own
    for key in collected.keys() - own:
        assert collected[key] == local_one[key] == over_ssh[key], key


def packed() -> bytes:
    """gpu-ami and what it imports, as pip would install them; without compiled parts, which are optional."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name in PACKAGES:
            spec = importlib.util.find_spec(name)
            assert spec and spec.origin
            origin = Path(spec.origin)
            is_package = origin.name == "__init__.py"
            archive.add(origin.parent if is_package else origin, name if is_package else origin.name, filter=_source)
        for name in ("packer", "variables"):
            archive.add(data_dir(name), f"gpu_ami/_data/{name}", filter=_source)
        (metadata,) = Path(sysconfig.get_path("purelib")).glob("gpu_ami-*.dist-info")
        archive.add(metadata, metadata.name)
    return buffer.getvalue()


def _source(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name or entry.name.endswith(".so") else entry
