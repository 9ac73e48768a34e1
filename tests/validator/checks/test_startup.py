"""What decides how a machine starts: each check green on a genuine base AMI's files, and red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, Judge
from validator.checks import startup
from validator.plan import as_plan

HOSTS = """\
127.0.0.1 localhost localhost.localdomain localhost4
127.0.1.1 ip-10-0-0-5.ec2.internal ip-10-0-0-5
::1 ip6-localhost ip6-loopback # a comment
169.254.169.254 instance-data.localdomain
"""
FOLDERS = "755 root root /etc\n640 root shadow /etc/shadow\n1777 root root /tmp\n775 root root /usr/bin\n"
GENUINE = """\
/etc/environment:PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
/etc/apt/apt.conf.d/50unattended-upgrades:Unattended-Upgrade::Allowed-Origins {
/etc/dnf/dnf.conf:proxy=_none_
/etc/default/docker:export http_proxy=
/etc/systemd/system.conf:DefaultEnvironment=PATH=/usr/bin
/etc/docker/daemon.json:{"default-runtime": "nvidia", "registry-mirrors": []}
"""
REDIRECTS = [
    "/etc/environment:https_proxy=http://10.1.2.3:3128", "/etc/environment:ALL_PROXY='socks5://10.1.2.3:1080'",
    '/etc/apt/apt.conf.d/x:Acquire::https::Proxy "http://apt.example:3142";', "/etc/dnf/dnf.conf:proxy=http://p.example",
    "/etc/pip.conf:index-url = https://pypi.example/simple", "/etc/pip.conf:proxy = http://p.example:80",
    "/etc/systemd/system/docker.service.d/p.conf:Environment=\"HTTP_PROXY=http://p.example:80\"",
    '/etc/docker/daemon.json:  "https-proxy": "http://p.example:80",', "/etc/wgetrc:https_proxy = http://p.example/",
    "/etc/gitconfig:proxy = http://p.example:80", "/etc/profile.d/x.sh:export LD_PRELOAD=/opt/hook.so",
    "/etc/profile.d/x.csh:setenv http_proxy http://p.example:80", "/etc/environment:AWS_ENDPOINT_URL=http://10.1.2.3:4566",
    "/etc/yum.repos.d/a.repo:proxy=http://p.example:3128", "/root/.curlrc:proxy = p.example:3128",
    "/opt/aws/amazon-cloudwatch-agent/etc/common-config.toml:http_proxy = \"http://p.example\"",
    "/etc/ecs/ecs.config:HTTP_PROXY=p.example:3128", "/etc/docker/daemon.json:{\"registry-mirrors\": [\"https://m.example\"]}",
    "/etc/gitconfig:insteadOf = https://github.com/",
]  # fmt: skip

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (startup.test_hosts_file_names_this_machine_alone, {"hostname*": "", "cat*": HOSTS}, "PASS", ""),
    (
        startup.test_hosts_file_names_this_machine_alone,
        {"hostname*": "gpu7\n", "cat*": HOSTS + "127.0.0.1 gpu7 pypi.org\n"},
        "FAIL",
        "names in /etc/hosts: 127.0.0.1 pypi.org",
    ),
    (
        startup.test_no_name_server_is_set,
        {"grep*": "/etc/dhcp/dhclient.conf:request subnet-mask, domain-name-servers;\n"},
        "PASS",
        "",
    ),
    (startup.test_no_name_server_is_set, {"grep*": "/etc/systemd/resolved.conf:DNS=10.0.0.9\n"}, "FAIL", "DNS=10.0"),
    (
        startup.test_no_name_server_is_set,
        {"grep*": "/etc/dhcp/dhclient.conf:supersede domain-name-servers 10.0.0.9;\n"},
        "FAIL",
        "supersede domain-name-servers 10.0.0.9",
    ),
    (startup.test_resolver_asks_what_dhcp_gave, {"cat /etc*": "nameserver 127.0.0.53\n", "cat /run*": ""}, "PASS", ""),
    (
        startup.test_resolver_asks_what_dhcp_gave,
        {"cat /etc*": "nameserver 10.0.0.2\n", "cat /run*": "DNS=10.0.0.2\n"},
        "PASS",
        "",
    ),
    (
        startup.test_resolver_asks_what_dhcp_gave,
        {"cat /etc*": "nameserver 8.8.8.8\n", "cat /run*": "DNS=10.0.0.2\n"},
        "FAIL",
        "name servers that no lease gave: 8.8.8.8",
    ),
    (
        startup.test_resolver_asks_what_dhcp_gave,
        {"cat /etc*": "nameserver 10.0.0.2\n", "cat /run*": ""},
        "UNPROVEN",
        "no lease of DHCP",
    ),
    (startup.test_no_packet_is_redirected, {"grep*": "/etc/nftables.conf:flush ruleset\n"}, "PASS", ""),
    (
        startup.test_no_packet_is_redirected,
        {"grep*": "/etc/nftables.conf:tcp dport 443 redirect to :8443\n"},
        "FAIL",
        "redirect to :8443",
    ),
    (
        startup.test_cloud_init_will_run,
        {"ls*": "", "find*": "", "grep*": "/etc/cloud/cloud.cfg.d/a.cfg:datasource_list: [ Ec2, None ]\n"},
        "PASS",
        "",
    ),
    (
        startup.test_cloud_init_will_run,
        {"ls*": "/etc/cloud/cloud-init.disabled\n", "find*": "", "grep*": ""},
        "FAIL",
        "/etc/cloud/cloud-init.disabled",
    ),
    (
        startup.test_cloud_init_will_run,
        {"ls*": "", "find*": "", "grep*": "/etc/cloud/cloud.cfg.d/z.cfg:datasource_list: [None]\n"},
        "FAIL",
        "datasource_list: [None]",
    ),
    (
        startup.test_cloud_init_will_run,
        {"ls*": "", "find*": "/var/lib/cloud/seed/nocloud/user-data\n", "grep*": ""},
        "FAIL",
        "/var/lib/cloud/seed/nocloud/user-data",
    ),
    (
        startup.test_no_unit_is_masked,
        {"find*": "/etc/systemd/system/hwclock.service\n", "readlink*": "", "ls*": ""},
        "PASS",
        "",
    ),
    (
        startup.test_no_unit_is_masked,
        {"find*": "/etc/systemd/system/ssh.service\n", "readlink*": "/lib/systemd/system/rescue.target", "ls*": ""},
        "FAIL",
        "ssh.service is masked, default.target is /lib/systemd/system/rescue.target",
    ),
    (startup.test_no_unit_is_masked, {"find*": "", "readlink*": "", "ls*": "/etc/nologin\n"}, "FAIL", "/etc/nologin"),
    (
        startup.test_no_file_is_diverted,
        {
            "dpkg-divert*": "diversion of /bin/a to /bin/b by c\nlocal diversion of /usr/bin/man to /usr/bin/man.R\n",
            "dpkg-stat*": "root messagebus 4754 /usr/lib/dbus-1.0/dbus-daemon-launch-helper\n",
        },
        "PASS",
        "",
    ),
    (
        startup.test_no_file_is_diverted,
        {
            "dpkg-divert*": "local diversion of /usr/bin/nvidia-smi to /usr/bin/x\n",
            "dpkg-stat*": "root root 4755 /usr/bin/vi\n",
        },
        "FAIL",
        "local diversion of /usr/bin/nvidia-smi to /usr/bin/x, override of /usr/bin/vi: root:root 4755",
    ),
    (
        startup.test_next_boot_s_command_line_is_safe,
        {"grep*": '/etc/default/grub:GRUB_CMDLINE_LINUX="quiet mitigations=auto"\n/etc/default/grub:single=0\n'},
        "PASS",
        "",
    ),
    (
        startup.test_next_boot_s_command_line_is_safe,
        {"grep*": "/boot/loader/entries/a.conf:options root=/ ro modprobe.blacklist=nvidia_uvm init=/x\n"},
        "FAIL",
        "a.conf: init=/x, /boot/loader/entries/a.conf: modprobe.blacklist=nvidia_uvm",
    ),
    (
        startup.test_next_boot_s_command_line_is_safe,
        {"grep*": "/etc/kernel/cmdline:root=/dev/x cloud-init=disabled\n"},
        "FAIL",
        "/etc/kernel/cmdline: cloud-init=disabled",
    ),
    (startup.test_folders_of_all_users_are_safe, {"stat*": FOLDERS}, "PASS", ""),
    (
        startup.test_folders_of_all_users_are_safe,
        {"stat*": FOLDERS.replace("1777", "777")},
        "FAIL",
        "/tmp: root:root 777",
    ),
    (
        startup.test_folders_of_all_users_are_safe,
        {"stat*": FOLDERS.replace("640", "644").replace("755 root root", "775 root build")},
        "FAIL",
        "/etc/shadow: root:shadow 644, /etc: root:build 775",
    ),
    (startup.test_no_other_host_is_trusted, {"for f in /etc/hosts.equiv*": "", "grep*": ""}, "PASS", ""),
    (
        startup.test_no_other_host_is_trusted,
        {"for f in /etc/hosts.equiv*": "/root/.rhosts\n", "grep*": ""},
        "FAIL",
        "/root/.rhosts",
    ),
    (
        startup.test_no_other_host_is_trusted,
        {"for f in /etc/hosts.equiv*": "", "grep*": '/etc/docker/daemon.json:"hosts": ["tcp://0.0.0.0:2375"]\n'},
        "FAIL",
        "tcp://0.0.0.0:2375",
    ),
    (startup.test_no_proxy_is_set, {"grep*": GENUINE}, "PASS", ""),
]  # fmt: skip


@pytest.mark.parametrize(
    ("unit", "verdict"), [("apt-daily.timer", "PASS"), ("cloud-final.service", "FAIL"), ("ssh.service", "FAIL")]
)
def test_image_as_found_may_mask_what_no_boot_needs(judge: Judge, unit: str, verdict: str) -> None:
    table = {"find*": f"/etc/systemd/system/{unit}\n", "readlink*": "", "ls*": ""}
    observed = as_plan(PLAN | {"origin": "observed", "node": {"family": "ec2"}})
    assert judge(startup.test_no_unit_is_masked, table, plan=observed).verdict == verdict


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_startup(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    judgement = judge(check, table, plan=as_plan({**PLAN, "node": {"family": "ec2"}}))
    assert (judgement.verdict, message in judgement.message) == (verdict, True), judgement.message


@pytest.mark.parametrize("line", REDIRECTS)
def test_every_redirection_is_seen(judge: Judge, line: str) -> None:
    judgement = judge(startup.test_no_proxy_is_set, {"grep*": GENUINE + line + "\n"})
    assert judgement.verdict == "FAIL" and line.partition(":")[0] in judgement.message, judgement.message


def test_rpm_has_no_diversions(judge: Judge) -> None:
    plan = as_plan({**PLAN, "os": {**PLAN["os"], "family": "redhat"}})
    assert judge(startup.test_no_file_is_diverted, {}, plan=plan).verdict == "PASS"


@pytest.mark.parametrize(
    "line",
    [
        "/etc/environment:https_proxy=http://" + "u:hush" + "@p.example:80\n",
        '/etc/x.json:{"AWS_SECRET_ACCESS_KEY":"hush' + "a" * 36 + '","HTTPS_PROXY":"http://p.example:80"}\n',
    ],
)
def test_secrets_beside_a_proxy_are_not_shown(judge: Judge, line: str) -> None:
    judgement = judge(startup.test_no_proxy_is_set, {"grep*": line})
    assert judgement.verdict == "FAIL" and "hush" not in judgement.message


def test_what_the_plan_asks_for_is_no_redirection(judge: Judge) -> None:
    plan = as_plan({**PLAN, "source": {"pip": "https://pypi.example/simple"}})
    table = {"grep*": "/etc/profile.d/x.sh:export PIP_INDEX_URL=https://pypi.example/simple\n"}
    assert judge(startup.test_no_proxy_is_set, table, plan=plan).verdict == "PASS"
