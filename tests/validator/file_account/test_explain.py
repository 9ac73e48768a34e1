"""Each kind of explanation, each with the case beside it that it does not cover, and the text of a finding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from validator.file_account import (
    Entry,
    Finding,
    Footprint,
    Inventory,
    Package,
    RoleTime,
    Rule,
    explain,
    load_footprint,
)
from validator.file_account.grammar import expression, re

DEBIAN = "debian"


def file(path: str, **values: object) -> Entry:
    return replace(Entry(path, "f", 0o644, "root", "root", sha256="1" * 64, size=1), **values)  # type: ignore[arg-type]


def system(*entries: Entry, **values: object) -> Inventory:
    return Inventory({entry.path: entry for entry in entries}, os=DEBIAN, **values)  # type: ignore[arg-type]


def rule(path: str, **values: object) -> Rule:
    return Rule("rule", (path,), expression=re.compile(expression(path), re.DOTALL), **values)  # type: ignore[arg-type]


def findings(image: Inventory, base: Inventory, *rules: Rule, **options: object) -> list[str]:
    account = explain(image, base, rules, **options)  # type: ignore[arg-type]
    return [f"{finding.path} {finding.change}: {finding.what}" for finding in account.findings]


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (file("/a", mode=0o4755), "mode 4755, base 0644"),
        (file("/a", owner="admin"), "owner admin:root, base root:root"),
        (file("/a", sha256="2" * 64, size=9), "content (9 bytes, base 1)"),
        (file("/a", attributes={"security.capability": "01"}), "attributes security.capability"),
        (Entry("/a", "l", 0o777, "root", "root", target="/b"), "a link, the base AMI has a file"),
        (file("/a", modified=5, changed=9), ""),
    ],
)
def test_changed_base_files(now: Entry, what: str) -> None:
    assert findings(system(now), system(file("/a"))) == ([f"/a changed: {what}"] if what else [])


def test_packaged_files() -> None:
    package = {"packages": ("x",), "differs": ()}
    entries = [
        file("/usr/bin/x", mode=0o755, **package),
        file("/usr/bin/setuid", mode=0o4755, **package),
        file("/usr/bin/other", packages=("x",), differs=("content",)),
        file("/usr/bin/unrecorded", packages=("x",)),
    ]
    found = findings(system(*entries, packages={"x": Package("x", "1")}), system(), changed_packages=frozenset({"x"}))
    assert [text.split(":")[0] for text in found] == [
        "/usr/bin/other new", "/usr/bin/setuid new", "/usr/bin/unrecorded new",
    ]  # fmt: skip


def test_a_mode_that_changed_on_a_file_of_an_unchanged_package() -> None:
    before = file("/usr/bin/sudo", mode=0o4755, packages=("sudo",), differs=())
    assert findings(system(replace(before, mode=0o755)), system(before)) == [
        "/usr/bin/sudo changed: mode 0755, base 4755 (package sudo)"
    ]


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


def test_rules_of_a_booted_machine_do_not_count_on_its_files() -> None:
    booted = rule("/etc/ssh/ssh_host_*", when="booted")
    key = file("/etc/ssh/ssh_host_rsa_key", mode=0o600)
    assert findings(system(key), system(), booted) == [
        "/etc/ssh/ssh_host_rsa_key new: no package, role or rule has this file"
    ]
    assert findings(system(key, running=True), system(), booted) == []


def test_files_of_the_builders_first_boot_need_a_rule_or_are_removed() -> None:
    base = system(
        file("/etc/sudoers.d/90-build", changed=2000), file("/etc/old", changed=10), running=True, boot_time=1000.0
    )
    assert findings(system(file("/etc/old")), base) == []
    assert findings(system(file("/etc/old"), file("/etc/sudoers.d/90-build")), base) == [
        "/etc/sudoers.d/90-build new: written by the builder's first boot"
    ]


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


def test_removed_base_files() -> None:
    base = system(
        file("/etc/a", packages=("a",)), file("/etc/b"), file("/var/lib/apt/lists/x"), packages={"a": Package("a", "1")}
    )
    removable = rule("/var/lib/apt/lists/*", removed=True)
    assert findings(system(packages=base.packages), base, removable) == [
        "/etc/a removed: the base AMI's file of package a",
        "/etc/b removed: the base AMI's file",
    ]
    assert findings(system(file("/etc/b")), base, removable) == []  # package a left with its files


def test_missing_packaged_files() -> None:
    missing = {"/usr/bin/x": ("x",), "/usr/share/doc/x/README": ("x",), "/usr/bin/before": ("x",)}
    base = system(missing={"/usr/bin/before": ("x",)})
    assert findings(system(missing=missing), base) == ["/usr/bin/x missing: package x has it"]


def test_directories_go_with_what_they_hold() -> None:
    folder = Entry("/etc/x.d", "d", 0o755, "root", "root")
    conf = rule("/etc/x.d/*.conf")
    assert findings(system(folder, file("/etc/x.d/a.conf")), system(), conf) == []
    assert findings(system(folder), system(), conf) == ["/etc/x.d new: no package, role or rule has this directory"]
    assert findings(system(replace(folder, mode=0o777), file("/etc/x.d/a.conf")), system(), conf) == [
        "/etc/x.d new: mode 0777, owner root:root, expected root:root 0755"
    ]


def test_the_text_of_a_finding_names_time_and_role() -> None:
    image = system(file("/opt/a\n\udcff", modified=100, changed=1700000000))
    times = [RoleTime("cuda", 1699999000.0, 1699999990.0), RoleTime("efa", 1699999995.0, 1700000100.0)]
    (finding,) = explain(image, system(), [], role_times=times).findings
    assert finding.text() == (
        r"/opt/a\n\xff (new: no package, role or rule has this file, changed 2023-11-14T22:13:20Z, during efa)"
    )
    assert Finding("/a", "removed", "x").text() == "/a (removed: x)"


def test_what_the_builders_mounts_hid_is_the_base_amis_if_it_is_older() -> None:
    base = system(mounted=frozenset({"/run"}), taken=1000.0)
    assert findings(system(file("/run/lock", changed=10)), base) == []
    assert findings(system(file("/run/lock", changed=2000)), base) == [
        "/run/lock new: no package, role or rule has this file"
    ]


def test_what_the_images_mounts_hide_is_not_removed() -> None:
    base = system(file("/proc/a"), Entry("/proc", "d", 0o755, "root", "root"))
    assert findings(system(mounted=frozenset({"/proc"})), base) == []


def test_rules_of_the_first_boot_are_for_what_no_role_changed() -> None:
    settings = rule("/etc/hosts", when="first_boot")
    base = system(file("/etc/hosts", changed=2000), running=True, boot_time=1000.0)
    assert findings(system(file("/etc/hosts")), base, settings) == []
    assert findings(system(file("/etc/hosts", sha256="2" * 64)), base, settings) == [
        "/etc/hosts changed: content (1 bytes, base 1)"
    ]
    assert findings(system(file("/etc/hosts")), system(), settings) == [
        "/etc/hosts new: no package, role or rule has this file"
    ]
