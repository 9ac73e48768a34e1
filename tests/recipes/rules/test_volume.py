"""The rule of the root volume, with a recipe that it refuses and those that it accepts."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.rules.volume import installed_gib, least_gib, volume_has_room
from tests.recipes.conftest import context

DRIVER = "nvidia_driver: {version: '580'}"
CUDA = f"{DRIVER}\ncuda: {{version: '13.0'}}\ncudnn: {{version: '9'}}"


def test_volume_that_is_too_small_is_refused_with_numbers() -> None:
    (conflict,) = volume_has_room(context(f"{CUDA}\nbuild: {{root_volume_gib: 16}}"), {})
    assert conflict.path == "build.root_volume_gib" and conflict.nearest == "build.root_volume_gib 40"
    assert conflict.text == (
        "a root volume of 16 GiB is too small: expected at least 40"
        " (base AMI (ec2) 3, driver 2, CUDA 8, cuDNN 2, reserve 5 GiB)"
    )


@pytest.mark.parametrize(("text", "least"), [(DRIVER, 10), (CUDA, 40)])
def test_least_size_follows_from_what_is_installed(text: str, least: int) -> None:
    assert least_gib(context(text)) == least
    assert list(volume_has_room(context(f"{text}\nbuild: {{root_volume_gib: {least}}}"), {})) == []
    assert len(list(volume_has_room(context(f"{text}\nbuild: {{root_volume_gib: {least - 1}}}"), {}))) == 1


def test_component_without_a_version_takes_no_room() -> None:
    """Layers below the recipe set the driver's flavour also where there is no driver."""
    assert "driver" not in installed_gib(context()) and "driver" in installed_gib(context(DRIVER))


def test_larger_base_ami_needs_a_larger_volume() -> None:
    assert least_gib(context(CUDA, node="dlami")) > 60
