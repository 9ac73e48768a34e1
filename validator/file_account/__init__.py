"""The account of every file of an image: what the base AMI, packages, roles and the system itself explain.

inventory       what onhost/inventory.py lists of a system; differences from the base AMI's, the root over all entries
grammar         rules.yml and the roles' footprint.yml
explain         each entry's explanation, and what has none
rule_problems   an entry compared with a rule of its path
recorded        lines of files that programs write, compared with the base AMI's
initial_ramdisk an initial ramdisk compared with the image's files
packages        new and changed packages: planned, or required by planned ones
collect         takes the inventory of a host, and finds the base AMI's
settings        accounts, kernel options, listening programs and mounts
"""

from pathlib import Path
from types import MappingProxyType

from validator.file_account.collect import (
    KEPT_FILE,
    Base,
    NotTaken,
    find_base,
    role_times,
    take,
    take_over,
    take_written,
    written_files,
)
from validator.file_account.explain import (
    Account,
    BuilderBoot,
    Finding,
    RoleTime,
    explain,
    widest,
)
from validator.file_account.grammar import (
    Footprint,
    InvalidRules,
    Rule,
    Variables,
    load_footprint,
    load_footprints,
    load_rules,
)
from validator.file_account.initial_ramdisk import InvalidRamdisk, read_ramdisks
from validator.file_account.initial_ramdisk import unexplained as unexplained_in_ramdisk
from validator.file_account.inventory import (
    Entry,
    InvalidInventory,
    Inventory,
    Package,
    differences,
    merkle_leaf,
    merkle_root,
    read,
)
from validator.file_account.packages import PackageAccount, account_packages, plan_variables, planned_names
from validator.file_account.rule_problems import Written, WrittenFile
from validator.file_account.settings import (
    unexplained_accounts,
    unexplained_boot_options,
    unexplained_kernel_options,
    unexplained_listeners,
    unexplained_mounts,
)


def load_system_rules(variables: Variables = MappingProxyType({})) -> list[Rule]:
    """The rules of rules.yml."""
    return load_rules(Path(__file__).with_name("rules.yml"), variables)


__all__ = [
    "KEPT_FILE",
    "Account",
    "Base",
    "BuilderBoot",
    "Entry",
    "Finding",
    "Footprint",
    "InvalidInventory",
    "InvalidRamdisk",
    "InvalidRules",
    "Inventory",
    "NotTaken",
    "Package",
    "PackageAccount",
    "RoleTime",
    "Rule",
    "Variables",
    "Written",
    "WrittenFile",
    "account_packages",
    "differences",
    "explain",
    "find_base",
    "load_footprint",
    "load_footprints",
    "load_rules",
    "load_system_rules",
    "merkle_leaf",
    "merkle_root",
    "plan_variables",
    "planned_names",
    "read",
    "read_ramdisks",
    "role_times",
    "take",
    "take_over",
    "take_written",
    "unexplained_accounts",
    "unexplained_boot_options",
    "unexplained_in_ramdisk",
    "unexplained_kernel_options",
    "unexplained_listeners",
    "unexplained_mounts",
    "widest",
    "written_files",
]
