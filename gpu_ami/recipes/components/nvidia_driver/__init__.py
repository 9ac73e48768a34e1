"""NVIDIA's driver: from NVIDIA's repository, the system's own archive, or AWS's bucket of GRID drivers.

packages             its packages and repository, which CUDA's libraries and the driver's companions share
"""

from __future__ import annotations

from gpu_ami.recipes.components.nvidia_driver import packages
from gpu_ami.recipes.rules import (
    DISTRIBUTION_RULES,
    DRIVER_RULES,
    GRID_RULES,
    Component,
    distribution_has_driver,
    version_kind,
)
from validator.plan_document import NvidiaDriver
from validator.schema import Choice, Flag, Keys, Text

FLAVOURS = ("open", "proprietary", "boot")
# NVIDIA's repository, the operating system's own archive, or AWS's bucket with NVIDIA's GRID driver.
SOURCES = ("vendor", "distribution", "grid")


COMPONENT = Component(
    "nvidia_driver",
    "driver",
    layer="driver",
    after=("node_parallelcluster",),
    is_chosen=True,
    # Its version is not needed: layers below set the flavour also where there is no NVIDIA driver.
    keys=Keys(
        {
            "version": version_kind("550.163.01"),
            "flavour": Choice(FLAVOURS),
            "gsp": Flag(),
            "source": Choice(SOURCES),
            "sha256": Text("0123456789abcdef" * 4, r"[0-9a-f]{64}", "64 hexadecimal digits"),
            "virtual_applications": Flag(),
        }
    ),
    meanings={
        "flavour": "kernel module; `boot` installs both and loads one at boot, by the GPU",
        "gsp": "false: GSP firmware off (proprietary module only)",
        "source": (
            "`vendor`: NVIDIA's repository, the default; `distribution`: the system's own archive; "
            "`grid`: AWS's bucket with NVIDIA's GRID driver"
        ),
        "sha256": "digest of the GRID driver's installer, as you have checked it (AWS publishes none)",
        "virtual_applications": "true: GRID virtual applications instead of a virtual workstation",
    },
    section=NvidiaDriver,
    write=packages.driver_section,
    rules=(
        *DRIVER_RULES,
        *DISTRIBUTION_RULES,
        ((), distribution_has_driver),
        *(((), rule) for rule in GRID_RULES),
    ),
    size_gib=2,
    version_tag="nvidia_version",
)
