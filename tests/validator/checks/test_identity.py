"""Identities of the build machine, in every form: each check once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import INSTANCE, Judge
from validator.checks import identity

MAC = {"cat /sys*": "02:aa:bb:cc:dd:01\n", "ip*": "2: ens6: permaddr 02:AA:BB:CC:DD:02 \n"}
OWN = {"hostname*": "10.0.0.5 172.17.0.1\n", "cat /etc/machine-id*": "ab" * 16, "cat /var/lib/dbus*": "ab" * 16}
STATE = "/opt/aws/amazon-cloudwatch-agent/logs/state/_var_log_messages"

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (
        identity.test_agents_know_no_other_machine,
        {"{ grep*": f"/var/lib/ecs/data/agent.db:{INSTANCE}\n", "find*": f"/var/lib/amazon/ssm/{INSTANCE}\n"},
        "PASS",
        "",
    ),
    (
        identity.test_agents_know_no_other_machine,
        {"{ grep*": "/var/lib/amazon/ssm/registration:mi-0aaaaaaaaaaaaaaaa\n", "find*": ""},
        "FAIL",
        "identities of other machines: /var/lib/amazon/ssm/registration: mi-0aaaaaaaaaaaaaaaa",
    ),
    (
        identity.test_agents_know_no_other_machine,
        {"{ grep*": "/var/lib/ecs/data/agent.db:i-0bbbbbbbbbbbbbbbb\n", "find*": ""},
        "FAIL",
        "/var/lib/ecs/data/agent.db: i-0bbbbbbbbbbbbbbbb",
    ),
    (
        identity.test_agents_know_no_other_machine,
        {"{ grep*": "", "find*": "/var/lib/amazon/ssm/mi-0aaaaaaaaaaaaaaaa\n"},
        "FAIL",
        "/var/lib/amazon/ssm/mi-0aaaaaaaaaaaaaaaa",
    ),
    (
        identity.test_network_settings_name_no_other_card,
        MAC | {"grep*": "/etc/netplan/50-cloud-init.yaml:macaddress: 02:aa:bb:cc:dd:01\n"},
        "PASS",
        "",
    ),
    (
        identity.test_network_settings_name_no_other_card,
        MAC | {"grep*": '/etc/udev/rules.d/70-persistent-net.rules:ATTR{address}=="02:00:00:00:00:99"\n'},
        "FAIL",
        "MAC addresses of other machines: /etc/udev/rules.d/70-persistent-net.rules: 02:00:00:00:00:99",
    ),
    (
        identity.test_network_settings_name_no_other_card,
        MAC | {"grep*": "/etc/sysconfig/network-scripts/ifcfg-eth0:HWADDR=02-00-00-00-00-98\n"},
        "FAIL",
        "ifcfg-eth0: 02-00-00-00-00-98",
    ),
    (identity.test_leases_are_this_instances, {"find*@998*": ""}, "PASS", ""),
    (
        identity.test_leases_are_this_instances,
        {"find*": "/var/lib/dhcp/dhclient.eth0.leases\n"},
        "FAIL",
        "/var/lib/dhcp/dhclient.eth0.leases",
    ),
    (
        identity.test_names_are_this_instances,
        OWN | {"grep*": "/etc/hostname:ip-10-0-0-5\n/etc/hosts:127.0.1.1 ip-10-0-0-5.ec2.internal\n"},
        "PASS",
        "",
    ),
    (
        identity.test_names_are_this_instances,
        OWN | {"hostname*": "10.0.2.15\n", "grep*": "/etc/hostname:ip-10-0-0-7\n"},  # EC2's address, not an interface's
        "PASS",
        "",
    ),
    (
        identity.test_names_are_this_instances,
        OWN | {"grep*": "/etc/hosts:127.0.1.1 ip-10-9-9-9.ec2.internal\n"},
        "FAIL",
        "names of other machines: /etc/hosts: ip-10-9-9-9",
    ),
    (
        identity.test_names_are_this_instances,
        OWN | {"grep*": "", "cat /var/lib/dbus*": "cd" * 16},
        "FAIL",
        f"/var/lib/dbus/machine-id: {'cd' * 16}, the machine id is {'ab' * 16}",
    ),
    (identity.test_agent_reads_logs_from_their_beginning, {"for f*": f"1040 300 4000 {STATE}\n"}, "PASS", ""),
    (
        identity.test_agent_reads_logs_from_their_beginning,
        {"for f*": f"1040 9000 4000 {STATE}\n"},
        "FAIL",
        f"{STATE}: position 9000 in a log of 4000 bytes",
    ),
    (identity.test_agent_reads_logs_from_their_beginning, {"for f*": f"700 1 4000 {STATE}\n"}, "FAIL", "is older than"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_identity(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    judgement = judge(check, table)
    assert (judgement.verdict, message in judgement.message) == (verdict, True), judgement.message
