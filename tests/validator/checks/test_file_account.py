"""The checks of the file account, each green and red, and why they cannot judge."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from onhost import inventory as program
from tests.scripted_host import Reply, table_host
from tests.validator.checks.conftest import Judge
from tests.validator.file_account import tree
from validator.checks import file_account
from validator.file_account import Base, Inventory, PackageAccount, read
from validator.file_account.inventory import Account

ROLES = [Path(__file__).parents[3] / "roles"]
PLAN = {"roles": ["cuda"], "os": {"ssh_user": "admin"}, "planned": {"packages": {"planned": "1"}}}


@dataclass
class FakeConfig:
    """The options of a run."""

    evidence: Path | None = None

    def getoption(self, name: str) -> Any:
        """The value of an option."""
        return getattr(self, name)


@dataclass
class FakeRequest:
    """pytest's fixture `request`, as far as the checks use it."""

    config: FakeConfig


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Inventory, Inventory]:
    """The inventories of a base AMI and of a complete image."""
    folder = tmp_path_factory.mktemp("checks")
    tree.make_base(folder / "root", folder / "base-packages")
    base = tree.take(folder / "root")
    tree.build(folder / "root", folder / "packages")
    return base, tree.take(folder / "root")


def subject(base: Inventory, image: Inventory) -> file_account.Subject:
    """What the fixture `subject` gives for these inventories."""
    variables = file_account.account.plan_variables(PLAN)
    footprints, _ = file_account.account.load_footprints(ROLES, ["cuda"], variables)
    packages = file_account.account.account_packages(image, base, ["planned"], footprints.values())
    return file_account.Subject(image, Base(base, "x"), tuple(footprints.values()), packages, variables, "admin")


def test_files(trees: tuple[Inventory, Inventory], judge: Judge, tmp_path: Path) -> None:
    base, image = trees
    request = FakeRequest(FakeConfig(tmp_path))
    good = judge(file_account.test_every_file_is_explained, {}, subject=subject(base, image), request=request)
    assert (good.verdict, good.message) == ("PASS", "")
    assert good.check.observed["unexplained"] == 0  # type: ignore[index]
    extra = {
        path: replace(image.entries["/etc/hosts"], path=path)
        for path in (f"/opt/tool{number:02}" for number in range(25))
    }
    traced = replace(image, entries=image.entries | extra)
    bad = judge(file_account.test_every_file_is_explained, {}, subject=subject(base, traced), request=request)
    assert bad.verdict == "FAIL" and bad.message.startswith("25 files without an explanation:\n/opt/tool00 (new: ")
    assert bad.message.endswith("\nand 5 more\nall of them: unexplained-files.txt in the evidence")
    assert (tmp_path / file_account.EVIDENCE).read_text().count("/opt/tool") == 25


@pytest.mark.parametrize(
    ("entries", "verdict", "message"),
    [
        ("\tlinux\t/boot/vmlinuz-1 root=UUID=1 ro  console=ttyS0\n", "PASS", ""),
        (
            "linux /boot/vmlinuz-1 root=UUID=1 ro nokaslr\n",
            "FAIL",
            "1 options of boot entries without an explanation:\nnokaslr (new)",
        ),
        ("", "UNPROVEN", "no boot entry"),
    ],
)
def test_boot_entries(
    trees: tuple[Inventory, Inventory], judge: Judge, entries: str, verdict: str, message: str
) -> None:
    base, image = trees
    booted = replace(base, running=True, command_line=("root=UUID=1", "ro", "console=ttyS0"))
    judged = judge(file_account.test_every_boot_entry_is_explained, {"grep*": entries}, subject=subject(booted, image))
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


def test_packages(trees: tuple[Inventory, Inventory], judge: Judge) -> None:
    whole = subject(*trees)
    assert judge(file_account.test_every_package_is_explained, {}, subject=whole).verdict == "PASS"
    extra = replace(whole, packages=PackageAccount(frozenset(), ("htop 3 (new: nothing)",)))
    bad = judge(file_account.test_every_package_is_explained, {}, subject=extra)
    assert bad.message == "1 packages without an explanation:\nhtop 3 (new: nothing)"


