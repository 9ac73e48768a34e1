"""Each kind of explanation, each with the case beside it that it does not cover, and the text of a finding."""

from __future__ import annotations

from dataclasses import replace

from tests.validator.file_account.entries import file, findings, rule, system
from validator.file_account import BuilderBoot, Entry, Finding, Package, RoleTime, explain


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
        "/etc/hosts changed: content (1 bytes, was 1)"
    ]
    assert findings(system(file("/etc/hosts")), system(), settings) == [
        "/etc/hosts new: no package, role or rule has this file"
    ]


def test_later_builders_rewrite_at_their_first_boot_what_the_first_one_wrote() -> None:
    """An image that was built on a layer image: its builder wrote its own network settings, before any role ran."""
    settings = rule("/etc/hosts", when="first_boot")
    base = system(file("/etc/hosts", changed=2000), running=True, boot_time=1000.0)
    image = system(file("/etc/hosts", sha256="2" * 64, changed=5000))
    boots = (BuilderBoot(4990.0, 5010.0),)
    assert findings(image, base, settings, boots=boots) == []
    assert findings(image, system(), settings, boots=boots) == []
    unexplained = "content (1 bytes, was 1), written by a later builder's first boot"
    assert findings(image, base, boots=boots) == [f"/etc/hosts changed: {unexplained}"]
    after_a_role = (BuilderBoot(4000.0, 4999.0),)
    assert findings(image, base, settings, boots=after_a_role) == ["/etc/hosts changed: content (1 bytes, was 1)"]
