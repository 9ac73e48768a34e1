"""The image has no traces of the build, and identities are unique to each instance."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from validator import file_account
from validator.observe import Observe, output, unproven
from validator.plan import OBSERVED
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest, packages

_INSTANCE_ID = r"\bi-([0-9a-f]{17}|[0-9a-f]{8})\b"
# An access key id of IAM: long-term (AKIA) or of a session (ASIA).
# Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
ACCESS_KEY = "(^|[^A-Z0-9])A[KS]IA[A-Z0-9]{16}([^A-Z0-9]|$)"
# A secret access key, 40 characters, where the SDKs, the CLI's output and a shell's environment name it.
# Source: https://docs.aws.amazon.com/cli/latest/userguide/cli-configure-envvars.html
SECRET_KEY = (
    "(aws_secret_access_key|AWS_SECRET_ACCESS_KEY|SecretAccessKey)[^A-Za-z0-9/+]{1,6}"
    "[A-Za-z0-9/+]{40}([^A-Za-z0-9/+]|$)"
)
# Tokens with a vendor's prefix: GitHub, GitLab, Hugging Face, NVIDIA (NGC), npm, PyPI, Docker.
# Sources: https://docs.github.com/en/authentication/keeping-your-account-and-data-secure/about-authentication-to-github,
# https://docs.gitlab.com/security/tokens/#token-prefixes, https://huggingface.co/docs/hub/security-tokens,
# https://docs.nvidia.com/ngc/latest/ngc-user-guide.html, https://docs.npmjs.com/about-access-tokens,
# https://pypi.org/help/#apitoken, https://docs.docker.com/security/access-tokens/
TOKEN = (
    "(^|[^A-Za-z0-9])(gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{50,}|glpat-[A-Za-z0-9_-]{20}"
    "|hf_[A-Za-z]{34}|nvapi-[A-Za-z0-9_-]{40,}"
    "|npm_[A-Za-z0-9]{36}|pypi-AgE[A-Za-z0-9_-]{20,}|dckr_pat_[A-Za-z0-9_-]{20,})"
)
# A URL with a password, as pip, apt, npm and git accept it. Placeholders of examples are excluded.
_SECRET_IN_URL = "https?://[A-Za-z0-9._~%+-]+:[A-Za-z0-9._~%+-]{6,}@"
_EXAMPLES = re.compile(r":(pass\w*|secret|example\w*|your\w*|changeme|x+)@$", re.IGNORECASE)
# Folders of the image that are searched for keys. A running machine may have data of others mounted there, which is
# not the image's and can be without end: of a network, and anything on /mnt and /srv.
KEY_DIRECTORIES = (
    "$(for d in /etc /root /home /opt/aws /var/lib/cloud /usr/local/bin /tmp /var/tmp"
    " $(for m in /mnt /srv; do mountpoint -q $m || echo $m; done);"
    " do case $(stat -f -c %T $d 2>/dev/null) in"
    " '' | nfs* | lustre | fuse* | cifs | smb* | ceph | gpfs | afs) ;; *) echo $d ;; esac; done)"
)
_KEY_FILES = "-xdev -type f -size -16384k"  # longer ones are archives and data
# Credential files in home directories: AWS, curl, git, containers, PostgreSQL, s3cmd, Hugging Face, kubectl.
_CREDENTIAL_FILES = (
    ".aws/credentials", ".netrc", ".git-credentials", ".docker/config.json", ".pgpass", ".s3cfg", ".boto",
    ".cache/huggingface/token", ".huggingface/token", ".kube/config",
)  # fmt: skip
# One rule a line, without comments ("#1000" is a user, "#include" is not a comment).
SUDO_RULES = (
    r"cat /etc/sudoers /etc/sudoers.d/* 2>/dev/null | sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}'"
    " | grep -E '^[[:space:]]*([^#[:space:]]|#[0-9])'"
)
_HOMES = "$(getent passwd | cut -d: -f6 | sort -u)"
# Of Docker up to 24, and since 23: its daemon makes them at its first start.
DOCKER = "/etc/docker/key.json /var/lib/docker/engine-id"
# NetworkManager's secret, from which it derives addresses: https://networkmanager.dev/docs/api/latest/NetworkManager.html
NETWORK_MANAGER = "/var/lib/NetworkManager/secret_key"
# systemd saves a seed at each shutdown, after a clean-up that removed the last one.
RANDOM_SEED = "/var/lib/systemd/random-seed /boot/efi/loader/random-seed"
# What identifies one machine, or is its secret.
# systemd's credential secret and random seed: https://systemd.io/BUILDING_IMAGES/
# Random seed and leases: the clean-up script of EC2 Image Builder,
# https://docs.aws.amazon.com/imagebuilder/latest/userguide/security-best-practices.html
# SSM: key pair and id of a registered node, agent/managedInstances/registration of aws/amazon-ssm-agent.
# ECS: machines with the state of another do not join a cluster, https://github.com/aws/amazon-ecs-agent/issues/2738
STATE_OF_A_MACHINE = (
    "/var/lib/systemd/credential.secret"
    " /var/lib/amazon/ssm/registration /var/lib/amazon/ssm/Vault/Store/*RegistrationKey"
    " /var/lib/ecs/data/* /var/lib/dhcp/*.lease* /var/lib/dhclient/*.lease* /var/lib/NetworkManager/*.lease"
    " /var/lib/systemd/network/dhcp-server-lease/*"
)
# Keys of the test suites of Python, Ruby, Node and Go are in everybody's copy of those.
_PUBLIC_KEYS = re.compile(r"/(?:site-packages|dist-packages|node_modules|gems|python3[\d.]*/test|go/src|golang)/")


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_only_the_launch_key_lets_in(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Every authorized key is the key pair of this launch. A key of the build would open every instance."""
    launch = {key.split()[1] for key in machine.metadata["public-keys"] if len(key.split()) > 1}
    keys = host.run(
        f"for h in {_HOMES}; do for f in $h/.ssh/authorized_keys $h/.ssh/authorized_keys2; do"
        ' [ -f "$f" ] && sed "s|^|$f: |" "$f"; done; done'
    )
    rows = [row for row in _lines(keys.stdout) if not row.partition(": ")[2].lstrip().startswith("#")]
    unexpected = [_without_blob(row) for row in rows if not launch & set(row.split())]
    observe([_without_blob(row) for row in rows], f"{len(launch)} launch key")
    if unexpected:
        observe.fail(f"authorized keys other than the launch key: {'; '.join(unexpected)}")
    if not launch:
        unproven("the instance was launched without a key pair")
    if not rows:
        observe.fail("no user has the launch key: cloud-init did not install it")