@pytest.mark.parametrize(
    ("check", "change", "message"),
    [
        (
            file_account.test_every_account_is_explained,
            {"accounts": {"x": Account("x", 1001, 1001, "/home/x", "/bin/bash", "set")}},
            "account x (new: uid 1001",
        ),
        (file_account.test_every_kernel_option_is_explained, {"command_line": ("nokaslr",)}, "nokaslr (new)"),
        (
            file_account.test_every_listening_program_is_explained,
            {"listeners": (("tcp", 8000, "python3"),)},
            "python3 on tcp/8000",
        ),
        (file_account.test_every_mount_is_explained, {"mounts": (("/data", "xfs"),)}, "/data (xfs)"),
    ],
)
def test_settings(
    trees: tuple[Inventory, Inventory], judge: Judge, check: Any, change: dict[str, Any], message: str
) -> None:
    sshd = (("tcp", 22, "sshd"),)
    base, image = (replace(inventory, running=True, listeners=sshd) for inventory in trees)
    assert judge(check, {}, subject=subject(base, image)).verdict == "PASS"
    bad = judge(check, {}, subject=subject(base, replace(image, **change)))
    assert bad.verdict == "FAIL" and message in bad.message


@pytest.mark.parametrize(
    ("check", "change", "message"),
    [
        (file_account.test_every_kernel_option_is_explained, {"command_line": ("init_on_alloc=0",)}, "init_on_alloc"),
        (
            file_account.test_every_listening_program_is_explained,
            {"listeners": (("tcp", 22, "sshd"),)},
            "sshd on tcp/22",
        ),
    ],
)
def test_base_of_a_sandbox_knows_nothing_of_what_a_boot_adds(
    trees: tuple[Inventory, Inventory], judge: Judge, check: Any, change: dict[str, Any], message: str
) -> None:
    """A healthy machine of the local region failed: its base was read in a sandbox, in which nothing listens."""
    base, image = (replace(inventory, running=True) for inventory in trees)
    judged = judge(check, {}, subject=subject(base, replace(image, **change)))
    assert judged.verdict == "UNPROVEN" and "it was not booted" in judged.message and message in judged.message


def test_what_runs_is_not_compared_with_a_base_that_did_not(trees: tuple[Inventory, Inventory], judge: Judge) -> None:
    unproven = judge(file_account.test_every_mount_is_explained, {}, subject=subject(*trees))
    assert unproven.message == "the base AMI's inventory is not of a running system"


def text(root: Path) -> str:
    """The inventory of a tree as the program prints it, without compression."""
    lines: list[bytes] = []
    program.inventory(str(root), False, 0.0, set(), lambda record: lines.append(tree.line(record)))
    return b"".join(lines).decode()


def examine(table: dict[str, Reply], **others: Any) -> file_account.Subject:
    options: dict[str, Any] = {"roles_path": ROLES, "build": None, "running": False, "restarted": False} | others
    plan = PLAN | {"roles": options.pop("roles", ["cuda"])}
    from_nothing: dict[str, Reply] = {"cat */builder-boots.jsonl": (1, "")}
    return file_account.examine(table_host({**from_nothing, **table}), plan, **options)


def test_the_subject_is_taken_from_host_and_build_folder(tmp_path: Path) -> None:
    (tmp_path / "root/etc").mkdir(parents=True)
    (tmp_path / "root/etc/os-release").write_text("ID=debian\n")
    listed = text(tmp_path / "root")
    table: dict[str, Reply] = {"sha256sum*": "0 x\n", "cat /usr/share*": listed, "python3 -IS*": listed}
    found = examine(table)
    assert (found.base.source, found.image.os) == ("the image's own copy", "debian")
    assert found.image == replace(read(listed.encode()), ramdisks=found.image.ramdisks)


@pytest.mark.parametrize(
    ("table", "others", "message"),
    [
        ({"sha256sum*": (1, "")}, {}, "the image has no /usr/share/gpu-ami/base-inventory.jsonl.gz"),
        ({"sha256sum*": "0 x\n", "cat*": "junk"}, {}, "the base AMI's inventory: not an inventory"),
        ({}, {"roles": ["cuda", "acme"]}, "no meta/footprint.yml of role acme"),
    ],
)
def test_why_it_cannot_judge(table: dict[str, Reply], others: dict[str, Any], message: str) -> None:
    with pytest.raises(pytest.skip.Exception, match=message):
        examine(table, **others)


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((127, "", "sh: python3: not found"), "the image has no python3"),
        ((1, "", "Traceback\nKeyError: 1"), "the inventory could not be taken: KeyError: 1"),
        ('{"schema":"other"}\n', "the inventory could not be read"),
    ],
)
def test_why_there_is_no_inventory(tmp_path: Path, reply: Reply, message: str) -> None:
    base = text(tmp_path)
    with pytest.raises(pytest.skip.Exception, match=message):
        examine({"sha256sum*": "0 x\n", "cat*": base, "python3 -IS*": reply})
