"""Units that a boot starts, rules of rsyslog, and by what other shippers take kernel lines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onhost import observation, shippers
from tests.observe import foreign_images as foreign


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "a.service is not enabled"),
        ({"etc/systemd/system/multi-user.target.wants/a.service": "/etc/systemd/system/a.service"}, ""),
        ({"usr/lib/systemd/system/timers.target.wants/a.timer": "../a.timer"}, ""),
        ({"etc/systemd/system/syslog.service": "/etc/systemd/system/a.service"}, ""),
        (
            {
                "etc/systemd/system/multi-user.target.wants/a.service": "/etc/systemd/system/a.service",
                "etc/systemd/system/a.service": "/dev/null",
            },
            "a.service is masked",
        ),
    ],
)
def test_units_that_a_boot_starts(files: dict[str, str], reason: str, tmp_path: Path) -> None:
    image = foreign.Image(tmp_path, "debian12")
    if "etc/systemd/system/a.service" not in files:
        image.write("etc/systemd/system/a.service", "[Service]\nExecStart=/bin/true\n")
    for path, target in files.items():
        image.link(path, target)
    assert shippers.Units(observation.Tree(str(tmp_path))).why_not("a.service") == reason


def test_a_unit_that_an_enabled_one_wants_is_started(tmp_path: Path) -> None:
    image = foreign.Image(tmp_path, "debian12")
    image.unit("gpu.target", "[Unit]", "Wants=a.service")
    image.unit("a.service", "ExecStart=/bin/true", enabled=False)
    assert shippers.Units(observation.Tree(str(tmp_path))).why_not("a.service") == ""


# Lines of rsyslog.conf in Debian 12, Ubuntu 24.04 and Amazon Linux 2023, and the form of rsyslog's own documentation.
@pytest.mark.parametrize(
    ("line", "file"),
    [
        ("kern.*\t\t\t\t-/var/log/kern.log", "/var/log/kern.log"),
        ("*.*;auth,authpriv.none\t\t-/var/log/syslog", "/var/log/syslog"),
        ("*.info;mail.none;authpriv.none;cron.none                /var/log/messages", "/var/log/messages"),
        ('kern.* action(type="omfile" file="/var/log/kern.log")', "/var/log/kern.log"),
        ("*.*;kern.none /var/log/other", None),
        ("auth,authpriv.*\t\t\t/var/log/auth.log", None),
        ("#kern.* /var/log/kern.log", None),
        ("*.* @@logs.example.com:514", None),
    ],
)
def test_rules_of_rsyslog(line: str, file: str | None) -> None:
    assert shippers.syslog_file(line) == file


@pytest.mark.parametrize(
    ("name", "text", "source"),
    [
        ("Fluent Bit", "[INPUT]\n    Name kmsg\n    Tag kernel\n", "/dev/kmsg"),
        ("Fluent Bit", "[INPUT]\n    Name systemd\n    Tag *\n", "journal"),
        ("Fluent Bit", "[INPUT]\n    Name systemd\n    Systemd_Filter _SYSTEMD_UNIT=kubelet.service\n", ""),
        ("Fluent Bit", "[INPUT]\n    Name tail\n    Path /var/log/messages\n", "/var/log/messages"),
        ("Fluent Bit", "[INPUT]\n    Name tail\n    Path /var/log/containers/*.log\n", ""),
        ("Fluent Bit", "pipeline:\n  inputs:\n    - name: systemd\n      tag: host\n    - name: cpu\n", "journal"),
        ("Vector", '[sources.kernel]\ntype = "journald"\n[sinks.out]\ntype = "aws_cloudwatch_logs"\n', "journal"),
        ("Vector", '[sources.docker]\ntype = "journald"\ninclude_units = ["docker"]\n', ""),
        ("Fluentd", "<source>\n  @type systemd\n  tag kernel\n</source>\n", "journal"),
        ("OpenTelemetry Collector", "receivers:\n  journald:\n    directory: /var/log/journal\n", "journal"),
        ("OpenTelemetry Collector", "receivers:\n  journald:\n    units: [ssh]\n", ""),
        ("Promtail", "scrape_configs:\n  - job_name: journal\n    journal:\n      max_age: 12h\n", "journal"),
        ("Alloy", 'loki.source.journal "read" {\n  forward_to = []\n}\n', "journal"),
        ("awslogs", "[/var/log/messages]\nfile = /var/log/messages\nlog_group_name = /var/log/messages\n",
         "/var/log/messages"),
    ],
)  # fmt: skip
def test_shippers_take_kernel_lines(name: str, text: str, source: str) -> None:
    (sections,) = [row[3] for row in shippers.SHIPPERS if row[0] == name]
    assert shippers.kernel_input(re.split(sections, text)) == source


@pytest.mark.parametrize(
    ("lines", "code", "again"),
    [
        (("Restart=always",), "dmesg | grep Xid", True),
        (("Restart=always",), "dmesg | grep Xid; exec sleep infinity", False),
        (("Type=oneshot",), "dmesg | grep Xid", False),
    ],
)
def test_a_unit_that_is_restarted_runs_again(lines: tuple[str, ...], code: str, again: bool, tmp_path: Path) -> None:
    image = foreign.Image(tmp_path, "debian12")
    image.unit("a.service", *lines)
    tree = observation.Tree(str(tmp_path))
    assert shippers.is_repeated(tree, "/etc/systemd/system/a.service", code) is again
