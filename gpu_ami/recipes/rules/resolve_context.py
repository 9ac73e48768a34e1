"""The context of the rules: a recipe's system, node family and accelerators, and the facts about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from gpu_ami.recipes.facts import Facts, Row, parts

if TYPE_CHECKING:
    from gpu_ami.recipes.rules.component import Component

Assignment = Mapping[str, str]


@dataclass(frozen=True)
class Conflict:
    """Two values that are incompatible.

    path: the key of the recipe to change first. text: both values and the rule. source: of the rule. change: components
    whose version could be changed (for "nearest"). nearest: the remedy, where it is not a version.
    """

    path: str
    text: str
    source: str
    change: tuple[str, ...] = ()
    nearest: str = ""


@dataclass(frozen=True)
class Gpu:
    """A GPU model of the recipe and the instance types that have it."""

    row: Row
    architecture: Row
    model: Row
    instance_types: tuple[str, ...]

    @property
    def named(self) -> str:
        return f"{self.row['name']} ({', '.join(self.instance_types)})"


@dataclass(frozen=True)
class DriverBranch:
    """One of the drivers of a base AMI that takes one of several at the first boot, by the instance type.

    flavours: instance type of the recipe that takes it → flavour of the kernel module there.
    """

    name: str
    version: str
    flavours: Mapping[str, str]

    def __str__(self) -> str:
        types = ", ".join(f"{name} ({flavour})" for name, flavour in self.flavours.items())
        return f"{self.name} {self.version} on {types or 'none of the instance types'}"


def kernel_of_base_ami(family: Row, version: str, system: str, architecture: str) -> str | None:
    """The kernel series that a node family's base AMI of a version boots; None: the system's own, or not known.

    family: its row of the facts.
    """
    if family.get("systems", {}).get(system, {}).get("own_kernel"):
        return None
    row = family.get("versions", {}).get(version, {})
    of_architecture = row.get("kernels", {}).get(system, {}).get(architecture)
    fixed = row.get("kernel") or of_architecture or family.get("kernels", {}).get(system)
    return str(fixed) if fixed else None


@dataclass(frozen=True)
class ResolveContext:
    """A recipe's values, the rows of the facts that they name, the components: what rules and sections are given.

    series: a kernel series of the system to plan instead of the first, where neither recipe nor base AMI sets one.
    """

    values: Mapping[str, Any]
    facts: Facts
    components: Mapping[str, Component]
    series: str = ""

    @cached_property
    def os_name(self) -> str:
        return str(self.values["os"])

    @cached_property
    def os(self) -> Row:
        return self.facts.operating_systems[self.os_name]  # type: ignore[no-any-return]

    @cached_property
    def node_name(self) -> str:
        return str(self.values["node"])

    @cached_property
    def node(self) -> Row:
        return self.facts.node_families[self.node_name]  # type: ignore[no-any-return]

    @cached_property
    def node_version(self) -> str | None:
        asked = self.values.get("node_version")
        return str(asked) if asked is not None else None

    @cached_property
    def node_release(self) -> Row:
        """The row of the orchestrator's version; empty where there is none."""
        return self.node.get("versions", {}).get(self.node_version, {})  # type: ignore[no-any-return]

    @cached_property
    def node_variant(self) -> str | None:
        asked = self.values.get("node_variant")
        return str(asked) if asked is not None else None

    @cached_property
    def variant(self) -> Row:
        """The row of the base AMI's variant; empty where the recipe names none, or the family has no such one."""
        return self.node.get("variants", {}).get(self.node_variant, {})  # type: ignore[no-any-return]

    @cached_property
    def driver_branches(self) -> tuple[DriverBranch, ...]:
        """The drivers of the base AMI where it has several; () where it has one or none."""
        families = {name: row["family"] for name, row in self.instance_types.items()}
        branches = self.variant.get("driver_branches", {})
        return tuple(
            DriverBranch(
                branch,
                str(row["version"]),
                {name: row["families"][family] for name, family in families.items() if family in row["families"]},
            )
            for branch, row in branches.items()
        )

    def branch_of(self, instance_type: str) -> DriverBranch | None:
        """The branch that the base AMI takes on an instance type."""
        return next((branch for branch in self.driver_branches if instance_type in branch.flavours), None)

    @cached_property
    def provided(self) -> Mapping[str, str]:
        """Components of the base AMI → version.

        Of several driver branches the oldest that an instance type takes: what runs with it runs with the others.
        """
        provides = {**self.node_release.get("provides", {}), **self.variant.get("provides", {})}
        if self.driver_branches:
            taken = [branch.version for branch in self.driver_branches if branch.flavours]
            provides["nvidia_driver"] = min(taken or [self.driver_branches[0].version], key=parts)
        return provides

    @cached_property
    def node_system(self) -> Row:
        """What is different in the family's base AMI with the image's system; empty where it is the family's own."""
        return self.node.get("systems", {}).get(self.os_name, {})  # type: ignore[no-any-return]

    @property
    def node_role(self) -> str:
        """The role of the node family's base AMI."""
        return str(self.node_system.get("role", f"node_{self.node_name}"))

    @property
    def base_ami(self) -> str:
        """The base AMI in words: node family, version, and the variant with its release."""
        words = [self.node_name, self.node_version, self.node_variant, self.variant.get("release")]
        return " ".join(str(word) for word in words if word)

    @property
    def base_ami_source(self) -> str:
        """Where it stands what the base AMI provides."""
        row = self.variant or self.node_release or self.node
        return str(row["source"])

    @cached_property
    def kernel(self) -> str:
        """The kernel series that the image boots: the recipe's, else the base AMI's, else the system's first."""
        return str(self.fixed_kernel or self.series or self.os["kernels"][0])

    @cached_property
    def fixed_kernel(self) -> str | None:
        """The kernel series that the recipe or the node family's base AMI sets; None where neither does."""
        asked = self.values.get("kernel", {}).get("version")
        return str(asked) if asked else self.base_kernel

    def kernel_packages(self, series: str) -> Row:
        """The system's row of the packages of a kernel series."""
        rows = self.os["kernel_packages"]
        return rows.get(series) or rows["default"]  # type: ignore[no-any-return]

    @cached_property
    def installable_kernels(self) -> tuple[str, ...]:
        """Series that a build can get to: of those that share a package, the first, which the package brings today."""
        packages: dict[str, str] = {}
        for series in map(str, self.os["kernels"]):
            packages.setdefault(self.kernel_packages(series)["package"], series)
        return tuple(packages.values())

    @cached_property
    def followed_kernels(self) -> tuple[str, ...]:
        """Series that AMIs of the planned name boot, one after the other: the image takes the one that it finds.

        () where recipe or node family set the series, or the package has one series alone.
        """
        package = self.kernel_packages(self.kernel)["package"]
        same = [one for one in map(str, self.os["kernels"]) if self.kernel_packages(one)["package"] == package]
        is_first = self.kernel == str(self.os["kernels"][0])
        return tuple(same) if len(same) > 1 and is_first and not self.fixed_kernel else ()

    @cached_property
    def base_kernel(self) -> str | None:
        """The kernel series that the node family's base AMI boots, where that is known."""
        architecture = str(self.values["architecture"])
        return kernel_of_base_ami(self.node, self.node_version or "", self.os_name, architecture)

    @cached_property
    def instance_types(self) -> Mapping[str, Row]:
        return {name: self.facts.instance_types["instance_types"][name] for name in self.values["instance_types"]}

    def family(self, instance_type: str) -> Row:
        row = self.facts.instance_types["instance_types"][instance_type]
        return self.facts.instance_types["families"][row["family"]]  # type: ignore[no-any-return]

    def is_built_for(self, instance_type: str) -> bool:
        """Whether the image can be built for a type: fractions of a GPU need a base AMI's or GRID's driver."""
        if "refused" not in self.family(instance_type) or self.branch_of(instance_type):
            return True
        return (
            self.is_grid_driver and self.instance_types[instance_type]["family"] in self.facts.grid_drivers["families"]
        )

    @cached_property
    def accelerators(self) -> frozenset[str]:
        """nvidia, neuron: of the instance types that images are built for."""
        return frozenset(self.family(name)["accelerator"] for name in self.instance_types if self.is_built_for(name))

    @cached_property
    def gpus(self) -> tuple[Gpu, ...]:
        """NVIDIA models among the instance types that images are built for, each once."""
        by_model: dict[str, list[str]] = {}
        for name, row in self.instance_types.items():
            if "gpu" in row and self.is_built_for(name):
                by_model.setdefault(row["gpu"]["name"], []).append(name)
        drivers = self.facts.nvidia_drivers
        return tuple(
            Gpu(
                row=self.instance_types[names[0]]["gpu"],
                architecture=drivers["architectures"][self.instance_types[names[0]]["gpu"]["compute_capability"]],
                model=drivers["models"].get(model, {}),
                instance_types=tuple(names),
            )
            for model, names in by_model.items()
        )

    @cached_property
    def nvswitch(self) -> tuple[str, ...]:
        return tuple(name for name, row in self.instance_types.items() if row["nvswitch"])

    @cached_property
    def flavour(self) -> str:
        return str(self.values.get("nvidia_driver", {}).get("flavour", "open"))

    @property
    def driver_source(self) -> str:
        """vendor, distribution or grid; base where the base AMI brings the driver."""
        return "base" if "nvidia_driver" in self.provided else self.section("nvidia_driver").get("source", "vendor")

    @property
    def is_distribution_driver(self) -> bool:
        """Whether the driver is the operating system's own archive's, not of NVIDIA's repository."""
        return self.driver_source == "distribution"

    @property
    def is_grid_driver(self) -> bool:
        """Whether the driver is NVIDIA's GRID driver of AWS's bucket."""
        return self.driver_source == "grid"

    @cached_property
    def distribution(self) -> Row:
        """The archive's row of the image's system; empty where NVIDIA's repository is the source, or none is known."""
        systems = self.facts.distribution_drivers["systems"] if self.is_distribution_driver else {}
        return systems.get(self.os_name, {})  # type: ignore[no-any-return]

    def distribution_release(self, driver: str) -> Row:
        """The archive's row of a driver release; empty as `distribution`."""
        return self.distribution.get("releases", {}).get(driver, {})  # type: ignore[no-any-return]

    def releases(self, component: str) -> Row:
        """Known releases of a component, of the driver those that its source has."""
        if component == "nvidia_driver":
            vendors = self.facts.vendor_driver_releases
            packaged = self.facts.grid_drivers["releases"] if self.is_grid_driver else self.distribution.get("releases")
            return {name: self.facts.driver_releases[name] for name in packaged} if packaged else vendors
        return self.facts.releases(component)

    def section(self, component: str) -> Mapping[str, Any]:
        """The recipe's section of a component; empty if it has none."""
        return self.values.get(component, {})  # type: ignore[no-any-return]

    @cached_property
    def rules(self) -> list[tuple[tuple[str, ...], Rule]]:
        """Of the components, each with the names of those whose chosen versions it judges."""
        return [row for component in self.components.values() for row in component.rules if row[0]]

    def label(self, component: str) -> str:
        """A component's name in messages."""
        declared = self.components.get(component)
        return (declared.label if declared else "") or component


Rule = Callable[[ResolveContext, Assignment], Iterator[Conflict]]
