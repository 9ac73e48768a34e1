"""What a rule covers, each with the case beside it that it does not cover."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.validator.file_account.entries import file, findings, rule, system
from validator.file_account import Entry, Footprint, Written, WrittenFile, load_footprint


def test_a_role_declares_content_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "role/meta/footprint.yml"
    path.parent.mkdir(parents=True)
    path.write_text('files: [{path: /etc/x.conf, mode: "0640", owner: "root:adm", content: "a\\n"}]')
    footprints: list[Footprint] = [load_footprint(path, "role")]
    digest = footprints[0].files[0].sha256[0]
    good = file("/etc/x.conf", mode=0o640, group="adm", sha256=digest)
    assert findings(system(good), system(), footprints=footprints) == []
    for entry, what in (
        (replace(good, mode=0o644), "mode 0644, expected 0640 (role role)"),
        (replace(good, group="root"), "owner root:root, expected root:adm (role role)"),
        (replace(good, sha256="3" * 64), "content is not the expected (role role)"),
    ):
        assert findings(system(entry), system(), footprints=footprints) == [f"/etc/x.conf new: {what}"]


def test_a_rule_does_not_cover_setuid_and_capabilities() -> None:
    cache = rule("/var/cache/x/*")
    assert findings(system(file("/var/cache/x/a")), system(), cache) == []
    (text,) = findings(system(file("/var/cache/x/a", mode=0o4755)), system(), cache)
    assert "setuid" in text
    (text,) = findings(system(file("/var/cache/x/a", attributes={"security.capability": "1"})), system(), cache)
    assert "file capabilities" in text


def test_bytecode_must_have_its_source() -> None:
    source = file("/usr/lib/python3/a.py", modified=7, size=3, packages=("x",), differs=())
    base = system(source)
    compiled = rule("/usr/lib/python3/__pycache__/*.pyc", check="bytecode")
    good = file("/usr/lib/python3/__pycache__/a.cpython-311.pyc", bytecode=(0, 7, 3))
    folder = Entry("/usr/lib/python3/__pycache__", "d", 0o755, "root", "root")
    assert findings(system(source, good, folder), base, compiled) == []
    (text,) = findings(system(source, replace(good, bytecode=(0, 8, 3)), folder), base, compiled)[1:]
    assert "compiled from another /usr/lib/python3/a.py" in text


@pytest.mark.parametrize(
    ("target", "explained"),
    [("/usr/bin/gcc-12", True), ("/opt/gcc/bin/gcc", False), ("cc", False), ("/nowhere", False)],
)
def test_alternatives_lead_to_what_is_explained(target: str, explained: bool) -> None:
    gcc = file("/usr/bin/gcc-12", packages=("gcc",), differs=())
    link = Entry("/etc/alternatives/cc", "l", 0o777, "root", "root", target=target)
    alternatives = rule("/etc/alternatives/*", kinds=("l",), check="link")
    found = findings(system(gcc, link, file("/opt/gcc/bin/gcc")), system(gcc), alternatives)
    assert ("/etc/alternatives/cc" not in " ".join(found)) is explained


def test_links_of_directories_are_followed() -> None:
    """As /etc/nvidia/nvidia-535.1, a packaged link to /etc/nvidia/current, in Debian's driver packages."""
    real = file("/etc/nvidia/current/load.conf", packages=("n",), differs=())
    folder = Entry("/etc/nvidia/current", "d", 0o755, "root", "root", packages=("n",))
    by_version = Entry("/etc/nvidia/535", "l", 0o777, "root", "root", target="current", packages=("n",))
    link = Entry("/etc/alternatives/load", "l", 0o777, "root", "root", target="/etc/nvidia/535/load.conf")
    back = replace(link, path="/etc/alternatives/back", target="/etc/nvidia/535/../current/load.conf")
    circle = replace(link, path="/etc/alternatives/circle", target="circle/x")
    base = system(real, folder, by_version)
    found = findings(
        system(real, folder, by_version, link, back, circle),
        base,
        rule("/etc/alternatives/*", kinds=("l",), check="link"),
    )
    assert [row.split()[0] for row in found] == ["/etc/alternatives/circle"]


