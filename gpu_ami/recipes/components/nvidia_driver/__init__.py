"""NVIDIA's driver: from NVIDIA's repository, the system's own archive, or AWS's bucket of GRID drivers.

driver_packages      its packages and repository, which CUDA's libraries and the driver's companions share
"""

from __future__ import annotations

import re

from gpu_ami.recipes.components.nvidia_driver import driver_packages
from gpu_ami.recipes.rules import (
    DISTRIBUTION_RULES,
    DRIVER_RULES,
    GRID_RULES,
    INCOMPATIBILITY_RULES,
    LATEST,
    Component,
    TemplateVariable,
    Understood,
    distribution_has_driver,
    kernel_module_rule,
    latest,
    version_kind,
)
from validator.plan_document import NvidiaDriver
from validator.schema import Choice, Flag, Keys, Text

FLAVOURS = ("open", "proprietary", "boot")
# NVIDIA's repository, the operating system's own archive, or AWS's bucket with NVIDIA's GRID driver.
SOURCES = ("vendor", "distribution", "grid")


def _understood(text: str) -> Understood:
    """`515.86.01`, `580`, `NVIDIA-Linux-x86_64-515.86.01.run`, `cuda-drivers-fabricmanager-520`, `latest`."""
    exact = re.search(r"(?<![\d.])\d{3}(?:\.\d+){1,2}", text)
    package = re.search(r"(?:^|-)(\d{3})(?:-\w+)?$", text)
    if text in LATEST:
        return latest(text)
    if exact:
        return Understood(exact[0])
    if not package:
        return Understood(None, others=(text,))
    if text == package[1]:
        return Understood(text)
    remarks = [f"package {text} becomes branch {package[1]}; the lock will pin a release of it"]
    if "fabricmanager" in text:
        remarks.append("fabric manager comes by itself where an instance type has an NVSwitch")
    return Understood(package[1], tuple(remarks))


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
        "sha256": "SHA-256 of the GRID driver's installer that you have verified (AWS publishes none)",
        "virtual_applications": "true: GRID virtual applications instead of a virtual workstation",
    },
    section=NvidiaDriver,
    write=driver_packages.driver_section,
    of_base=driver_packages.of_base,
    rules=(
        *DRIVER_RULES,
        *DISTRIBUTION_RULES,
        *INCOMPATIBILITY_RULES,
        kernel_module_rule("nvidia_driver"),
        ((), distribution_has_driver),
        *(((), rule) for rule in GRID_RULES),
    ),
    size_gib=2,
    version_tag="nvidia_version",
    template=TemplateVariable(
        r"nvidia_version|nvidia_driver(_(lts|major|branch))?(_version)?"
        r"|nvidia_driver_pb_version|(gpu|cuda)_driver_version|driver_version|nvidia_driver_full_version",
        _understood,
    ),
)
