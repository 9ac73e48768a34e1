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


# Forms of rsyslog.com/doc/configuration/filters.html.
@pytest.mark.parametrize(
    ("text", "files"),
    [
        (':msg, contains, "NVRM: Xid" -/var/log/xid.log\n& stop', ["/var/log/xid.log"]),
        (':msg,regex,"NVRM.*Xid" /var/log/xid.log', ["/var/log/xid.log"]),
        (':programname, isequal, "kernel" action(type="omfile" file="/var/log/k.log")', ["/var/log/k.log"]),
        ("if $msg contains 'Xid' then /var/log/xid.log", ["/var/log/xid.log"]),
        (
            'if ($syslogfacility-text == \'kern\') then {\n  action(type="omfile" file="/var/log/k.log")\n}',
            ["/var/log/k.log"],
        ),
        (':programname, isequal, "sshd" /var/log/ssh.log', []),
        ('#:msg, contains, "NVRM: Xid" /var/log/xid.log', []),
        (':msg, contains, "NVRM: Xid" stop', []),
    ],
)
def test_filters_of_rsyslog(text: str, files: list[str], tmp_path: Path) -> None:
    image = foreign.Image(tmp_path, "ubuntu2204")
    image.write("usr/sbin/rsyslogd", "")
    image.enable("rsyslog.service")
    image.write("etc/rsyslog.d/10-xid.conf", text + "\n")
    tree = observation.Tree(str(tmp_path))
    rows = shippers.syslog_files(tree, shippers.Units(tree))
    assert rows == [{"file": file, "rule": "/etc/rsyslog.d/10-xid.conf", "off": ""} for file in files]


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


_SEEK = "#!/usr/bin/python3\nimport time\nwith open('/var/log/kern.log') as f:\n    f.seek(0, 2)\n    while True:\n"
_JOURNAL = (
    "#!/usr/bin/python3\nfrom systemd import journal\n"
    "reader = journal.Reader()\nreader.add_match(_TRANSPORT='kernel')\n"
)


# Forms in which teams write what looks for Xids: (script, how it reads, files of rsyslog that it reads).
@pytest.mark.parametrize(
    ("script", "how", "reads"),
    [
        ("tail -F -n0 /var/log/kern.log | grep 'NVRM: Xid'", shippers.FOLLOWS, ["/var/log/kern.log"]),
        ('LOG=/var/log/kern.log\ntail -n 0 -F "${LOG}" | grep Xid', shippers.FOLLOWS, ["/var/log/kern.log"]),
        (
            f"{_SEEK}        if 'Xid' in f.readline(): pass\n        time.sleep(1)",
            shippers.FOLLOWS,
            ["/var/log/kern.log"],
        ),
        (
            "#!/usr/bin/python3\nfor line in open('/var/log/syslog'): 'Xid' in line",
            shippers.SNAPSHOT,
            ["/var/log/syslog"],
        ),
        ("grep 'NVRM: Xid' /var/log/kern.log", shippers.SNAPSHOT, ["/var/log/kern.log"]),
        ("journalctl \\\n  --dmesg \\\n  --follow | grep Xid", shippers.FOLLOWS, []),
        (
            f"{_JOURNAL}while True:\n    reader.wait()\n    for entry in reader: 'Xid' in entry['MESSAGE']",
            shippers.FOLLOWS,
            [],
        ),
        (f"{_JOURNAL}for entry in reader: 'Xid' in entry['MESSAGE']", shippers.SNAPSHOT, []),
        ("dmesg | grep Xid", shippers.SNAPSHOT, []),
    ],
)
def test_how_a_script_reads_kernel_lines(script: str, how: str, reads: list[str], tmp_path: Path) -> None:
    image = foreign.Image(tmp_path, "debian12")
    image.program("opt/team/xid", f"#!/bin/sh\n{script}\n" if not script.startswith("#!") else script)
    output = "StandardOutput=append:/var/log/team/xid.log"
    image.unit("xid.service", "ExecStart=/opt/team/xid", output)
    tree = observation.Tree(str(tmp_path))
    (row,) = shippers.scripts(tree, shippers.Units(tree))
    assert (row["how"], row["reads"], row["writes"]) == (how, reads, ["/var/log/team/xid.log"])


