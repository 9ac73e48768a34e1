"""Faults seeded into an image of a team, as files: what `observe` finds, and what only a booted machine shows.

Most are of public cases: driver and library of two versions (amazon-ecs-ami#256), a module without its kernel, a dead
Xid watcher, an agent whose configuration is not read, wrong names of metrics, masked units.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_ami import observe
from gpu_ami.observe import Level
from gpu_ami.recipes import load_facts
from tests.observe import foreign_images as foreign

KERNEL, DRIVER, OTHER = "6.1.0-40-cloud-amd64", "580.178.04", "580.159.03"
PART = f"{foreign.AGENT}/etc/amazon-cloudwatch-agent.d/file_config.json"
WATCHER = "opt/team/bin/gpu-xid-watch"
UNITS = "etc/systemd/system"
MODULE = f"lib/modules/{KERNEL}/updates/dkms/nvidia.ko.gz"
GROUP = foreign.sends(("/var/log/team-xid.log", "/team/gpu/xid"))


def team_image(root: Path) -> foreign.Image:
    """Vendor's driver held, fabric manager, CUDA, Docker with the toolkit, the agent, and a watcher that follows."""
    image = foreign.Image(root, "debian12", kernels=(KERNEL,))
    image.install("nvidia-open", "nvidia-driver-cuda", "nvidia-persistenced", version=f"{DRIVER}-1", held=True)
    image.module(KERNEL, "nvidia", DRIVER)
    image.module(KERNEL, "nouveau", "", "GPL", "kernel/drivers/gpu/drm/nouveau")
    image.libraries(DRIVER)
    image.write(f"lib/firmware/nvidia/{DRIVER}/gsp_ga10x.bin", "")
    image.write("etc/modprobe.d/blacklist-nouveau.conf", "blacklist nouveau\n")
    image.install("nvidia-fabricmanager", version=f"{DRIVER}-1", held=True)
    image.write("usr/bin/nv-fabricmanager", "")
    image.enable("nvidia-fabricmanager.service", "nvidia-persistenced.service", "docker.service")
    image.install("cuda-toolkit-12-9", version="12.9.1-1")
    image.write("usr/local/cuda-12.9/version.json", '{"cuda" : {"version" : "12.9.1"}}')
    image.write("usr/local/cuda-12.9/targets/x86_64-linux/lib/stubs/libcuda.so", "")
    image.link("usr/local/cuda", "/usr/local/cuda-12.9")
    image.install("nvidia-container-toolkit", "libnvidia-container1", version="1.18.1-1")
    image.write("usr/bin/dockerd", "")
    image.write("usr/bin/nvidia-ctk", "")
    image.write("etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}')
    image.agent("amazon-cloudwatch-agent.d/file_config.json", foreign.GPU_METRICS | GROUP)
    image.unit("gpu-xid-watch.service", f"ExecStart=/{WATCHER}", "Restart=always")
    image.write(WATCHER, "#!/bin/sh\nexec dmesg --follow | grep --line-buffered NVRM: >> /var/log/team-xid.log\n")
    (root / WATCHER).chmod(0o755)
    return image


def replace(image: foreign.Image, path: str, text: str) -> None:
    image.write(path, text)


def remove(image: foreign.Image, path: str) -> None:
    target = image.root / path
    shutil.rmtree(target) if target.is_dir() and not target.is_symlink() else target.unlink()


def mask(image: foreign.Image, unit: str) -> None:
    (image.root / UNITS / unit).unlink(missing_ok=True)
    image.link(f"{UNITS}/{unit}", "/dev/null")


def disable(image: foreign.Image, unit: str) -> None:
    remove(image, f"{UNITS}/multi-user.target.wants/{unit}")


def configure(image: foreign.Image, *configs: dict[str, object], where: str = PART) -> None:
    merged: dict[str, object] = {}
    for config in configs:
        merged |= config
    replace(image, where, json.dumps(merged))


def other_libraries(image: foreign.Image) -> None:
    for name in ("libcuda", "libnvidia-ml"):
        remove(image, f"usr/lib/x86_64-linux-gnu/{name}.so.1")
    image.libraries(OTHER)


def newer_kernel(image: foreign.Image) -> None:
    image.write("lib/modules/6.1.0-41-cloud-amd64/modules.dep", "")


def without_libraries(image: foreign.Image) -> None:
    for name in ("libcuda", "libnvidia-ml"):
        for ending in ("1", DRIVER):
            remove(image, f"usr/lib/x86_64-linux-gnu/{name}.so.{ending}")


def of_another_kernel(image: foreign.Image) -> None:
    image.module("6.1.0-39-cloud-amd64", "nvidia", DRIVER)
    for name in ("nvidia", "nvidia-uvm"):
        shutil.move(
            image.root / f"lib/modules/6.1.0-39-cloud-amd64/updates/dkms/{name}.ko.gz",
            image.root / f"lib/modules/{KERNEL}/updates/dkms/{name}.ko.gz",
        )
    remove(image, "lib/modules/6.1.0-39-cloud-amd64")


def other_firmware(image: foreign.Image) -> None:
    remove(image, f"lib/firmware/nvidia/{DRIVER}")
    image.write(f"lib/firmware/nvidia/{OTHER}/gsp_ga10x.bin", "")


def unfinished(image: foreign.Image) -> None:
    """dpkg left the driver unconfigured: its postinst failed (DKMS without headers)."""
    status = image.done() / "var/lib/dpkg/status"
    status.write_text(status.read_text().replace("Package: nvidia-open\nStatus: hold ok installed",
                                                 "Package: nvidia-open\nStatus: hold ok half-configured"))  # fmt: skip


def dkms_forgot(image: foreign.Image) -> None:
    image.install("nvidia-kernel-open-dkms", version=f"{DRIVER}-1", held=True)


def moved_config(image: foreign.Image) -> None:
    """The wizard's file was never fetched."""
    shutil.move(image.root / PART, image.root / foreign.AGENT / "bin/config.json")


def snapshot(image: foreign.Image) -> None:
    text = "#!/bin/sh\ndmesg | grep NVRM: >> /var/log/team-xid.log\nexec sleep infinity\n"
    replace(image, WATCHER, text)


def old_toolkit(image: foreign.Image) -> None:
    image.install("nvidia-container-toolkit", "libnvidia-container1", version="1.14.6-1")


def power_of_an_old_agent(image: foreign.Image) -> None:
    configure(image, {"metrics": {"metrics_collected": {"nvidia_gpu": {"measurement": ["power_draw"]}}}}, GROUP)
    image.install("amazon-cloudwatch-agent", version="1.300040.0b650-1")
    image.write(f"{foreign.AGENT}/bin/CWAGENT_VERSION", "1.300040.0b650\n")


def differing_parts(image: foreign.Image) -> None:
    for name, region in (("a", "us-east-1"), ("b", "eu-west-1")):
        configure(image, {"agent": {"region": region}}, where=PART.replace("config", name))


def wrong_names(image: foreign.Image) -> None:
    names = ["gpu_utilization", "memory_used_percent"]
    configure(image, {"metrics": {"metrics_collected": {"nvidia_gpu": {"measurement": names}}}}, GROUP)


def newer_cuda(image: foreign.Image) -> None:
    for old in ("usr/local/cuda", "usr/local/cuda-12.9"):
        remove(image, old)
    del image.packages["cuda-toolkit-12-9"]
    image.install("cuda-toolkit-13-0", version="13.0.2-1")
    for name in ("nvidia-open", "nvidia-driver-cuda", "nvidia-persistenced", "nvidia-fabricmanager"):
        image.install(name, version="570.172.08-1", held=True)
    remove(image, MODULE)
    image.module(KERNEL, "nvidia", "570.172.08")
    without_libraries(image)
    image.libraries("570.172.08")
    image.write("lib/firmware/nvidia/570.172.08/gsp_ga10x.bin", "")


def rewritten(text: str) -> Callable[[foreign.Image], None]:
    return lambda image: replace(image, WATCHER, f"#!/bin/sh\n{text}\n")


NO_GROUP = {"logs": {"logs_collected": {"files": {"collect_list": [{"log_group_name": "/team/gpu/xid"}]}}}}
RUNS = "etc/nvidia-container-runtime/config.toml"

# Fault → how it is seeded, and the finding that names it. None: `observe` does not find it; `prove` does, by checks of
# hygiene and boot, except for the word that no driver prints, which the Xid that it injects shows.
FAULTS: dict[str, tuple[Callable[[foreign.Image], None], str | None]] = {
    "libraries of another version": (other_libraries, "sources-differ"),
    "module of another version": (lambda image: image.module(KERNEL, "nvidia", OTHER), "sources-differ"),
    "no module for the newest kernel": (newer_kernel, "module-missing"),
    "no module at all": (lambda image: remove(image, MODULE), "module-missing"),
    "module built for another kernel": (of_another_kernel, "module-kernel"),
    "no nvidia-uvm": (lambda image: remove(image, MODULE.replace("nvidia.ko", "nvidia-uvm.ko")), "no-uvm"),
    "no libcuda": (without_libraries, "no-libraries"),
    "no nvidia-smi": (lambda image: remove(image, "usr/bin/nvidia-smi"), "no-smi"),
    "firmware of another version": (other_firmware, "firmware"),
    "GSP switched off": (
        lambda image: replace(image, "etc/modprobe.d/gsp.conf", "options nvidia NVreg_EnableGpuFirmware=0\n"),
        "gsp-off",
    ),
    "nouveau not blacklisted": (lambda image: remove(image, "etc/modprobe.d/blacklist-nouveau.conf"), "nouveau"),
    "nova_core not blacklisted": (
        lambda image: image.module(KERNEL, "nova_core", "", "GPL", "kernel/drivers/gpu/nova-core"), "nouveau"
    ),
    "driver not held": (lambda image: image.install(*image.packages, version=f"{DRIVER}-1"), "not-held"),
    "DKMS forgot the driver": (dkms_forgot, "dkms"),
    "driver half configured": (unfinished, "unfinished"),
    "fabric manager of another version": (
        lambda image: image.install("nvidia-fabricmanager", version=f"{OTHER}-1"), "fabric_manager-version",
    ),
    "fabric manager masked": (lambda image: mask(image, "nvidia-fabricmanager.service"), "masked"),
    "persistence daemon masked": (lambda image: mask(image, "nvidia-persistenced.service"), "masked"),
    "CUDA newer than the driver": (newer_cuda, "driver-runs-cuda"),
    "CUDA of another version behind the link": (
        lambda image: replace(image, "usr/local/cuda-12.9/version.json", '{"cuda" : {"version" : "12.6.0"}}'),
        "sources-differ",
    ),
    "stub of libcuda in the loader's path": (
        lambda image: replace(image, "etc/ld.so.conf.d/cuda.conf", "/usr/local/cuda/targets/x86_64-linux/lib/stubs\n"),
        "stubs",
    ),
    "runtime not configured": (lambda image: remove(image, "etc/docker/daemon.json"), "runtime"),
    "no-cgroups": (lambda image: replace(image, RUNS, "[nvidia-container-cli]\nno-cgroups = true\n"), "no-cgroups"),
    "containers lose GPUs": (old_toolkit, "daemon-reload"),
    "Docker masked": (lambda image: mask(image, "docker.service"), "masked"),
    "agent masked": (lambda image: mask(image, "amazon-cloudwatch-agent.service"), "agent-disabled"),
    "agent not enabled": (lambda image: disable(image, "amazon-cloudwatch-agent.service"), "agent-disabled"),
    "agent's configuration cut": (lambda image: replace(image, PART, '{"metrics": {'), "agent-config"),
    "agent's configuration not read": (moved_config, "agent-unread"),
    "names of metrics wrong": (wrong_names, "agent-lint"),
    "no metric of GPUs": (lambda image: configure(image, GROUP), "no-gpu-metrics"),
    "parts that differ": (differing_parts, "agent-parts"),
    "no file for a group": (lambda image: configure(image, foreign.GPU_METRICS, NO_GROUP), "agent-lint"),
    "a group that CloudWatch refuses": (
        lambda image: configure(image, foreign.GPU_METRICS, foreign.sends(("/var/log/team-xid.log", "team xid*"))),
        "agent-lint",
    ),
    "credentials of a profile": (
        lambda image: replace(
            image, f"{foreign.AGENT}/etc/common-config.toml", '[credentials]\nshared_credential_profile = "build"\n'
        ),
        "agent-credentials",
    ),
    "agent too old for power_draw": (power_of_an_old_agent, "agent-power-draw"),
    "watcher not enabled": (lambda image: disable(image, "gpu-xid-watch.service"), "xid-capture"),
    "watcher masked": (lambda image: mask(image, "gpu-xid-watch.service"), "xid-capture"),
    "watcher missing": (lambda image: remove(image, WATCHER), "xid-capture"),
    "watcher not executable": (lambda image: (image.root / WATCHER).chmod(0o644), "xid-capture"),
    "watcher of a snapshot": (snapshot, "xid-capture"),
    "watcher writes elsewhere": (
        rewritten("exec dmesg --follow | grep --line-buffered NVRM: >> /var/log/gpu-errors.log"), "xid-capture",
    ),
    "Xids sent nowhere": (lambda image: configure(image, foreign.GPU_METRICS), "xid-capture"),
    "watcher looks for a word that no driver prints": (
        rewritten("exec dmesg --follow | grep --line-buffered 'NVRM: XidError' >> /var/log/team-xid.log"), None,
    ),
    "unit that fails at boot": (
        lambda image: image.unit("gpu-setup.service", "Type=oneshot", "ExecStart=/bin/false"), None,
    ),
    "key of the builder": (lambda image: replace(image, "root/.ssh/authorized_keys", "ssh-ed25519 A\n"), None),
    "machine-id of the builder": (
        lambda image: replace(image, "etc/machine-id", "0123456789abcdef0123456789abcdef\n"), None,
    ),
}  # fmt: skip


def findings(root: Path) -> list[observe.Finding]:
    facts = load_facts()
    observation = observe.read_files(root)
    types = observe.instance_types(observation, facts)
    return observe.findings_of(observation, facts, observe.context_of(observation, facts, types))


def test_image_without_a_fault_has_no_finding_but_notes(tmp_path: Path) -> None:
    found = findings(team_image(tmp_path / "root").done())
    assert [one.text for one in found if one.level is not Level.NOTE] == []


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found(name: str, tmp_path: Path) -> None:
    seed, expected = FAULTS[name]
    image = team_image(tmp_path / "root")
    seed(image)
    serious = {one.id for one in findings(image.root if name == "driver half configured" else image.done())
               if one.level is not Level.NOTE}  # fmt: skip
    if expected is None:
        assert serious == set()
    else:
        assert expected in serious


def test_an_agent_that_cannot_read_its_configuration_has_that_finding_alone(tmp_path: Path) -> None:
    """What it would collect is unknown: another finding on it named no file ("the agent () collects no metric")."""
    image = team_image(tmp_path / "root")
    replace(image, PART, '{"metrics": {')
    found = [
        one.id for one in findings(image.done()) if one.component == "cloudwatch_agent" and one.level is not Level.NOTE
    ]
    assert found == ["agent-config"]


def test_four_fifths_of_the_faults_are_found() -> None:
    found = [expected for _, expected in FAULTS.values() if expected]
    assert len(found) >= 0.8 * len(FAULTS)


@pytest.mark.parametrize(
    ("system", "version", "level"),
    [
        ("debian12", "1.1.5+ds1-1+deb12u1", Level.NOTE),  # Debian may have put the fix into it
        ("ubuntu2404", "1.3.0-0ubuntu2~24.04.1", Level.WARNING),  # Ubuntu's own fixed version is newer
        ("ubuntu2404", "1.3.3-0ubuntu1~24.04.2", None),
    ],
)
def test_a_runtime_without_the_fix_of_a_bulletin_is_found(
    system: str, version: str, level: Level | None, tmp_path: Path
) -> None:
    image = foreign.Image(tmp_path / "root", system, kernels=(KERNEL,))
    image.install("runc", version=version)
    found = [one for one in findings(image.done()) if one.id == "runtime-advisory"]
    assert [one.level for one in found] == ([level] if level else [])
    assert all("CVE-2025-31133 (high) is fixed in" in one.text for one in found)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "etc/containerd/config.toml",
        "etc/containerd/conf.d/99-nvidia.toml",  # nvidia-ctk 1.18 and newer
        "etc/docker/daemon.json",
        "etc/docker-runtimes.d/nvidia",  # Amazon's docker
    ],
)
def test_a_runtime_is_configured_in_any_of_its_files(path: str, tmp_path: Path) -> None:
    image = team_image(tmp_path / "root")
    image.write("usr/bin/containerd", "")
    remove(image, "etc/docker/daemon.json")
    if path:
        image.write(path, 'BinaryName = "/usr/bin/nvidia-container-runtime"')
    found = [one.text for one in findings(image.done()) if one.id == "runtime"]
    names = "docker and containerd"
    text = (
        f"no configuration of {names} names the runtime nvidia: containers get no GPU but by CDI, or by Docker's --gpus"
    )
    assert found == ([] if path else [text])
