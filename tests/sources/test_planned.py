"""What a plan asks of its sources, from the plans of our own recipes.

Tags of git repositories, as smart and dumb servers advertise them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.recipes import find_recipe
from gpu_ami.sources import releases
from gpu_ami.sources.http import Client, NotThere, SourceError, Unreachable
from gpu_ami.sources.planned import PlannedDownload, PlannedFile, PlannedPackages, PlannedTag, Unasked, planned

from .conftest import Web


def items(recipe: str, *overrides: str) -> list[Any]:
    return planned(make_plan(find_recipe(Path(recipe)), Place(name="aws", region="us-east-1"), overrides).document)


def test_every_component_is_asked_for_or_named() -> None:
    found = items("ubuntu2204-compute")
    packages = {item.component: item for item in found if isinstance(item, PlannedPackages)}
    assert {"nvidia_driver", "fabric_manager", "cuda", "cudnn", "nccl", "dcgm", "container_toolkit", "mkl"} <= set(
        packages
    )
    driver = packages["nvidia_driver"]
    assert len(driver.packages) == 4 and all(version.endswith("ubuntu1") for version in driver.packages.values())
    assert (driver.repository.kind, driver.repository.architecture) == ("deb", "amd64")
    assert driver.repository.url.startswith("https://") and driver.repository.url.endswith("/")
    assert packages["mkl"].repository.suite == "all" and not packages["mkl"].repository.is_flat
    assert {item.component for item in found if isinstance(item, PlannedFile)} == {"efa", "cloudwatch_agent"}
    assert {item.component for item in found if isinstance(item, PlannedTag)} == {"gdrcopy"}
    assert Unasked("container_toolkit", "docker.io", "the operating system's own archive") in found


def test_package_that_is_named_after_the_kernel_is_not_asked_for() -> None:
    """Its repository and key are."""
    overrides = ("lustre={}", 'kernel={version: "6.17"}')
    found = [item for item in items("ubuntu2404-compute", *overrides) if item.component == "lustre"]
    assert [item.item for item in found if isinstance(item, Unasked)] == ["lustre-client-modules-{release}"]
    (repository,) = (item for item in found if isinstance(item, PlannedPackages))
    assert repository.packages == {} and repository.repository.suite == "noble"


def test_rpm_systems_have_rpm_architectures() -> None:
    found = [item for item in items("eks-1.35-al2023-gpu-arm64") if isinstance(item, PlannedPackages)]
    assert {(item.repository.kind, item.repository.architecture) for item in found} == {("rpm", "aarch64")}


def test_index_that_the_vendor_does_not_sign() -> None:
    neuron = next(item for item in items("al2023-neuron") if item.component == "neuron")
    assert not neuron.repository.signed_index
    assert all(version.endswith("*") for version in neuron.packages.values())


def test_parts_of_the_base_ami_are_not_asked_for() -> None:
    found = items("dlami-ubuntu2204")
    assert any(isinstance(item, Unasked) and "base AMI" in item.reason for item in found)


def test_both_kernel_modules_of_a_driver_for_every_gpu() -> None:
    driver = next(item for item in items("al2023-any-gpu") if item.component == "nvidia_driver")
    assert sum("dkms" in name for name in driver.packages) == 2


@pytest.mark.parametrize("recipe", ["debian12-gpu", "pcluster-3.16-ubuntu2404", "ecs-al2023-gpu", "ubuntu2404-gb200"])
def test_roles_with_an_address_are_all_there(recipe: str) -> None:
    document = make_plan(find_recipe(Path(recipe)), Place(name="aws", region="us-east-1")).document
    sections = {role for role in document["roles"] if {"url", "repository"} & set(document.get(role, {}))}  # type: ignore[operator]
    asked = {item.component for item in planned(document) if not isinstance(item, Unasked)}
    assert asked == {role for role in sections if "provided_by" not in document[role]}  # type: ignore[literal-required]


def test_packages_of_an_archive_are_asked_for_in_the_suite_that_has_them() -> None:
    driver = [item for item in items("debian12-distribution") if item.component == "nvidia_driver"]
    assert [(item.repository.suite, "nvidia-persistenced" in item.packages, len(item.packages)) for item in driver] == [
        ("bookworm-security", False, 8),
        ("bookworm", True, 1),
    ]
    assert {item.repository.keyring for item in driver} == {"/usr/share/keyrings/debian-archive-keyring.gpg"}


def test_installer_without_a_signature_is_asked_for_by_its_address() -> None:
    (driver,) = [item for item in items("ubuntu2404-workstation") if isinstance(item, PlannedDownload)]
    assert driver == PlannedDownload(
        "nvidia_driver",
        "580.65.06",
        "https://ec2-linux-nvidia-drivers.s3.amazonaws.com/grid-19.0/NVIDIA-Linux-x86_64-580.65.06-grid-aws.run",
        "",
    )


A, B, C = "a" * 40, "b" * 40, "c" * 40
REFS = "/tool.git/info/refs?service=git-upload-pack"


def packets(*lines: str) -> bytes:
    encoded = [f"{len(line) + 4:04x}{line}".encode() if line else b"0000" for line in lines]
    return b"".join(encoded)


SMART = packets(
    "# service=git-upload-pack\n", "", f"{A} HEAD\0multi_ack symref=HEAD:refs/heads/main\n", f"{A} refs/heads/main\n",
    f"{B} refs/tags/v1.0\n", f"{C} refs/tags/v1.0^{{}}\n", f"{A} refs/tags/v1.1\n", "",
)  # fmt: skip


def test_annotated_tag_is_the_commit_that_it_names(web: Web, client: Client) -> None:
    web.put(REFS, SMART)
    assert releases.read_tags(client, f"{web.url}/tool.git") == {"v1.0": C, "v1.1": A}


@pytest.mark.parametrize("first", [A, "001e" + "a" * 36])  # the second begins as a pkt-line does
def test_dumb_server(web: Web, client: Client, first: str) -> None:
    web.put(REFS, f"{first}\trefs/heads/main\n{B}\trefs/tags/v1.0\n{C}\trefs/tags/v1.0^{{}}\n".encode())
    assert releases.read_tags(client, f"{web.url}/tool.git") == {"v1.0": C}


@pytest.mark.parametrize(
    ("body", "status", "kind", "message"),
    [
        (b"", 404, NotThere, "HTTP 404"),
        (b"", 401, NotThere, "no public repository: HTTP 401"),
        (b"", 503, Unreachable, "HTTP 503"),
        (b"hello", 200, SourceError, "expected the references of a git repository"),
        (b"001e# service=git-upload-pack\n0000xyz1", 200, SourceError, "expected references"),
        (SMART[:-60], 200, SourceError, "cut off"),
    ],
)
def test_what_is_no_repository_is_named(
    web: Web, client: Client, body: bytes, status: int, kind: type[SourceError], message: str
) -> None:
    web.put(REFS, body, status=status)
    with pytest.raises(kind, match=message):
        releases.read_tags(client, f"{web.url}/tool.git")


def test_newer_tags_have_the_same_form() -> None:
    tags = dict.fromkeys(["v2.4", "v2.5", "v2.5.1", "v2.10", "v2.11-rc1", "2.12", "latest"], A)
    assert releases.newer_tags(tags, "v2.5") == ["v2.10", "v2.5.1"]
    assert releases.newer_tags(tags, "v2.10") == []
