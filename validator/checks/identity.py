"""No identity of the build machine is left, in whatever form: registrations, network cards, names, positions in logs.

The machine's own identities are known on a running machine alone, so these are no checks of files.
"""

from __future__ import annotations

import re
from typing import Any

from validator.observe import Observe, output
from validator.probes import MachineUnderTest

# A managed node outside EC2 (a hybrid activation); an instance is never one.
# Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/hybrid-activation-managed-nodes.html
_MANAGED = r"\bmi-[0-9a-f]{17}\b"
_INSTANCE = r"\bi-(?:[0-9a-f]{17}|[0-9a-f]{8})\b"
# Databases and vaults of the agents, read as bytes; programs beside them may hold any bytes.
_DATABASES = (
    "/var/lib/ecs/data /var/lib/amazon/ssm/Vault /var/lib/amazon/ssm/registration /var/lib/amazon/ssm/runtimeconfig"
)
_AGENTS = (
    "/var/lib/amazon /etc/amazon /opt/aws/amazon-cloudwatch-agent/etc /opt/aws/amazon-cloudwatch-agent/var"
    " /opt/aws/amazon-cloudwatch-agent/logs/state /var/log/amazon /var/snap/amazon-ssm-agent /var/lib/ecs/ecs.config"
    " /etc/ecs /etc/aws /root /etc/machine-info /etc/hostname /etc/hosts"
)
# udev's rules, netplan, ifupdown, the network scripts, systemd-networkd and NetworkManager.
_NETWORK = (
    "/etc/udev/rules.d /etc/netplan /etc/network/interfaces /etc/network/interfaces.d /etc/sysconfig/network-scripts"
    " /etc/sysconfig/network /etc/systemd/network /etc/NetworkManager /etc/dhcp /etc/dhcpcd.conf /etc/dracut.conf.d"
    " /etc/initramfs-tools/conf.d /etc/cloud/cloud.cfg.d /etc/iftab /etc/mactab"
)
_MAC = r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b"
_NO_MACHINE_S_MAC = re.compile(r"(?:00[:-]){5}00|(?:ff[:-]){5}ff", re.IGNORECASE)
_LEASES = "/var/lib/dhcp /var/lib/dhclient /var/lib/NetworkManager /var/lib/dhcpcd /var/lib/dhcpcd5 /var/lib/wicked"
_STATE = "/opt/aws/amazon-cloudwatch-agent/logs/state"
_NAME_OF_AN_ADDRESS = re.compile(r"\bip-(\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3})\b")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_agents_know_no_other_machine(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """No registration, vault or state of the SSM, ECS or CloudWatch agent belongs to another machine.

    A hybrid registration (`mi-…`) makes every instance report as the same managed node. Databases are read as bytes:
    their content tells whose they are, while their times are those of the agent's last start.
    """
    pattern = f"{_MANAGED}|{_INSTANCE}".replace("?:", "")
    content = host.run(
        f"{{ grep -raosE '{pattern}' {_DATABASES}; grep -rIosE '{pattern}' {_AGENTS}; }} | sort -u | head -n 500",
        pure=True,
    )
    names = host.run(
        "find /var/lib/amazon /var/snap/amazon-ssm-agent /var/log/amazon -mindepth 1"
        r" \( -name 'mi-*' -o -name 'i-*' \) 2>/dev/null", pure=True
    )  # fmt: skip
    pairs = {(row.rpartition(":")[0], row.rpartition(":")[2]) for row in _lines(content.stdout)}
    pairs |= {
        (path, match[0]) for path in _lines(names.stdout) for match in re.finditer(f"{_MANAGED}|{_INSTANCE}", path)
    }
    others = sorted(f"{path}: {identity}" for path, identity in pairs if identity != machine.instance_id)
    observe(sorted({identity for _, identity in pairs}), machine.instance_id)
    observe.nothing(others, "identities of other machines")


def test_network_settings_name_no_other_card(host: Any, observe: Observe) -> None:
    """Every MAC address in udev rules and network configuration belongs to an interface of this machine.

    A rule for the build machine's card renames this machine's, or leaves it without a network.
    """
    own = set(output(host, "cat /sys/class/net/*/address").lower().split())
    own |= set(re.findall(r"permaddr (\S+)", host.run("ip -o link 2>/dev/null").stdout.lower()))
    found = host.run(f"grep -rsHE '^[^#]*{_MAC.replace('?:', '')}' {_NETWORK}", pure=True).stdout
    others = sorted(
        f"{path}: {mac}"
        for path, _, text in (line.partition(":") for line in _lines(found))
        for mac in re.findall(_MAC, text)
        if mac.lower().replace("-", ":") not in own and not _NO_MACHINE_S_MAC.fullmatch(mac)
    )
    observe(sorted(own), "MAC addresses of this machine")
    observe.nothing(others, "MAC addresses of other machines")


def test_leases_are_this_instances(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """No DHCP lease or client identifier is older than this instance. Otherwise it requests the builder's address."""
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    found = host.run(
        f"find {_LEASES} -type f -size +0 \\( -name '*lease*' -o -name '*duid*' \\) ! -newermt @{since} 2>/dev/null"
    )
    observe.nothing(sorted(_lines(found.stdout)), "leases older than this instance")


def test_names_are_this_instances(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Host names derived from an address are derived from this machine's, and D-Bus has the machine's id."""
    addresses = {address.replace(".", "-") for address in host.run("hostname -I 2>/dev/null").stdout.split()}
    addresses.add(str(machine.metadata["private-ip"]).replace(".", "-"))
    text = host.run("grep -sH '^[^#]' /etc/hostname /etc/hosts /etc/mailname /etc/salt/minion_id", pure=True).stdout
    others = {
        f"{path}: {match[0]}"
        for path, _, row in (line.partition(":") for line in _lines(text))
        for match in _NAME_OF_AN_ADDRESS.finditer(row)
        if match[1] not in addresses
    }
    identity, of_dbus = (host.run(f"cat {path} 2>/dev/null").stdout.strip() for path in _MACHINE_IDS)
    if of_dbus and of_dbus != identity:
        others.add(f"{_MACHINE_IDS[1]}: {of_dbus}, the machine id is {identity}")
    observe(sorted(addresses), "names of this machine")
    observe.nothing(sorted(others), "names of other machines")


_MACHINE_IDS = ("/etc/machine-id", "/var/lib/dbus/machine-id")


def test_agent_reads_logs_from_their_beginning(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """No position of the CloudWatch agent is beyond the end of its log, or older than this instance.

    A position that the image brought makes the agent leave out what this instance writes up to there: it holds a number
    and a path, and nothing that tells files apart (amazon-cloudwatch-agent#2184).
    """
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    rows = host.run(
        f'for f in {_STATE}/*; do [ -f "$f" ] || continue; p=$(sed -n 2p "$f");'
        ' echo "$(stat -c %Y "$f") $(sed -n 1p "$f") $(stat -c %s "$p" 2>/dev/null || echo -1) $f"; done'
    )
    wrong = []
    for row in _lines(rows.stdout):
        changed, offset, size, path = row.split(None, 3)
        if int(changed) < since:
            wrong.append(f"{path} is older than this instance")
        elif offset.isdigit() and 0 <= int(size) < int(offset):
            wrong.append(f"{path}: position {offset} in a log of {size} bytes")
    observe.nothing(sorted(wrong), "positions of another machine's logs")
