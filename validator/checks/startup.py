"""What decides how a machine starts: what redirects its traffic, changes its boot, opens it.

Read from the files themselves on every system, without an account of the image's files: a base AMI that has files of
its own (ECS, EKS, ParallelCluster) is judged as well.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from typing import Any

import pytest

from validator import secret_shapes
from validator.checks import kernel
from validator.observe import Observe, output, unproven
from validator.plan import OBSERVED
from validator.plan_document import PlanDocument
from validator.probes import base_ami, boot_entries, footprints

# What a shell, systemd, a package manager or a tool reads for every user or service.
_ENVIRONMENTS = (
    "/etc/environment /etc/environment.d /etc/profile /etc/profile.d /etc/bash.bashrc /etc/bashrc /etc/zshrc /etc/zsh"
    " /etc/csh.cshrc /etc/csh.login /etc/security/pam_env.conf /etc/default /etc/sysconfig /etc/systemd /etc/skel"
    " /root/.bashrc /root/.profile /root/.bash_profile /root/.pam_environment /etc/ecs/ecs.config /etc/eks"
)
_CLIENTS = (
    "/etc/apt/apt.conf /etc/apt/apt.conf.d /etc/dnf /etc/yum.conf /etc/yum.repos.d /etc/pip.conf /etc/xdg/pip"
    " /etc/wgetrc /etc/curlrc /etc/npmrc /usr/etc/npmrc /etc/gitconfig /etc/docker /etc/containers /etc/condarc"
    " /etc/conda /etc/amazon/ssm /opt/aws/amazon-cloudwatch-agent/etc/common-config.toml /root/.curlrc /root/.wgetrc"
    " /root/.gitconfig /root/.pip /root/.config/pip /root/.config/containers /root/.docker /root/.npmrc /root/.condarc"
    " /opt/aws/amazon-cloudwatch-agent/etc/env-config.json"
)
_PROXY = re.compile(
    r"(?:\b(?:https?|ftp|all|socks|rsync)[_-]?proxy\w*[\"']?|(?:^|[\"'{,;\s])proxy(?:_(?:host|url|server))?[\"']?"
    r"|\b\w*::Proxy(?:-Auto-Detect)?|\b(?:http|https)\.proxy)\s*(?:=>|[:=]|\s)\s*[\"']?(?P<value>[^\s\"';,}]+)",
    re.IGNORECASE,
)
_NO_PROXY = re.compile(r"(?:_none_|none|direct|no|off|false|0|\{|\$.*)$", re.IGNORECASE)
# Variables that send programs elsewhere, or put code into each of them.
_VARIABLES = re.compile(
    r"(?:^|[\s\"';])(?:export\s+|Environment=[\"']?|DefaultEnvironment=[\"']?|setenv\s+)?(?P<name>LD_PRELOAD|LD_AUDIT"
    r"|AWS_ENDPOINT_URL\w*|AWS_EC2_METADATA_SERVICE_ENDPOINT|AWS_CONTAINER_CREDENTIALS_\w+|AWS_CA_BUNDLE|PIP_INDEX_URL"
    r"|PIP_EXTRA_INDEX_URL|PIP_TRUSTED_HOST|UV_INDEX_URL|UV_DEFAULT_INDEX|CONDA_CHANNEL_ALIAS|GIT_SSL_NO_VERIFY"
    r"|GIT_PROXY_COMMAND|NODE_TLS_REJECT_UNAUTHORIZED|PYTHONHTTPSVERIFY|SSL_CERT_FILE|CURL_CA_BUNDLE|REQUESTS_CA_BUNDLE"
    r"|RES_OPTIONS|LOCALDOMAIN|HOSTALIASES|RESOLV_HOST_CONF|HTTPS?_PROXY|ALL_PROXY)(?:=|\s+)(?P<value>[^\s\"']+)"
)
_OTHER_INDEX = re.compile(
    r"\b(?:index-url|extra-index-url|trusted-host|registry|registry-mirrors|insteadOf)[\"']?\s*[:=](?!\s*\[\s*\])"
)
_LOCAL_NAMES = re.compile(
    r"(?:localhost\d?|ip6-\w+|[\w-]*loopback|instance-data|metadata|broadcasthost|.*\.localdomain\d?)$"
)
_HOST_OF_AN_ADDRESS = re.compile(r"ip-\d{1,3}-\d{1,3}-\d{1,3}-\d{1,3}$")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _settings(host: Any, paths: str) -> list[tuple[str, str]]:
    """(file, line) of each line that is no comment."""
    shown = host.run(f"grep -rIsHE '^[[:space:]]*[^#;/[:space:]]' {paths}", pure=True).stdout
    rows = (line.partition(":")[::2] for line in _lines(shown))
    skipped = re.compile(r"\.(?:dpkg-\w+|rpmnew|bak)$|/init\.d/")
    return [(path, text.strip()) for path, text in rows if not skipped.search(path)]


def _proxy(text: str) -> str:
    match = _PROXY.search(text)
    return match["value"] if match and not _NO_PROXY.match(match["value"]) and _is_address(match["value"]) else ""


def _is_address(value: str) -> bool:
    return re.search(r"[./:]", value) is not None


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_no_proxy_is_set(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """No setting sends traffic through a proxy or to another package index, and no variable loads code into programs.

    Read are the environment of logins and services, and the settings of apt, dnf, pip, npm, git, wget, curl, Docker,
    Podman and the agents. Such a proxy is the builder's: instances elsewhere cannot reach it, or must not use it.
    """
    planned = base_ami.planned_text(plan)
    wrong = []
    for path, text in _settings(host, f"{_ENVIRONMENTS} {_CLIENTS}"):
        variable = _VARIABLES.search(text)
        value = _proxy(text) or (variable["value"] if variable else "")
        if not value and path.startswith(_INDEXES) and _OTHER_INDEX.search(text):
            value = text
        if value and value not in planned:
            wrong.append(f"{path}: {_without_secret(text)}")
    observe.nothing(sorted(set(wrong)), "settings that redirect traffic or load code into programs")


_INDEXES = (
    "/etc/pip.conf", "/etc/xdg/pip", "/root/.pip", "/root/.config/pip", "/etc/npmrc", "/usr/etc/npmrc", "/root/.npmrc",
    "/etc/gitconfig", "/root/.gitconfig", "/etc/docker",
)  # fmt: skip


def _without_secret(text: str) -> str:
    return secret_shapes.hidden(re.sub(r"://[^/@\s]+@", "://…@", text))[:160]


@pytest.mark.tier("T0")
def test_hosts_file_names_this_machine_alone(host: Any, observe: Observe) -> None:
    """/etc/hosts has only names of this machine. Any other name there takes precedence over DNS."""
    own = set(host.run("hostname; hostname -f; cat /etc/hostname", pure=True).stdout.split())
    own |= {name.partition(".")[0] for name in own}
    wrong = [
        f"{row[0]} {name}"
        for row in (line.partition("#")[0].split() for line in _lines(host.run("cat /etc/hosts", pure=True).stdout))
        for name in row[1:]
        if not (_LOCAL_NAMES.match(name) or name in own or _HOST_OF_AN_ADDRESS.match(name.partition(".")[0]))
    ]
    observe.nothing(wrong, "names in /etc/hosts")


@pytest.mark.tier("T0")
def test_no_name_server_is_set(host: Any, observe: Observe) -> None:
    """Name servers come from DHCP: none is set in resolved.conf, dhclient.conf or NetworkManager's configuration."""
    files = (
        "/etc/systemd/resolved.conf /etc/systemd/resolved.conf.d /etc/systemd/network /etc/netplan /etc/dhcp"
        " /etc/NetworkManager/conf.d /etc/NetworkManager/NetworkManager.conf /etc/resolvconf /etc/dnsmasq.conf"
        " /etc/dnsmasq.d /etc/network"
    )
    setting = re.compile(
        r"(?:(?:FallbackDNS|DNS|Domains)=\S|(?:supersede|prepend|append|default) domain-name-servers?\b"
        r"|nameservers?:?\s|dns-nameservers\s|servers=\S|server=\S)"
    )
    wrong = [
        f"{path}: {text}"
        for path, text in _settings(host, files)
        if setting.match(text) and "domain-search" not in text
    ]
    observe.nothing(sorted(wrong), "name servers and domains that are set")


