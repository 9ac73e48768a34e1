"""NVIDIA's driver, and what has its version: the fabric manager and IMEX, for instance types that need them.

The driver is NVIDIA's repository's, the system's own archive's, or AWS's bucket's of GRID drivers.

driver_packages      its packages and repository, which CUDA's libraries and the driver's companions share
"""

from __future__ import annotations

import re

from gpu_ami.recipes.components.nvidia_driver import driver_packages
from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import (
    DISTRIBUTION_RULES,
    DRIVER,
    DRIVER_RULES,
    GRID_RULES,
    INCOMPATIBILITY_RULES,
    LATEST,
    PRESENCE,
    Assignment,
    Component,
    Observed,
    ResolveContext,
    TemplateVariable,
    Understood,
    content,
    distribution_has_driver,
    file,
    kernel_module_rule,
    latest,
    module,
    package,
    program,
    record,
    version_kind,
)
from validator.plan_document import DriverCompanion, NvidiaDriver
from validator.schema import Choice, Flag, Keys, MapOf, Text

# The driver's packages as vendor and distributions name them; the kernel's modules packages have the kernel's version.
_PACKAGES = (
    r"nvidia-(driver|open|headless|utils|dkms|kernel-open-dkms|kernel-dkms|kernel-common|kmod-common|smi)(-\d{3})?"
    r"(-(server|open|cuda|libs|bin|assistant|no-dkms))*|kmod-nvidia-(open|latest)(-dkms)?|cuda-drivers(-\d{3})?"
    r"|libnvidia-(compute|ml)-?\d*(-server)?|libcuda1|nvidia-(dkms|kernel-source)-\d{3}(-open|-server)*"
    # RPM Fusion, whose akmods build a package for each kernel, and openSUSE.
    r"|akmod-nvidia(-open)?|kmod-nvidia(-open)?-\d.*|xorg-x11-drv-nvidia(-cuda|-cuda-libs|-libs)?"
    r"|nvidia-(open-)?driver-G0\d(-signed)?(-cuda)?-kmp-\w+|nvidia-(compute|compute-utils|gl|video|common)-G0\d"
)
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


_DRIVER = Component(
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
            "options": MapOf(r"NVreg_\w+", "NVreg_EnableStreamMemOPs", Text('"1"', r"[^\s\"'#\\]{1,500}")),
            "source": Choice(SOURCES),
            "sha256": Text("0123456789abcdef" * 4, r"[0-9a-f]{64}", "64 hexadecimal digits"),
            "folder": Text("grid-20.1", r"grid-\d+\.\d+", "a folder of AWS's bucket, `grid-20.1`"),
            "virtual_applications": Flag(),
        }
    ),
    meanings={
        "flavour": "kernel module; `boot` installs both and loads one at boot, by the GPU",
        "gsp": "false: GSP firmware off (proprietary module only)",
        "options": "options of the kernel module; what an instance type needs comes from `facts/driver_options.yml`",
        "source": (
            "`vendor`: NVIDIA's repository, the default; `distribution`: the system's own archive; "
            "`grid`: AWS's bucket with NVIDIA's GRID driver"
        ),
        "folder": (
            "folder of a GRID driver that the facts do not have (`aws s3 ls --no-sign-request "
            "s3://ec2-linux-nvidia-drivers/` lists them)"
        ),
        "sha256": "SHA-256 of the GRID driver's installer, which you have verified: a build on AWS needs it",
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
        *GRID_RULES,
    ),
    size_gib=2,
    observed=Observed(
        (
            package(_PACKAGES, rf"^(?:\d+:)?{DRIVER}"),
            *module("nvidia", DRIVER),
            *module("nvidia_current", DRIVER),
            file("libcuda.so.1", r"libcuda\.so\.(\d{3}\.\d+(?:\.\d+)?)$", "library file"),
            file("libnvidia-ml.so.1", r"libnvidia-ml\.so\.(\d{3}\.\d+(?:\.\d+)?)$", "library file"),
            file("/var/lib/dkms/nvidia*/*/source", rf"/usr/src/nvidia[\w-]*-{DRIVER}$", "DKMS"),
            # Bottlerocket's driver, which driverdog links at boot (bottlerocket-core-kit, packages/kmod-*-nvidia).
            file("/usr/lib/nvidia/tesla/libcuda.so.*", r"libcuda\.so\.(\d{3}\.\d+(?:\.\d+)?)$", "library file"),
            record("/var/log/nvidia-installer.log", rf"NVIDIA-Linux-\w+-{DRIVER}|driver version:? *{DRIVER}"),
            content("/opt/nvidia/drivers/*/.version", DRIVER, "driver tree"),
            # EKS's accelerated AMI v20260923 keeps its drivers as trees (lts, pb); a boot puts one in place.
            file("/opt/nvidia/*/usr/lib64/libcuda.so.*", r"libcuda\.so\.(\d{3}\.\d+(?:\.\d+)?)$", "driver tree"),
            # EKS's kmod-util keeps each flavour as a DKMS tarball, and a boot installs one (amazon-eks-ami 81fec2e8).
            file("/var/lib/dkms-archive/nvidia*/*.tar.gz", rf"/nvidia[\w-]*-{DRIVER}-kernel", "driver tree"),
            program("nvidia-smi --query-gpu=driver_version --format=csv,noheader", rf"(?m)^{DRIVER}$"),
        )
    ),
    version_tag="nvidia_version",
    template=TemplateVariable(
        r"nvidia_version|nvidia_driver(_(lts|major|branch))?(_version)?"
        r"|nvidia_driver_pb_version|(gpu|cuda)_driver_version|driver_version|nvidia_driver_full_version",
        _understood,
    ),
)