def test_installed_modules_are_those_that_dkms_has_built() -> None:
    """A module of another build may load, and be of another version."""
    module = file("/usr/lib/modules/6.1/updates/dkms/nvidia.ko")
    built = file("/var/lib/dkms/nvidia/580/6.1/x86_64/module/nvidia.ko")
    rules = rule("/usr/lib/modules/*/updates/dkms/*.ko", check="module"), rule("/var/lib/dkms/*/*/*/*/module/*.ko")
    assert findings(system(module, built), system(), *rules) == []
    assert findings(system(replace(module, sha256="2" * 64), built), system(), *rules) == [
        f"{module.path} new: content is not what DKMS has built (rule rule)"
    ]
    assert findings(system(module), system(), *rules) == [
        f"{module.path} new: DKMS has built no such module (rule rule)"
    ]


def test_a_role_s_settings_are_as_it_wrote_them() -> None:
    """A line that was added to a drop-in or a module option has the role's path, owner and mode."""
    drop_in = file("/etc/modprobe.d/nvidia.conf")
    declared = [Footprint("driver", (rule("/etc/modprobe.d/nvidia.conf", check="written", role="driver"),))]
    wrote = {drop_in.path: WrittenFile("driver", "a")}

    def found(files: dict[str, WrittenFile], now: str, *entries: Entry, is_whole: bool = True) -> list[str]:
        written = Written(files, {drop_in.path: now}, is_whole)
        return findings(system(*entries), system(), footprints=declared, written=written)

    assert found(wrote, "a", drop_in) == []
    assert found(wrote, "b", drop_in) == [f"{drop_in.path} new: content is not what role driver wrote (role driver)"]
    assert found({}, "a", drop_in) == [f"{drop_in.path} new: no role of the build wrote it (role driver)"]
    assert found({}, "a", drop_in, is_whole=False) == []
    assert found(wrote, "a") == [f"{drop_in.path} removed: role driver wrote it"]
    assert findings(system(drop_in), system(), footprints=declared) == []


def test_what_a_role_removes_again_is_not_missing() -> None:
    wrote = {"/var/tmp/x.conf": WrittenFile("efa", "a")}
    row = rule("/var/tmp/x.conf", check="written", role="efa")
    declared = [Footprint("efa", (row,)), Footprint("hygiene", removed=("/var/tmp/**",))]
    assert findings(system(), system(), footprints=declared, written=Written(wrote, {}, is_whole=True)) == []


def test_setuid_programs_of_packages_are_known_by_name() -> None:
    program = file("/usr/bin/nvidia-modprobe", mode=0o4755, packages=("x",), differs=())
    assert findings(system(program), system()) == []
    for wrong in (
        replace(program, path="/usr/bin/other"), replace(program, mode=0o6755), replace(program, packages=()),
        replace(program, differs=("content",)), replace(program, group="adm"),
    ):  # fmt: skip
        assert len(findings(system(wrong), system())) == 1, wrong


def test_an_access_control_list_is_not_what_a_rule_s_program_writes() -> None:
    """One that lets another user read the passwords leaves mode and owner as they were."""
    before = file("/etc/shadow", mode=0o640)
    opened = replace(before, attributes={"system.posix_acl_access": "x"})
    allowed = rule("/etc/shadow", check="kept")
    assert findings(system(replace(before, sha256="2" * 64)), system(before), allowed) == []
    assert findings(system(opened), system(before), allowed) == [
        "/etc/shadow changed: attributes system.posix_acl_access (rule rule)"
    ]


def test_a_role_s_declared_setuid_and_capable_programs_are_explained() -> None:
    """The check of setuid programs and the account read one declaration."""
    declared = Footprint("monitor", setuid=("/usr/bin/asks",), capabilities=("/usr/bin/listens",))
    asks = file("/usr/bin/asks", mode=0o4755, packages=("x",), differs=())
    listens = file("/usr/bin/listens", packages=("x",), differs=(), attributes={"security.capability": "1"})
    assert len(findings(system(asks, listens), system())) == 2
    assert findings(system(asks, listens), system(), footprints=[declared]) == []
    own = rule("/usr/bin/*")
    without_package = (replace(asks, packages=()), replace(listens, packages=()))
    assert len(findings(system(*without_package), system(), own)) == 2
    assert findings(system(*without_package), system(), own, footprints=[declared]) == []
    for wrong in (
        replace(asks, path="/usr/bin/other"), replace(asks, mode=0o4777), replace(asks, owner="adm"),
        replace(listens, path="/usr/bin/other"), replace(listens, mode=0o4755),
    ):  # fmt: skip
        assert len(findings(system(wrong), system(), footprints=[declared])) == 1, wrong