def test_resolver_asks_what_dhcp_gave(host: Any, observe: Observe) -> None:
    """/etc/resolv.conf has a local resolver, the VPC's, or those of a DHCP lease. Others may not be reachable."""
    servers = re.findall(r"^nameserver\s+(\S+)", host.run("cat /etc/resolv.conf", pure=True).stdout, re.MULTILINE)
    leases = host.run(
        "cat /run/systemd/netif/leases/* /var/lib/dhcp/*lease* /var/lib/dhclient/*lease* /run/NetworkManager/devices/*"
        " /var/lib/NetworkManager/*lease* /run/NetworkManager/resolv.conf /run/systemd/resolve/resolv.conf 2>/dev/null;"
        " resolvectl dns 2>/dev/null"
    ).stdout
    given = set(re.findall(r"[0-9a-fA-F.:]{7,}", leases))
    wrong = [server for server in servers if not _is_local(server) and server not in given]
    observe(servers, "a local resolver, the VPC's, or those of a lease")
    if wrong and not given:
        unproven(f"no lease of DHCP was found that could tell whether {', '.join(wrong)} are this network's")
    observe.nothing(wrong, "name servers that no lease gave")


def _is_local(server: str) -> bool:
    try:
        address = ipaddress.ip_address(server.partition("%")[0])
    except ValueError:
        return False
    return address.is_loopback or address.is_link_local or str(address) == "fd00:ec2::253"