# From this generation on, NVSwitch needs NVIDIA's subnet manager beside the fabric manager: amazon-eks-ami 81fec2e8.
_NVLSM_FROM = 4
# The InfiniBand tools that nvlsm needs: amazon-eks-ami 81fec2e8 install-nvidia-driver.sh (2026-07-23).
_INFINIBAND = {"debian": ("infiniband-diags",), "redhat": ("libibumad", "infiniband-diags")}


def _fabric_manager_section(context: ResolveContext, versions: Assignment, sources: Sources) -> DriverCompanion | None:
    section = driver_packages.companion(
        context, versions, sources, component="fabric_manager", package="package", on=context.nvswitch
    )
    nvlsm = [name for name in context.nvswitch if context.family(name)["nvswitch_generation"] >= _NVLSM_FROM]
    if section and nvlsm and "provided_by" not in section:
        _add_subnet_manager(section, context, nvlsm, sources)
    return section


def _add_subnet_manager(
    section: DriverCompanion, context: ResolveContext, instance_types: list[str], sources: Sources
) -> None:
    """nvlsm in its own version, and the system's packages that it needs ({release}: what `uname -r` prints)."""
    row = driver_packages.last_from(context.facts.driver_packages["nvlsm"], section["version"])
    sources.add("version of nvlsm", row)
    section["nvlsm_instance_types"] = instance_types
    section["packages"] = {"nvlsm": row["version"]}
    section.update(driver_packages.modules_extra(context, *_INFINIBAND[context.os["family"]]))  # type: ignore[typeddict-item]


_FABRIC_MANAGER = Component(
    "fabric_manager",
    "fabric manager",
    layer="driver",
    after=("nvidia_driver",),
    keys=Keys({"version": Text("550.163.01", r"\d+(\.\d+){1,3}")}),
    meanings={
        "version": "the driver's version; installed automatically where an instance type has an NVSwitch",
    },
    section=DriverCompanion,
    write=_fabric_manager_section,
    observed=Observed(
        (
            package(r"nvidia-fabric-?manager(-\d+)?|cuda-drivers-fabricmanager(-\d+)?", rf"^(?:\d+:)?{DRIVER}"),
            file("/usr/bin/nv-fabricmanager", PRESENCE),
            program("nv-fabricmanager --version", DRIVER),
        )
    ),
    size_gib=0.1,
)


def _imex_section(context: ResolveContext, versions: Assignment, sources: Sources) -> DriverCompanion | None:
    needed_on = [name for name in context.instance_types if context.family(name).get("imex")]
    return driver_packages.companion(context, versions, sources, component="imex", package="imex", on=needed_on)


_IMEX = Component(
    "imex",
    "IMEX",
    layer="driver",
    after=("fabric_manager",),
    keys=Keys({"version": Text("550.163.01", r"\d+(\.\d+){1,3}")}),
    meanings={"version": "the driver's version; installed automatically where memory spans machines"},
    section=DriverCompanion,
    write=_imex_section,
    observed=Observed(
        (
            package(r"nvidia-imex(-\d+)?", rf"^(?:\d+:)?{DRIVER}"),
            file("/usr/bin/nvidia-imex", PRESENCE),
            program("nvidia-imex --version", DRIVER),
        )
    ),
    size_gib=0.1,
)

COMPONENTS = (_DRIVER, _FABRIC_MANAGER, _IMEX)
