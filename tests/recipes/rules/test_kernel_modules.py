"""Which release of a module builds on which kernel series, and which series a recipe gets that sets none."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.rules.incompatibilities import does_not_build
from gpu_ami.recipes.solver import with_kernel
from tests.recipes.conftest import context as context_of

RECIPE = "flag: x\nos: ubuntu2404\ninstance_types: [p5.48xlarge]\nnvidia_driver: {version: '580'}\n"


@pytest.mark.parametrize(
    ("kernel", "component", "version", "builds"),
    [
        ("6.8", "nvidia_driver", "550.163.01", True),
        ("6.17", "nvidia_driver", "550.163.01", False),
        ("6.17", "nvidia_driver", "570.211.01", True),
        ("7.0", "nvidia_driver", "570.211.01", False),
        ("7.0", "nvidia_driver", "580.126.09", False),
        ("7.0", "nvidia_driver", "580.126.20", True),
        ("7.0", "nvidia_driver", "620.70.06", True),  # no row names R620: not established, so planned
        ("6.8", "gdrcopy", "2.5.1", True),
        ("6.17", "gdrcopy", "2.5.1", False),
        ("7.0", "gdrcopy", "2.5.2", True),
        ("6.17", "efa", "1.36.0", False),
        ("6.17", "efa", "1.43.3", True),
        ("6.17", "nccl", "2.28.9", True),
    ],
)
def test_a_release_builds_from_its_first_on(kernel: str, component: str, version: str, builds: bool) -> None:
    context = context_of(f"{RECIPE}kernel: {{version: '{kernel}'}}\n")
    assert (does_not_build(context, component, version) is None) is builds


@pytest.mark.parametrize(
    ("more", "series"),
    [
        ("", "7.0"),
        ("gdrcopy: {version: 2.5.1}\n", "6.8"),  # 6.17 is no longer in the archive's package
        ("kernel: {version: '6.17'}\ngdrcopy: {version: 2.5.1}\n", "6.17"),  # and conflicts
    ],
)
def test_series_is_the_first_on_which_all_builds(more: str, series: str) -> None:
    context, solution = with_kernel(context_of(RECIPE + more))
    assert context.kernel == series
    assert bool(solution.conflicts) is (series == "6.17")