@pytest.mark.tier("T0")
def test_no_packet_is_redirected(host: Any, observe: Observe) -> None:
    """No rule of nftables or iptables that a boot restores sends packets elsewhere."""
    files = (
        "/etc/nftables.conf /etc/nftables /etc/nftables.d /etc/sysconfig/nftables.conf /etc/iptables"
        " /etc/sysconfig/iptables /etc/sysconfig/ip6tables /etc/ufw/before.rules"
    )
    rules = [f"{path}: {text}" for path, text in _settings(host, files)]
    # The ECS agent's own: tasks ask 169.254.170.2 for their credentials.
    wrong = [
        rule
        for rule in rules
        if re.search(r"\b(?:DNAT|REDIRECT|TPROXY)\b", rule, re.IGNORECASE) and "169.254.170.2" not in rule
    ]
    observe.nothing(wrong, "rules that redirect packets")


@pytest.mark.tier("T0")
def test_cloud_init_will_run(host: Any, observe: Observe) -> None:
    """Nothing disables cloud-init. Without it the next instance has no key, no user data and the image's host keys."""
    marks = host.run("ls -d /etc/cloud/cloud-init.disabled /run/cloud-init/disabled 2>/dev/null", pure=True).stdout
    wrong = _lines(marks)
    for path, text in _settings(host, "/etc/cloud/cloud.cfg /etc/cloud/cloud.cfg.d /etc/cloud/ds-identify.cfg"):
        sources = re.match(r"datasource_list\s*:\s*\[([^\]]*)\]|datasource\s*:\s*(\w+)\s*$", text)
        listed = [name.strip(" \"'") for name in (sources[1] or sources[2] or "").split(",")] if sources else []
        if (sources and "Ec2" not in listed) or re.match(r"policy\s*:\s*disabled\b", text):
            wrong.append(f"{path}: {text}")
    seeds = "find /var/lib/cloud/seed -type f 2>/dev/null"
    wrong += _lines(host.run(seeds, pure=True).stdout)
    observe.nothing(wrong, "what keeps cloud-init from reading this instance's data")


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_no_unit_is_masked(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """No unit is masked except those of a base AMI, and the default target is multi-user or graphical.

    An image as found may mask what no boot needs, such as timers of upgrades.
    """
    links = "find /etc/systemd/system /etc/systemd/user \\( -lname /dev/null -o -type f -empty \\) 2>/dev/null"
    masked = {path.rpartition("/")[2] for path in _lines(host.run(links, pure=True).stdout)}
    family = plan["node"].get("family", "ec2")
    if plan.get("origin") == OBSERVED and family == "ec2":
        family = OBSERVED
    wrong = sorted(f"{name} is masked" for name in masked if not base_ami.is_harmless_mask(name, family))
    default = host.run("readlink /etc/systemd/system/default.target", pure=True).stdout.strip()
    if default and default.rpartition("/")[2] not in ("multi-user.target", "graphical.target"):
        wrong.append(f"default.target is {default}")
    marks = "ls -d /.autorelabel /forcefsck /fastboot /etc/nologin /etc/rc.local.d /etc/inittab.d 2>/dev/null"
    wrong += _lines(host.run(marks, pure=True).stdout)
    observe.nothing(wrong, "masked units, and files that change what a boot does")


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_no_file_is_diverted(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """No local diversion or override of dpkg, and no link of alternatives by hand, changes what packages install."""
    if plan["os"]["family"] != "debian":
        observe("rpm diverts no files", "no local diversion")
        return
    diverted = output(host, "dpkg-divert --list")
    local = [line for line in _lines(diverted) if line.startswith("local diversion") and not _UNMINIMIZED.search(line)]
    modes = [line.split(None, 3) for line in _lines(host.run("dpkg-statoverride --list").stdout)]
    opened = [
        f"override of {row[3]}: {row[0]}:{row[1]} {row[2]}"
        for row in modes
        if len(row) == 4 and (int(row[2], 8) & 0o6002) and row[3].rpartition("/")[2] not in footprints.SETUID
    ]
    observe.nothing([*local, *opened], "local diversions and overrides")


# Ubuntu's minimal images replace man until `unminimize`.
_UNMINIMIZED = re.compile(r"/usr/bin/man\b|/usr/share/(?:man|doc)\b")


@pytest.mark.tier("T0")
def test_next_boot_s_command_line_is_safe(host: Any, observe: Observe) -> None:
    """The boot loader's configuration replaces no init, disables no protection, no driver and not cloud-init."""
    texts = [
        *_settings(host, "/etc/default/grub /etc/default/grub.d /etc/kernel/cmdline /etc/kernel/cmdline.d"),
        *_settings(host, "/boot/loader/entries /boot/grub/grub.cfg /boot/grub2/grub.cfg /etc/grub.d/40_custom"),
    ]
    wrong = set()
    for path, text in texts:
        if (
            not re.match(r"(?:GRUB_CMDLINE\w*=|options\s|linux(?:16|efi)?\s|set kernelopts=)", text)
            and "cmdline" not in path
        ):
            continue
        # The entry for recovery of grub.cfg has options that no other boot has.
        if re.match(r"linux(?:16|efi)?\s", text) and re.search(r"\s(?:single|recovery)\b", text):
            continue
        words = text.partition("=")[2].strip("\"'").split() if text.startswith("GRUB") else text.split()
        wrong |= {f"{path}: {word}" for word in words if base_ami.is_unsafe_option(word.strip("\"'"))}
    observe.nothing(sorted(wrong), "kernel options")


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_next_boot_takes_a_kernel_that_is_there(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """GRUB's default and its saved entry boot an installed kernel, of the planned series, and not a recovery entry.

    Without a recipe, a default that names no entry is UNPROVEN: GRUB then boots the first one.
    """
    found = boot_entries.choices(host)
    if found is None:
        unproven("no configuration of GRUB in /boot/grub or /boot/grub2")
    observe([f"{choice.where}={choice.value}" for choice in found], "entries with an installed kernel")
    existing = _existing(host, sorted({path for choice in found if choice.entry for path in choice.entry.files}))
    wrong = [f"{choice.where}={choice.value}: {why}" for choice in found if (why := _misses(choice, plan, existing))]
    observe.nothing(sorted(set(wrong)), "boot entries that GRUB takes")
    if unknown := sorted({f"{choice.where}={choice.value}" for choice in found if choice.entry is None}):
        unproven(f"no entry of this name or number was found, so GRUB may boot the first: {', '.join(unknown)}")


def _existing(host: Any, paths: list[str]) -> set[str]:
    """Files of boot entries that exist. Where /boot is a file system of its own, their paths lack /boot."""
    lines = "\n".join(f"test -e {name} -o -e /boot{name} && echo {name}; true" for name in map(shlex.quote, paths))
    return set(_lines(host.run(lines).stdout)) if paths else set()


def _misses(choice: boot_entries.Choice, plan: PlanDocument, existing: set[str]) -> str:
    """Why the chosen entry does not boot what was planned; "" if it does, or may."""
    entry, planned = choice.entry, "kernel" in plan and plan.get("origin") != OBSERVED
    if entry is None:
        return "no entry of this name or number" if planned and choice.value != "0" else ""
    if entry.is_recovery:
        return f"{entry.title or entry.id} is for recovery"
    missing = [path for path in entry.files if path.startswith("/") and "$" not in path and path not in existing]
    if missing:
        return f"{', '.join(missing)} does not exist"
    if planned and entry.release and not kernel.is_planned(entry.release, plan["kernel"]):
        return f"kernel {entry.release} is not of the planned series"
    return ""


@pytest.mark.tier("T0")
def test_folders_of_all_users_are_safe(host: Any, observe: Observe) -> None:
    """/tmp, /var/tmp and /dev/shm are root's and sticky; only root can write the system's folders and accounts."""
    shown = host.run(
        f"stat -c '%a %U %G %n' {' '.join(_OF_ROOT)} /tmp /var/tmp 2>/dev/null;"
        ' grep -q " /dev/shm " /proc/mounts && stat -c "%a %U %G %n" /dev/shm'
    ).stdout
    rows = {row[3]: (int(row[0], 8), row[1], row[2]) for row in (line.split(None, 3) for line in _lines(shown))}
    wrong = []
    for path, (mode, owner, group) in rows.items():
        expected = 0o1777 if path in _SHARED else 0
        is_open = (
            mode & 0o1777 != expected if expected else bool(mode & 0o002) or (bool(mode & 0o020) and group != "root")
        )
        secret = path in _SECRET and mode & 0o007
        if owner != "root" or is_open or secret:
            wrong.append(f"{path}: {owner}:{group} {mode:o}")
    observe(len(rows), "owned by root, with the modes of a new system")
    observe.nothing(sorted(wrong), "folders and files that others can write or read")


_SHARED = ("/tmp", "/var/tmp", "/dev/shm")
_SECRET = ("/etc/shadow", "/etc/gshadow", "/etc/shadow-", "/etc/gshadow-", "/etc/sudoers")
_OF_ROOT = (
    "/", "/etc", "/usr", "/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib64", "/usr/libexec", "/boot", "/opt", "/root",
    "/home", "/var", "/var/lib", "/etc/ssh", "/etc/sudoers.d", "/etc/pam.d", "/etc/systemd", "/etc/systemd/system",
    "/etc/cron.d", "/etc/profile.d", "/etc/passwd", "/etc/group", "/etc/ld.so.conf.d", "/etc/cloud", *_SECRET,
)  # fmt: skip


@pytest.mark.tier("T0")
def test_no_other_host_is_trusted(host: Any, observe: Observe) -> None:
    """No file lets users of other hosts log in without a key, and Docker's API does not listen on the network."""
    homes = "$(cut -d: -f6 /etc/passwd | sort -u | sed 's|$|/.rhosts|p; s|rhosts$|shosts|')"
    found = host.run(
        f"for f in /etc/hosts.equiv /etc/ssh/shosts.equiv {homes}; do "
        'if [ -e "$f" ] || [ -L "$f" ]; then echo "$f"; fi; done', pure=True
    ).stdout  # fmt: skip
    sockets = host.run(
        "grep -rsHE '(tcp://|fd://.*tcp://)' /etc/docker/daemon.json /etc/default/docker /etc/sysconfig/docker"
        " /etc/systemd/system/docker.service.d /etc/systemd/system/docker.socket.d", pure=True
    ).stdout  # fmt: skip
    observe.nothing(sorted({*_lines(found), *_lines(sockets)}), "what lets other hosts in")