_CTL = "/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
_JSON = "/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.json"


@pytest.mark.parametrize(
    ("script", "command"),
    [
        (
            f"{_CTL} \\\n  -a fetch-config \\\n  -c ssm:gpu -s",
            "amazon-cloudwatch-agent-ctl -a fetch-config -c ssm:gpu -s",
        ),
        (
            f"CTL={_CTL}\n$CTL -m ec2 -c ssm:gpu -a append-config",
            "amazon-cloudwatch-agent-ctl -m ec2 -c ssm:gpu -a append-config",
        ),
        (f"aws ssm get-parameter --name gpu > {_JSON}", f"aws ssm get-parameter --name gpu > {_JSON}"),
        (
            f"#!/usr/bin/python3\nrun(['{_CTL}', '-a', 'fetch-config'])",
            "amazon-cloudwatch-agent-ctl', '-a', 'fetch-config'])",
        ),
        (f"{_CTL} -a status", None),
        (f"cat {_JSON}", None),
    ],
)
def test_a_configuration_that_a_unit_s_script_fetches(script: str, command: str | None, tmp_path: Path) -> None:
    image = foreign.Image(tmp_path, "ubuntu2204")
    image.program("opt/team/agent", f"#!/bin/sh\n{script}\n" if not script.startswith("#!") else script)
    image.unit("agent-configuration.service", "Type=oneshot", "ExecStart=/opt/team/agent")
    told = shippers.agent(tree := observation.Tree(str(tmp_path)), shippers.Units(tree))["fetched_at_boot"]
    assert told == ([{"path": "/opt/team/agent", "command": command}] if command else [])

    (tmp_path / "etc/systemd/system/multi-user.target.wants/agent-configuration.service").unlink()
    assert not shippers.agent(tree, shippers.Units(tree))["fetched_at_boot"], "no boot starts it"


def test_other_places_of_a_boot_fetch_a_configuration(tmp_path: Path) -> None:
    image = foreign.Image(tmp_path, "ubuntu2204")
    image.enable("amazon-cloudwatch-agent.service")
    command = f"{_CTL} -a fetch-config -c ssm:gpu"
    image.write("etc/systemd/system/amazon-cloudwatch-agent.service.d/ssm.conf", f"[Service]\nExecStartPre={command}\n")
    image.write("etc/cloud/cloud.cfg.d/99-gpu.cfg", f"runcmd:\n  - [{command.replace(' ', ', ')}]\n")
    told = shippers.agent(tree := observation.Tree(str(tmp_path)), shippers.Units(tree))["fetched_at_boot"]
    assert [row["path"] for row in told] == [
        "/etc/cloud/cloud.cfg.d/99-gpu.cfg",
        "/etc/systemd/system/amazon-cloudwatch-agent.service.d/ssm.conf",
    ]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, '{"metrics": 5}', '{"logs": true}'])
def test_a_configuration_of_any_form_is_read(text: str, tmp_path: Path) -> None:
    for path in (
        "opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.json",
        "etc/amazon-cloudwatch-agent/x.json",
    ):
        foreign.Image(tmp_path, "debian12").write(path, text)
    tree = observation.Tree(str(tmp_path))
    told = shippers.agent(tree, shippers.Units(tree))
    assert bool(told["mistakes"]) is (text[-1] != "}") and not told["unread"]


@pytest.mark.parametrize("line", ["a", "amazon-cloudwatch-agent-ctl ", "cp > ", "fetch-config "])
def test_a_long_line_of_a_unit_is_read_in_linear_time(line: str, tmp_path: Path) -> None:
    """Its time squared would be hours for a file of the size that is read at most."""
    image = foreign.Image(tmp_path, "debian12")
    image.unit("a.service", "ExecStart=/bin/sh -c '" + line * (1_000_000 // len(line)) + "'")
    image.unit(
        "b.service",
        "ExecStart=/bin/sh -c 'x; cp /x /opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.json; y'",
    )
    tree = observation.Tree(str(tmp_path))
    told = shippers.agent(tree, shippers.Units(tree))["fetched_at_boot"]
    assert [row["command"] for row in told] == [
        "cp /x /opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.json"
    ]
