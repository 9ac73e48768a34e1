"""Source AMIs of the region: base images with a node family's packages and files."""

from __future__ import annotations

import fnmatch
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.process import run
from gpu_ami.progress import Progress
from localregion.images import base_image, rootfs_layers, source_ami
from localregion.images.rootfs_layers import Base
from localregion.state import Layout, load_images

# Which base image a plan builds on, and the AMI as which the region shows it.


QUIET = Progress("quiet")
LOCKS = Path(__file__).parents[3] / "variables" / "locks"


def locked(name: str) -> dict[str, Any]:
    plan: dict[str, Any] = json.loads((LOCKS / f"{name}.json").read_text())["plan"]
    return plan


BASES = {
    "debian12-gpu": Base("debian12"),
    "debian13-distribution": Base("debian13"),
    "ubuntu2404-compute": Base("ubuntu2404"),
    "ubuntu2204-compute": Base("ubuntu2204"),
    "al2023-neuron": Base("al2023"),
    "eks-1.33-al2023-gpu": Base("al2023", "eks", "1.33"),
    "eks-1.35-al2023-nvidia": Base("al2023", "eks", "1.35", variant="nvidia"),
    "eks-1.35-ubuntu2404-gpu": Base("ubuntu2404", "eks", "1.35"),
    "ecs-al2023-gpu": Base("al2023", "ecs"),
    "pcluster-3.16-ubuntu2404": Base("ubuntu2404", "parallelcluster", "3.16.3"),
    "pcluster-3.16-al2023": Base("al2023", "parallelcluster", "3.16.3"),
    "al2023-arm64": Base("al2023", architecture="arm64"),
    "ubuntu2404-gb200": Base("ubuntu2404", architecture="arm64"),
    "eks-1.35-al2023-gpu-arm64": Base("al2023", "eks", "1.35", architecture="arm64"),
}