def _without_blob(row: str) -> str:
    return re.sub(r"(AAAA\S{8})\S+(\S{6})", r"\1…\2", row)


def test_host_keys_are_this_instances(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """The SSH host keys were generated on this instance. With shared keys one instance can impersonate another."""
    listed = host.run("stat -c '%Y %n' /etc/ssh/ssh_host_*_key").stdout
    times = {name: float(created) for created, name in (line.split(None, 1) for line in _lines(listed))}
    if not times:
        observe.fail("/etc/ssh has no SSH host keys")
    old = sorted(name for name, created in times.items() if created < machine.first_boot_time - 1)
    observe(sorted(times), "generated after the first cloud-init run of this instance")
    if old:
        observe.fail(f"SSH host keys older than this instance: {', '.join(old)}")


def test_machine_id_is_this_instances(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """The machine id was generated at the first boot of this instance. Journals and DHCP leases depend on it."""
    text = host.run("cat /etc/machine-id").stdout.strip()
    observe(text, "32 hex digits, generated at the first boot")
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        observe.fail(f"/etc/machine-id: expected 32 hex digits, got {text!r}")
    created = float(output(host, "stat -c %Y /etc/machine-id"))
    # systemd writes it before cloud-init runs; at the first boot after the kernel started.
    first = machine.first_boot_time
    earliest = machine.boot_time - 2 if machine.boot_time <= first else first - 600
    if created < earliest:
        observe.fail(f"/etc/machine-id is {first - created:.0f} s older than this instance's first cloud-init run")


def test_docker_identity_is_this_instances(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Docker's own key and id were generated on this instance. From the build, all instances would share them."""
    listed = host.run(f"stat -c '%Y %n' {DOCKER} 2>/dev/null").stdout
    times = {name: float(created) for created, name in (line.split(None, 1) for line in _lines(listed))}
    old = sorted(
        name for name, created in times.items() if created < min(machine.first_boot_time, machine.boot_time) - 2
    )
    observe(sorted(times), "generated on this instance, where Docker has run")
    if old:
        observe.fail(f"Docker's identity is older than this instance: {', '.join(old)}")


def test_state_is_of_this_instance(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """No registration, lease, secret or random seed is older than this instance. All instances would share it.

    An agent of SSM or ECS with the registration of another machine does not register this one.
    """
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    older = state_files(host, f"{STATE_OF_A_MACHINE} {RANDOM_SEED} {NETWORK_MANAGER}", f"! -newermt @{since}")
    observe.nothing(older, "state of another machine, older than this instance")


def state_files(host: Any, patterns: str, filters: str = "") -> list[str]:
    """Files with content at these paths."""
    listed = host.run(f"find -L {patterns} -maxdepth 1 -type f -size +0 {filters} 2>/dev/null")
    return sorted(_lines(listed.stdout))


def test_cloud_init_ran_for_this_instance(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """cloud-init ran only for this instance id and has no state of the build instance."""
    instances = host.run("ls -1 /var/lib/cloud/instances").stdout.split()
    observe.same(sorted(instances), [machine.instance_id], "instances in cloud-init's state")


@pytest.mark.tier("T0")
def test_no_shell_history(host: Any, observe: Observe) -> None:
    """No user has a shell history. It shows commands of the build and may contain credentials."""
    listed = host.run(
        f"find -H {_HOMES} -xdev -maxdepth 1 -type f -size +0"
        r" \( -name '.*_history*' -o -name '.*hist' -o -name .viminfo -o -name .wget-hsts -o -name '.*history' \)"
        f" 2>/dev/null; for h in {_HOMES}; do find -H $h/.local $h/.config $h/.cache $h/.ipython -xdev -maxdepth 4"
        r" -type f -size +0 \( -name '*_history' -o -name '*history.txt' -o -name history -o -name 'history.sqlite*'"
        r" \); done 2>/dev/null"
    )
    observe.nothing(_lines(listed.stdout), "shell histories")


@pytest.mark.tier("T0")
def test_no_build_tools_left(host: Any, observe: Observe) -> None:
    """No working files of Ansible or Packer are left. They contain variables and scripts of the build."""
    listed = host.run(
        f"ls -d /tmp/packer* /tmp/ansible* /var/tmp/packer* /root/.ansible; for h in {_HOMES};"
        ' do ls -d "$h/.ansible" "$h/~*"; done 2>/dev/null'
    )
    observe.nothing(sorted(set(_lines(listed.stdout))), "working files of the build")


def test_no_builder_logs(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """No log file is older than this instance. Logs of the build were removed."""
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    listed = host.run(f"find /var/log -xdev -type f -size +0 ! -newermt @{since} | sort")
    observe.nothing(_lines(listed.stdout), "log files older than this instance")


@pytest.mark.tier("T0")
def test_no_foreign_journal(host: Any, observe: Observe) -> None:
    """The journal has only entries of this machine id."""
    machine_id = host.run("cat /etc/machine-id").stdout.strip()
    journals = host.run("ls -1 /var/log/journal 2>/dev/null").stdout.split()
    observe.nothing(
        [name for name in journals if re.fullmatch(r"[0-9a-f]{32}", name) and name != machine_id],
        "journals of other machine ids",
    )


def test_no_foreign_instance_id(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """No configuration, log or state file names another instance, such as the build instance."""
    listed = host.run(
        "grep -rIoE --exclude-dir=instances '\\bi-([0-9a-f]{17}|[0-9a-f]{8})\\b'"
        " /etc /var/log /var/lib/cloud /var/lib/amazon /opt/aws 2>/dev/null | sort -u | head -n 200"
    )
    others = [row for row in _lines(listed.stdout) if row.rpartition(":")[2] != machine.instance_id]
    observe.nothing(others, "ids of other instances")


@pytest.mark.tier("T0")
def test_no_password_lets_in(host: Any, observe: Observe) -> None:
    """No account has a password, not even an empty one, and no group or former state of the files has one.

    Logins to EC2 instances use keys. A hash in /etc/shadow- can be tried offline, and may be of other machines, too.
    """
    rows = [line.split(":") for line in _lines(output(host, "cut -d: -f1,2 /etc/shadow | sed 's/:\\$.*/:hash/'"))]
    observe.nothing([name for name, secret in rows if not re.match(r"[!*]", secret)], "accounts with a usable password")
    hashes = host.run(
        "grep -HsoE '^[^:]*:([$][0-9a-z]|[./A-Za-z0-9]{13}:)' /etc/shadow- /etc/gshadow /etc/gshadow- | cut -d: -f1,2"
    )
    observe.nothing(_lines(hashes.stdout), "passwords of groups, and in former states of the account files")


@pytest.mark.tier("T0")
def test_only_root_has_user_id_0(host: Any, observe: Observe) -> None:
    """Only root has the user id 0. Any other account with it has all rights of root."""
    accounts = output(host, "awk -F: '$3 == 0 {print $1}' /etc/passwd").split()
    observe.same(accounts, ["root"], "accounts with the user id 0")


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_former_accounts_are_known(
    host: Any, plan: PlanDocument, request: pytest.FixtureRequest, observe: Observe
) -> None:
    """The former state of passwd and group names no account or group that is gone: a build made it and took it away.

    The base AMI's own former state may. Of an image as found it is not known whose it is.
    """
    rows = [line.split(":") for line in _lines(host.run(_FORMER).stdout)]
    gone = {f"{path}: {name}": path for path, name, _ in rows}
    roots = [f"{path}: {name}" for path, name, number in rows if path == "/etc/passwd-" and number == "0"]
    observe.nothing(roots, "former accounts with the user id 0")
    if gone and plan.get("origin") == OBSERVED:
        unproven(f"former accounts and groups, perhaps of a package: {', '.join(gone)}")
    if gone:
        option = request.config.getoption
        build = option("base_inventory") or (option("plan") and option("plan").parent)
        of_base = _base_files(host, build, ", ".join(gone))
        observe.nothing([row for row, path in gone.items() if path not in of_base], "former accounts and groups")


_FORMER = """\
for f in passwd group; do awk -F: -v f=/etc/$f- '
NR == FNR { now[$1] = 1; next } NF > 2 && !($1 in now) { print f ":" $1 ":" $3 }' /etc/$f /etc/$f-; done 2>/dev/null"""


def _base_files(host: Any, build: Path | None, gone: str) -> set[str]:
    """Those of passwd- and group- that are as in the base AMI. UNPROVEN where its inventory is missing."""
    try:
        entries = file_account.find_base(host, build).inventory.entries
    except file_account.NotTaken as reason:
        unproven(f"former accounts and groups, perhaps the base AMI's: {gone} ({reason})")
    rows = (line.split() for line in _lines(host.run("sha256sum /etc/passwd- /etc/group-").stdout))
    return {path for digest, path in rows if path in entries and entries[path].sha256 == digest}


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_subordinate_ids_are_of_users(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Subordinate ids (subuid(5)) begin above the ids of accounts, and on plain images they are of users.

    With ids of accounts, whoever has them is those accounts in a container, and writes their files.
    """
    rows = [line.split(":") for line in _lines(host.run(_SUBORDINATE).stdout)]
    rows = [row for row in rows if len(row) == 4 and row[2].isdecimal()]
    observe([":".join(row) for row in rows], "ranges of users, from 65536 on")
    observe.nothing([":".join(row) for row in rows if int(row[2]) < _FIRST_SUBORDINATE], "ranges with ids of accounts")
    if plan.get("origin") == OBSERVED or plan["node"].get("family", "ec2") != "ec2":
        return
    users = host.run("awk -F: '$3 >= 1000 && $3 < 60000 {print $1; print $3}' /etc/passwd").stdout.split()
    observe.nothing([":".join(row) for row in rows if row[1] not in {*users, *_OF_CONTAINERS}], "ranges of no user")


_SUBORDINATE = "grep -HsE '^[^#[:space:]]' /etc/subuid /etc/subgid"
_FIRST_SUBORDINATE = 65536  # useradd begins at 100000 or later (login.defs, SUB_UID_MIN)
# Docker's user namespaces, Podman's, LXD's; they need no account of this name.
_OF_CONTAINERS = ("root", "dockremap", "containers", "lxd")


def test_sshd_refuses_root_and_empty_passwords(host: Any, observe: Observe) -> None:
    """The effective sshd configuration allows root at most by key, and no empty password.

    Password authentication is harmless while no account has a password (test_no_password_lets_in).
    """
    shown = output(host, "PATH=$PATH:/usr/sbin sshd -T 2>/dev/null")
    settings = dict(line.partition(" ")[::2] for line in _lines(shown))
    root, empty = (settings.get(name, "not set") for name in ("permitrootlogin", "permitemptypasswords"))
    observe(
        {"permitrootlogin": root, "permitemptypasswords": empty},
        "permitrootlogin without a password, permitemptypasswords no",
    )
    if root not in ("no", "prohibit-password", "without-password", "forced-commands-only"):
        observe.fail(f"sshd: PermitRootLogin: expected no or prohibit-password, got {root}")
    if empty != "no":
        observe.fail(f"sshd: PermitEmptyPasswords: expected no, got {empty}")


@pytest.mark.tier("T0")
def test_no_credentials_left(host: Any, observe: Observe) -> None:
    """No file contains an AWS access key or other credentials. Every user of the image could read them."""
    by_name = host.run(
        f"for h in {_HOMES}; do for f in {' '.join(_CREDENTIAL_FILES)};"
        ' do [ -s "$h/$f" ] && [ "$h" != / ] && echo "$h/$f"; done; done'
    )
    by_content = host.run(
        f"find {KEY_DIRECTORIES} {_KEY_FILES}"
        f" -exec grep -IlE -e '{ACCESS_KEY}' -e '{SECRET_KEY}' -e '{TOKEN}' {{}} + 2>/dev/null;"
        # debconf keeps answers to questions for passwords here until the package has used them.
        " grep -lsE '^Value: .' /var/cache/debconf/passwords.dat"
    )
    addresses = host.run(
        f"{{ grep -rIoE '{_SECRET_IN_URL}' /etc; for h in {_HOMES}; do [ \"$h\" = / ] || grep -sIoE"
        f" '{_SECRET_IN_URL}' $h/.[a-z]* $h/.config/*/* /dev/null; done; }} 2>/dev/null"
    )
    files = {*_lines(by_name.stdout), *_lines(by_content.stdout)}
    files |= {line.partition(":")[0] for line in _lines(addresses.stdout) if not _EXAMPLES.search(line)}
    observe.nothing(sorted(files), "credentials")


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_only_login_user_has_passwordless_sudo(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Only the login user has sudo without a password, and ssm-user, which the SSM agent adds.

    Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager.html
    """
    rules = [" ".join(line.split()) for line in _lines(host.run(SUDO_RULES).stdout)]
    allowed = {"root", "ssm-user", plan["os"]["ssh_user"]}
    others = sorted({who for rule in rules for who in roots(rule)} - allowed)
    observe(rules, f"only {', '.join(sorted(allowed))}")
    if any(re.match(r"Defaults\b[^#]*!authenticate", rule) for rule in rules):
        observe.fail("sudo never asks for a password (Defaults !authenticate)")
    if others:
        observe.fail(f"sudo without a password: expected {', '.join(sorted(allowed))}, got also {', '.join(others)}")


def roots(rule: str) -> list[str]:
    """Users to whom a rule gives every command as root without a password: `who host = (whom) NOPASSWD: ALL`."""
    head, _, rights = rule.partition("=")
    who = re.fullmatch(r"([^\s,]+(?: ?, ?[^\s,]+)*) \S+ ?", head)
    whom = re.match(r" ?\(([^):]*)", rights)
    free = re.search(r"\bNOPASSWD ?: ?(?:\w+ ?: ?)*ALL\b", rights)
    as_root = whom is None or {"ALL", "root", "#0"} & set(re.split(" ?, ?", whom[1].strip()))
    alias = re.match(r"Defaults\b|\w+_Alias\b", rule)
    return re.split(" ?, ?", who[1]) if who and free and as_root and not alias else []


@pytest.mark.tier("T0")
def test_no_crontab_left(host: Any, observe: Observe) -> None:
    """No user has a crontab. Packages use /etc/cron.d, so a crontab is a leftover of the build."""
    listed = host.run(
        "find /var/spool/cron -type f -size +0 -exec grep -lE '^[[:space:]]*[^#[:space:]]' {} + 2>/dev/null"
    )
    observe.nothing(_lines(listed.stdout), "crontabs")


@pytest.mark.tier("T0")
def test_no_library_is_preloaded(host: Any, observe: Observe) -> None:
    """/etc/ld.so.preload is missing or empty. Its libraries are loaded into every program, root's too (ld.so(8))."""
    listed = host.run("grep -v '^[[:space:]]*$' /etc/ld.so.preload")
    observe.nothing(_lines(listed.stdout), "libraries in /etc/ld.so.preload")


@pytest.mark.tier("T0")
def test_no_package_cache(host: Any, observe: Observe) -> None:
    """No downloaded package is left. It takes space on every volume."""
    listed = host.run(
        "find /var/cache/apt/archives /var/cache/yum /var/cache/dnf /var/cache/zypp"
        r" -type f \( -name '*.deb' -o -name '*.rpm' \) 2>/dev/null"
    )
    observe.nothing(_lines(listed.stdout), "cached packages")


def test_no_private_key_of_the_build(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """No private key is older than this instance, such as the DKMS signing key. All instances would share it."""
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    observe.nothing(private_keys(host, f"! -newermt @{since}"), "private keys older than this instance")


def private_keys(host: Any, filters: str = "") -> list[str]:
    """Files with a private key, by their names or in a folder .ssh; without those that everybody has."""
    listed = host.run(
        "find /etc /root /home /opt /srv /usr/local /var/lib -xdev -type f -size -64k"
        r" \( -name '*.key' -o -name '*.pem' -o -name '*.priv' -o -name 'id_*' -o -path '*/.ssh/*' \)"
        f" {filters} -exec grep -lIE -e '-----BEGIN ([A-Z0-9]+ )*PRIVATE KEY' {{}} + 2>/dev/null"
    )
    found = sorted(path for path in _lines(listed.stdout) if not _PUBLIC_KEYS.search(path))
    return packages.of_no_package(host, found)
