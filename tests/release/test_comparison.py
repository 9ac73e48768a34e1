"""How two images differ, section by section."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpu_ami.release import comparison
from gpu_ami.release.comparison import Comparison, Row
from gpu_ami.release.image_description import ImageDescription
from gpu_ami.report import HostReport, Stage
from tests.release import examples
from tests.report.examples import WAIVER, a_check, a_host
from validator.file_account import Inventory, read

PLAN: dict[str, Any] = {
    "image": "demo",
    "digest": "sha256:1",
    "nvidia_driver": {"version": "580.1", "packages": {"nvidia-utils": "580.1"}},
    "telemetry": {"interval_s": 10, "measurements": ["power_draw"], "log_stream": "{instance_id}"},
    "tuning": {"sysctl": {"net.core.rmem_max": "1"}},
    "instance_types": [],
}


def taken(*entries: dict[str, Any], **header: Any) -> Inventory:
    """An inventory with these entries; header: further content of its first line."""
    lines = gzip.decompress(examples.inventory(*entries)).decode().splitlines()
    first = json.loads(lines[0]) | header
    return read("\n".join([json.dumps(first), *lines[1:]]).encode())


def file(path: str, digest: str = "ab", **changes: Any) -> dict[str, Any]:
    entry = {"p": path, "t": "f", "m": 0o644, "u": 0, "g": 0, "a": 1, "c": 2, "s": 7, "h": digest * 32}
    return entry | changes


def link(path: str, target: str) -> dict[str, Any]:
    return {"p": path, "t": "l", "m": 0o777, "u": 0, "g": 0, "a": 1, "c": 2, "l": target}


def rows(compared: Comparison, name: str) -> list[Row]:
    (section,) = [section for section in compared.sections if section.name == name]
    assert not section.missing
    return list(section.rows)


def of_plans(**changes: Any) -> Comparison:
    after = json.loads(json.dumps(PLAN)) | changes
    return comparison.compare(ImageDescription("a", plan=PLAN), ImageDescription("b", plan=after))


def of_files(before: Inventory, after: Inventory) -> Comparison:
    return comparison.compare(
        ImageDescription("a", plan=PLAN, inventory=before), ImageDescription("b", plan=PLAN, inventory=after)
    )


def test_versions_and_the_rest_of_the_plan_are_apart() -> None:
    driver = {"version": "580.2", "packages": {"nvidia-utils": "580.2"}}
    compared = of_plans(nvidia_driver=driver, digest="sha256:2", cuda={"version": "13.0"})
    assert rows(compared, "versions") == [Row("nvidia_driver.version", "580.1", "580.2")]
    assert rows(compared, "plan") == [
        Row("nvidia_driver.packages.nvidia-utils", "580.1", "580.2"),
        Row("cuda", "", "version: 13.0"),
    ]


def test_metrics_streams_and_kernel_settings_of_the_plan() -> None:
    telemetry = PLAN["telemetry"] | {"measurements": ["power_draw", "temperature_gpu"], "interval_s": 60}
    compared = of_plans(telemetry=telemetry, tuning={"sysctl": {"net.core.rmem_max": "2"}})
    assert rows(compared, "metrics and streams") == [
        Row("telemetry.interval_s", "10", "60"),
        Row("telemetry.measurements", "", "temperature_gpu"),
    ]
    assert rows(compared, "kernel settings") == [Row("tuning.sysctl.net.core.rmem_max", "1", "2")]


def test_files_are_listed_by_component() -> None:
    before = taken(file("/usr/bin/a", o=["pkg-a"]), file("/usr/bin/gone", o=["pkg-a"]), file("/etc/own.conf"))
    after = taken(
        file("/usr/bin/a", "cd", o=["pkg-a"]), file("/etc/own.conf", m=0o666), file("/usr/bin/new", o=["pkg-b"])
    )
    assert rows(of_files(before, after), "files") == [
        Row("no package: /etc/own.conf", f"7 bytes {'ab' * 6} 0644 root:root", f"7 bytes {'ab' * 6} 0666 root:root"),
        Row("package pkg-a: /usr/bin/a", f"7 bytes {'ab' * 6} 0644 root:root", f"7 bytes {'cd' * 6} 0644 root:root"),
        Row("package pkg-a: /usr/bin/gone", f"7 bytes {'ab' * 6} 0644 root:root", ""),
        Row("package pkg-b: /usr/bin/new", "", f"7 bytes {'ab' * 6} 0644 root:root"),
    ]


def test_times_of_files_do_not_count() -> None:
    compared = of_files(taken(file("/usr/bin/a")), taken(file("/usr/bin/a", a=9, c=9)))
    assert compared.is_empty


def test_units_with_what_starts_them() -> None:
    unit, wants = "/usr/lib/systemd/system/x.service", "/etc/systemd/system/multi-user.target.wants/x.service"
    before = taken(file(unit), file("/usr/lib/systemd/system/y.service"))
    after = taken(
        file(unit),
        link(wants, "/usr/lib/systemd/system/x.service"),
        file("/etc/systemd/system/x.service.d/limits.conf", "cd"),
        link("/etc/systemd/system/y.service", "/dev/null"),
        file("/usr/lib/systemd/system/y.service"),
    )
    assert rows(of_files(before, after), "units") == [
        Row("x.service", "ab" * 6, f"{'ab' * 6}, drop-in limits.conf {'cd' * 6}, started by multi-user.target"),
        Row("y.service", "ab" * 6, f"{'ab' * 6}, masked"),
    ]


def test_accounts_and_groups() -> None:
    root = [0, 0, "/root", "/bin/sh", "locked"]
    before = taken(accounts={"root": root}, groups={"root": [0, []], "sudo": [27, []]})
    after = taken(
        accounts={"root": [*root[:4], "set"], "eve": [7, 7, "/", "/bin/sh", "set"]},
        groups={"root": [0, []], "sudo": [27, ["eve"]]},
    )
    assert rows(of_files(before, after), "accounts") == [
        Row("account eve", "", "uid 7, /bin/sh, password set"),
        Row("account root", "uid 0, /bin/sh, password locked", "uid 0, /bin/sh, password set"),
        Row("group sudo", "id 27", "id 27, eve"),
    ]


def test_packages() -> None:
    before = read(examples.inventory(packages=(("a", "1"), ("gone", "1"))))
    after = read(examples.inventory(packages=(("a", "2"), ("new", "1"))))
    assert rows(of_files(before, after), "packages") == [Row("a", "1", "2"), Row("gone", "1", ""), Row("new", "", "1")]


def test_kernel_settings_of_files_and_command_line() -> None:
    sysctl = "/etc/sysctl.d/60-gpu-ami.conf"
    before = taken(file(sysctl), command_line=["ro"])
    after = taken(file(sysctl, "cd"), command_line=["ro", "iommu=off"])
    assert rows(of_files(before, after), "kernel settings") == [
        Row(sysctl, f"7 bytes {'ab' * 6} 0644 root:root", f"7 bytes {'cd' * 6} 0644 root:root"),
        Row("kernel command line", "ro", "ro iommu=off"),
    ]


def test_checks_and_times_of_the_reports() -> None:
    def described(name: str, host: HostReport, seconds: float) -> ImageDescription:
        report = examples.certified_report()
        stages = (Stage(f"prove {report.image}", 0, seconds, "done"),)
        return ImageDescription(name, plan=PLAN, report=replace(report, hosts=(host,), stages=stages))

    before = described("a", a_host("g5.12xlarge", a_check("hygiene")), 60.0)
    after = described(
        "b", replace(a_host("g5.12xlarge", a_check("hygiene", "FAIL", waived=WAIVER)), boot={"ssh": 25.5}), 60.4
    )
    compared = comparison.compare(before, after)
    assert rows(compared, "checks") == [Row("g5.12xlarge: hygiene::test_it", "PASS", "FAIL (waived)")]
    assert rows(compared, "times") == [Row("g5.12xlarge: boot to ssh", "20.0 s", "25.5 s")]


def test_what_is_not_at_hand_is_said() -> None:
    tagged = ImageDescription(
        "ami-1", tags={"nvidia_version": "580.1", "gpu-ami:recipe": "demo"}, missing=["tags alone"]
    )
    compared = comparison.compare(tagged, ImageDescription("b", plan=PLAN | {"nvidia_driver": {"version": "580.2"}}))
    assert rows(compared, "versions") == [Row("nvidia_driver.version", "580.1", "580.2")]
    missing = {section.name for section in compared.sections if section.missing}
    assert missing == {
        "plan",
        "packages",
        "files",
        "units",
        "accounts",
        "kernel settings",
        "metrics and streams",
        "checks",
        "times",
    }
    assert compared.remarks == ("demo (ami-1): tags alone",)


def test_an_image_is_the_same_as_itself(tmp_path: Path) -> None:
    report = examples.write_folder(tmp_path)
    described = ImageDescription("a", plan=PLAN, report=report, inventory=read(examples.inventory(examples.SMI)))
    assert comparison.compare(described, described).is_empty


def test_names_of_an_image_are_text_in_markdown() -> None:
    """A package's name or a unit's file is the image's: release notes are a page of a web site."""
    row = Row("<img src=x> ](x)\n# heading", "a|b", "")
    shown = comparison.markdown(Comparison("<b>", "after\n# x", (comparison.Section("packages", (row,)),)))
    assert "<" not in shown and "](x)" not in shown and "\n# x" not in shown and "\n# heading" not in shown
    assert "a\\|b" in shown
