"""The kernel of a plan in the archive of its system: what its package brings today, and packages of that release."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.recipes import ResolvedPlan, find_recipe
from gpu_ami.sources import planned
from gpu_ami.sources.http import Client, Unreachable
from gpu_ami.sources.package_index import Index, Package, Relation
from gpu_ami.sources.planned import ask_kernel, planned_kernel
from gpu_ami.sources.repositories import ReadRepository
from gpu_ami.sources.survey import survey

# noble-updates, main, amd64 as of 2026-11-26 (InRelease signed by F6ECB3762474EDA9D21B7022871920D1991BC93C): 7.0 has no
# linux-modules-extra.
NOBLE = (
    Package(
        "linux-image-aws", "7.0.0-1018.19~24.04.1", "amd64",
        ((Relation("linux-image-7.0.0-1018-aws"),), (Relation("microcode-initrd"),)),
    ),
    Package("linux-image-aws-lts-24.04", "6.8.0-1070.76", "amd64", ((Relation("linux-image-6.8.0-1070-aws"),),)),
    Package("linux-headers-7.0.0-1018-aws", "7.0.0-1018.19~24.04.1", "amd64"),
    Package("linux-headers-6.8.0-1070-aws", "6.8.0-1070.76", "amd64"),
    Package("linux-modules-extra-6.8.0-1070-aws", "6.8.0-1070.76", "amd64"),
)  # fmt: skip
IMAGE, LTS = "kernel linux-image-aws", "kernel linux-image-aws-lts-24.04"


def document(recipe: str, *overrides: str) -> ResolvedPlan:
    return make_plan(find_recipe(Path(recipe)), Place(name="aws", region="us-east-1"), overrides).document


@pytest.fixture
def archive(monkeypatch: pytest.MonkeyPatch) -> list[Package]:
    """The packages of each suite that is read."""
    packages = list(NOBLE)

    def read(_client: Client, repository: Any) -> Any:
        index = Index.of("deb", packages)
        folder = f"{repository.url}dists/{repository.suite}/"
        return type("Key", (), {"fingerprint": "F" * 40, "days_left": None}), ReadRepository(
            repository, index, folder, "sha256:1", None
        )

    monkeypatch.setattr(planned, "read_repository", read)
    return packages


def asked(plan: ResolvedPlan) -> dict[str, tuple[str, str]]:
    kernel = planned_kernel(plan)
    assert kernel is not None
    return {f"{one.component} {one.item}": (one.state, "; ".join(one.details)) for one in ask_kernel(kernel, Client())}


def test_release_that_the_newest_ami_boots(archive: list[Package]) -> None:
    assert asked(document("ubuntu2404-compute")) == {
        IMAGE: ("there", "brings 7.0.0-1018-aws today"),
        "kernel linux-headers-7.0.0-1018-aws": ("there", ""),
    }
    of_lts = asked(document("ubuntu2404-compute", "kernel.version=6.8"))
    assert of_lts[LTS] == ("there", "brings 6.8.0-1070-aws today")
    assert of_lts["fabric_manager linux-modules-extra-6.8.0-1070-aws"] == ("there", "")


def test_series_that_the_package_no_longer_brings(archive: list[Package]) -> None:
    """A package of an older release may exist for an older AMI, so nothing else is said of it."""
    plan = cast(dict[str, Any], document("ubuntu2404-compute", "kernel.version=6.17"))
    found = asked(cast(ResolvedPlan, plan | {"kernel": plan["kernel"] | {"package": "linux-image-aws"}}))
    assert list(found) == [IMAGE]
    assert found[IMAGE][1].endswith("the build stops unless the source AMI boots 6.17: name an older one in source_ami")


def test_package_of_the_release_that_the_archive_lacks(archive: list[Package]) -> None:
    """As all recipes of Ubuntu 24.04 planned it until kernel 7.0: the build stopped at apt, on a paid machine."""
    plan = cast(dict[str, Any], document("ubuntu2404-b300"))
    plan = plan | {"fabric_manager": plan["fabric_manager"] | {"system_packages": ["linux-modules-extra-{release}"]}}
    found = asked(cast(ResolvedPlan, plan))
    assert found["fabric_manager linux-modules-extra-7.0.0-1018-aws"][0] == "missing"


def test_series_that_nobody_knows_yet(archive: list[Package]) -> None:
    archive += [
        Package("linux-image-aws", "7.2.0-1001.1", "amd64", ((Relation("linux-image-7.2.0-1001-aws"),),)),
        Package("linux-headers-7.2.0-1001-aws", "7.2.0-1001.1", "amd64"),
    ]
    state, said = asked(document("ubuntu2404-compute"))[IMAGE]
    assert (state, "series 7.2 is newer than the plan knows" in said) == ("there", True)


def test_kernel_that_the_archive_lacks(archive: list[Package]) -> None:
    archive.clear()
    assert asked(document("ubuntu2204-compute")) == {IMAGE: ("missing", "")}


def test_archive_that_cannot_be_read_stops_no_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise Unreachable("http://archive.ubuntu.com/ubuntu/: no answer")

    monkeypatch.setattr(planned, "read_repository", refuse)
    assert asked(document("ubuntu2404-compute"))[IMAGE] == ("unknown", "http://archive.ubuntu.com/ubuntu/: no answer")


def test_systems_without_a_known_archive_are_named_as_not_asked() -> None:
    assert planned_kernel(document("al2023-compute")) is None


def test_survey_asks_the_archive_or_says_that_it_does_not(archive: list[Package]) -> None:
    plan = {**document("ubuntu2404-compute"), "roles": ["kernel"]}
    keep = ("image", "digest", "os", "architecture", "source_ami", "roles", "kernel")
    small = cast(ResolvedPlan, {key: plan[key] for key in keep if key in plan})
    with_it = survey(small, Client(), with_archive=True)
    assert [one.state for one in with_it.findings if one.component == "kernel"] == ["there", "there"]
    without = survey(small, Client())
    assert [one.state for one in without.findings if one.component == "kernel"] == ["unasked"]