@pytest.mark.parametrize("recipe", BASES)
def test_a_plan_has_a_base_image(recipe: str) -> None:
    assert source_ami.base_of(locked(recipe)) == BASES[recipe]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"os": {"id": "amzn", "version": "2"}, "architecture": "arm64"}, "amzn 2 on arm64"),
        ({"os": {"id": "ubuntu", "version": "20.04"}}, "ubuntu 20.04 on x86_64"),
        ({"node": {"family": "ecs"}}, "debian 12 on x86_64, node family ecs"),
        (locked("dlami-al2023-arm64"), "amzn 2023 on arm64, node family dlami"),
        (
            locked("eks-1.33-al2023-gpu") | {"node": {"family": "eks", "version": "1.33", "variant": "neuron"}},
            "amzn 2023 on x86_64, node family eks, variant neuron",
        ),
    ],
)
def test_a_plan_without_one_is_told_what_there_is(changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        source_ami.base_of(locked("debian12-gpu") | changes)  # type: ignore[arg-type]
    assert caught.value.message == f"the local region has no base image for {wanted}"
    assert "al2023 with eks" in caught.value.details[0] and "x86_64, arm64" in caught.value.details[0]
    assert "--where" in caught.value.hint


def test_a_release_that_a_site_alone_knows_has_no_base_image() -> None:
    plan = locked("pcluster-3.16-ubuntu2404")
    plan["node"]["version"] = "3.16.9"
    with pytest.raises(UsageError, match=r"has no base image for parallelcluster 3\.16\.9") as caught:
        source_ami.base_of(plan)
    assert "the components of 3.16.3" in caught.value.details[0]


@pytest.mark.parametrize(
    ("recipe", "package", "kernel"),
    [
        ("al2023-neuron", "kernel6.18", "6.18"),
        ("ecs-al2023-gpu", "kernel6.12", "6.12"),
        ("eks-1.33-al2023-gpu", "kernel6.12", ""),  # the EKS AMI's own
        ("ubuntu2404-compute", "linux-image-aws-lts-24.04", "6.8"),
        ("debian12-gpu", "linux-image-cloud-amd64", ""),
    ],
)
def test_the_base_image_has_the_planned_kernel(recipe: str, package: str, kernel: str) -> None:
    plan = locked(recipe)
    plan["kernel"]["package"] = package
    base = source_ami.base_of(plan)
    assert (base.kernel, base.kernel_package) == (kernel, package)
    assert Base.parse(base.name) == base


def test_a_kernel_without_a_base_image_is_refused() -> None:
    plan = locked("al2023-neuron")
    plan["kernel"]["package"] = "kernel7.0"
    with pytest.raises(UsageError, match="has kernel package") as caught:
        source_ami.base_of(plan)
    assert caught.value.hint == "known: kernel, kernel6.12, kernel6.18"
    with pytest.raises(UsageError, match="al2023@5"):
        Base.parse("al2023@5.10+eks-1.33")


@pytest.mark.parametrize("recipe", BASES)
def test_the_plan_s_filter_finds_it(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk.raw"
    disk.write_bytes(b"disk")
    image = base_image.BaseImage(disk, "", "admin", "")
    monkeypatch.setattr(base_image, "ensure", lambda *_: image)
    monkeypatch.setattr(source_ami, "ensure_disk", lambda *_: disk)
    plan = locked(recipe)
    record, parameter = source_ami.ensure(plan, tmp_path, QUIET)
    assert fnmatch.fnmatchcase(record.name, plan["source_ami"]["name"]) and "*" not in record.name
    assert plan["source_ami"]["owner"] in (record.owner_id, record.owner_alias)
    assert record.owner_id.isdigit() and record.public and record.disk == str(disk)
    assert parameter == plan["source_ami"].get("ssm", "")
    assert record.root_device_name == ("/dev/sda1" if "ubuntu" in recipe else "/dev/xvda")
    assert record.architecture == plan["architecture"]
    assert source_ami.ensure(plan, tmp_path, QUIET)[0] == record  # the same id in every region


def test_an_id_is_aws_s_own(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="the plan's source AMI is ami-1"):
        source_ami.ensure(locked("debian12-gpu") | {"source_ami": {"id": "ami-1"}}, tmp_path, QUIET)


def test_a_name_is_a_base() -> None:
    for base in BASES.values():
        assert Base.parse(base.name) == base
    for text in (
        "debian14",
        "debian13+eks-1.33",
        "ubuntu2404+ecs",
        "al2023+nomad-1",
        "al2023-riscv64",
        "ubuntu2204+eks-1.35",
        "ubuntu2404+eks-1.35-nvidia",
    ):
        with pytest.raises(UsageError, match="no base image") as caught:
            Base.parse(text)
        assert "al2023+eks" in caught.value.hint


def test_digests_tell_versions_and_sources_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (
        "debian12",
        "debian13",
        "ubuntu2404",
        "ubuntu2204",
        "al2023",
        "al2023+eks-1.33",
        "al2023+eks-1.35",
        "al2023+ecs",
    )
    names = (*names, "debian12-arm64", "al2023-arm64", "al2023-arm64+eks-1.35")
    digests = [rootfs_layers.digest(Base.parse(name)) for name in names]
    assert len(set(digests)) == len(names)
    assert digests == [rootfs_layers.digest(Base.parse(name)) for name in names]
    monkeypatch.setattr(base_image, "digest", lambda *_: "another")
    assert not set(digests) & {rootfs_layers.digest(Base.parse(name)) for name in names}


# A tree of files as an AMI: the record that the next region reads, and the disk that a machine boots.


def test_it_needs_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rootfs_layers.os, "geteuid", lambda: 1000)
    with pytest.raises(UsageError, match="the AMI of a tree needs root"):
        source_ami.save(tmp_path, "image", tmp_path / "home", QUIET)


@pytest.mark.sandbox
def test_a_region_finds_the_image_and_its_disk_has_the_files(tmp_path: Path) -> None:
    tree, home = tmp_path / "tree", tmp_path / "home"
    (tree / "etc").mkdir(parents=True)
    (tree / "etc" / "hostname").write_text("image\n")
    ami = source_ami.save(tree, "gpu-ami_image", home, QUIET)
    (record,) = load_images(Layout(home))
    assert (record.id, record.name) == (ami, "gpu-ami_image")
    part = tmp_path / "part"
    run(["dd", f"if={record.disk_path(Layout(home))}", f"of={part}", "bs=1M", "skip=1", "conv=sparse"], timeout=120)
    assert base_image.PARTITION_OFFSET == 1024 * 1024
    assert run(["debugfs", "-R", "cat /etc/hostname", str(part)], timeout=60).stdout == "image\n"


# User data with the replica of the SSM Agent.


def test_user_data_is_a_script_that_ec2_takes() -> None:
    text = source_ami.user_data()
    assert text.startswith("#!/bin/sh\n") and len(text.encode()) <= source_ami.MAX_BYTES
    done = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "systemctl enable --now amazon-ssm-agent.service" in text
