"""Nothing of the build is left in the image, and what must be unique to an instance is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.machine import MachineUnderTest
from validator.observe import Observe, output, unproven

_INSTANCE_ID = r"\bi-([0-9a-f]{17}|[0-9a-f]{8})\b"
# An access key's id as IAM makes it: long-lived (AKIA) or of a session (ASIA).
# Source: https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html
_ACCESS_KEY = "(^|[^A-Z0-9])A[KS]IA[A-Z0-9]{16}([^A-Z0-9]|$)"
# Tokens that say by their own beginning whose they are: GitHub's, GitLab's, Hugging Face's, NVIDIA's (NGC).
# Sources: https://docs.github.com/en/authentication/keeping-your-account-and-data-secure/about-authentication-to-github,
# https://docs.gitlab.com/security/tokens/#token-prefixes, https://huggingface.co/docs/hub/security-tokens,
# https://docs.nvidia.com/ngc/latest/ngc-user-guide.html
_TOKEN = (
    "(^|[^A-Za-z0-9])(gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{50,}|glpat-[A-Za-z0-9_-]{20}"
    "|hf_[A-Za-z]{34}|nvapi-[A-Za-z0-9_-]{40,})"
)
# An address with a password in it, as pip, apt, npm and git take one. What stands for a value in an example is none.
_SECRET_IN_ADDRESS = "https?://[A-Za-z0-9._~%+-]+:[A-Za-z0-9._~%+-]{6,}@"
_EXAMPLES = re.compile(r":(pass\w*|secret|example\w*|your\w*|changeme|x+)@$", re.IGNORECASE)
_WHERE_KEYS_LIE = "/etc /root /home /opt/aws /var/lib/cloud /usr/local/bin"
# Where tools keep logins, in a home: AWS's, curl's and git's, containers', PostgreSQL's, s3cmd's, Hugging Face's.
_LOGINS = (
    ".aws/credentials", ".netrc", ".git-credentials", ".docker/config.json", ".pgpass", ".s3cfg", ".boto",
    ".cache/huggingface/token", ".huggingface/token", ".kube/config",
)  # fmt: skip
# Rules on one line each, without comments ("#1000" is a user, "#include" no comment).
_SUDO_RULES = (
    r"cat /etc/sudoers /etc/sudoers.d/* 2>/dev/null | sed -e ':a' -e '/\\$/{N;s/\\\n//;ba' -e '}'"
    " | grep -E '^[[:space:]]*([^#[:space:]]|#[0-9])'"
)
_HOMES = "$(getent passwd | cut -d: -f6 | sort -u)"


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def test_only_the_launch_key_lets_in(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Every authorized key is the one of this launch: a key left by the build would open every instance."""
    launch = {key.split()[1] for key in machine.metadata["public-keys"] if len(key.split()) > 1}
    found = host.run(
        f"for h in {_HOMES}; do for f in $h/.ssh/authorized_keys $h/.ssh/authorized_keys2; do"
        ' [ -f "$f" ] && sed "s|^|$f: |" "$f"; done; done'
    )
    rows = [row for row in _lines(found.stdout) if not row.partition(": ")[2].lstrip().startswith("#")]
    strange = [_without_blob(row) for row in rows if not launch & set(row.split())]
    observe([_without_blob(row) for row in rows], f"{len(launch)} launch key")
    if strange:
        observe.fail(f"authorized keys that are not this launch's: {'; '.join(strange)}")
    if not launch:
        unproven("the instance was launched without a key pair")
    if not rows:
        observe.fail("no user has the launch key: cloud-init did not install it")


def _without_blob(row: str) -> str:
    return re.sub(r"(AAAA\S{8})\S+(\S{6})", r"\1…\2", row)


def test_host_keys_are_this_instances(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """The SSH host keys were made on this instance: shared ones let one instance pass itself off as another."""
    listed = host.run("stat -c '%Y %n' /etc/ssh/ssh_host_*_key").stdout
    keys = {name: float(made) for made, name in (line.split(None, 1) for line in _lines(listed))}
    if not keys:
        observe.fail("sshd has no host keys in /etc/ssh")
    old = sorted(name for name, made in keys.items() if made < machine.first_boot_time - 1)
    observe(sorted(keys), "made after cloud-init first ran for this instance")
    if old:
        observe.fail(f"host keys older than this instance: {', '.join(old)}")


def test_machine_id_is_this_instances(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """machine-id was made at this instance's first boot: a shared one mixes up journals, DHCP leases and agents."""
    text = host.run("cat /etc/machine-id").stdout.strip()
    observe(text, "32 hex digits, made at the first boot")
    if not re.fullmatch(r"[0-9a-f]{32}", text):
        observe.fail(f"/etc/machine-id holds {text!r}, expected 32 hex digits")
    made = float(output(host, "stat -c %Y /etc/machine-id"))
    # systemd writes it before cloud-init runs; on the first boot that is after the kernel's start.
    first = machine.first_boot_time
    earliest = machine.boot_time - 2 if machine.boot_time <= first else first - 600
    if made < earliest:
        observe.fail(f"/etc/machine-id is {first - made:.0f} s older than this instance's first cloud-init run")


def test_cloud_init_ran_for_this_instance(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """cloud-init has run for this instance id and knows no other: the builder's state is gone."""
    known = host.run("ls -1 /var/lib/cloud/instances").stdout.split()
    observe.same(sorted(known), [machine.instance_id], "instances that cloud-init knows")


@pytest.mark.tier("T0")
def test_no_shell_history(host: Any, observe: Observe) -> None:
    """No user has a history: it tells how the image was built, at worst with credentials."""
    found = host.run(
        f"find -H {_HOMES} -xdev -maxdepth 1 -type f -size +0"
        r" \( -name '.*_history' -o -name '.*hist' -o -name .viminfo -o -name .wget-hsts \) 2>/dev/null"
    )
    observe.nothing(_lines(found.stdout), "histories")


@pytest.mark.tier("T0")
def test_no_build_tools_left(host: Any, observe: Observe) -> None:
    """Ansible and Packer left no working files: they hold variables and scripts of the build."""
    found = host.run(
        f"ls -d /tmp/packer* /tmp/ansible* /var/tmp/packer* /root/.ansible; for h in {_HOMES};"
        ' do ls -d "$h/.ansible" "$h/~*"; done 2>/dev/null'
    )
    observe.nothing(sorted(set(_lines(found.stdout))), "left by the build")


def test_no_builder_logs(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """No log is older than this instance: the builder's logs are gone."""
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    found = host.run(f"find /var/log -xdev -type f -size +0 ! -newermt @{since} | sort")
    observe.nothing(_lines(found.stdout), "logs written before this instance's first boot")


@pytest.mark.tier("T0")
def test_no_foreign_journal(host: Any, observe: Observe) -> None:
    """The journal holds this machine's entries alone."""
    mine = host.run("cat /etc/machine-id").stdout.strip()
    found = host.run("ls -1 /var/log/journal 2>/dev/null").stdout.split()
    observe.nothing(
        [name for name in found if re.fullmatch(r"[0-9a-f]{32}", name) and name != mine], "foreign journals"
    )


def test_no_foreign_instance_id(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """No file of the system names another instance: what the builder was must not be taken for what this one is."""
    found = host.run(
        "grep -rIoE --exclude-dir=instances '\\bi-([0-9a-f]{17}|[0-9a-f]{8})\\b'"
        " /etc /var/log /var/lib/cloud /var/lib/amazon /opt/aws 2>/dev/null | sort -u | head -n 200"
    )
    strange = [row for row in _lines(found.stdout) if row.rpartition(":")[2] != machine.instance_id]
    observe.nothing(strange, "other instances' ids")


@pytest.mark.tier("T0")
def test_no_password_lets_in(host: Any, observe: Observe) -> None:
    """No account has a password, least of all an empty one: EC2 lets in by key alone."""
    rows = [line.split(":") for line in _lines(output(host, "cut -d: -f1,2 /etc/shadow | sed 's/:\\$.*/:hash/'"))]
    observe.nothing([name for name, secret in rows if not re.match(r"[!*]", secret)], "accounts with a usable password")


@pytest.mark.tier("T0")
def test_root_alone_is_root(host: Any, observe: Observe) -> None:
    """No other account has the user id 0: whoever logs in to it is root, whatever its name."""
    found = output(host, "awk -F: '$3 == 0 {print $1}' /etc/passwd").split()
    observe.same(found, ["root"], "accounts with the user id 0")


def test_sshd_keeps_root_and_empty_passwords_out(host: Any, observe: Observe) -> None:
    """sshd, by its own word, lets root in by key at most, and nobody without a secret.

    That a password is asked for at all does no harm where no account has one (the check before this one).
    """
    shown = output(host, "PATH=$PATH:/usr/sbin sshd -T 2>/dev/null")
    settings = dict(line.partition(" ")[::2] for line in _lines(shown))
    found = {name: settings.get(name, "not said") for name in ("permitrootlogin", "permitemptypasswords")}
    observe(found, "permitrootlogin without a password, permitemptypasswords no")
    if found["permitrootlogin"] not in ("no", "prohibit-password", "without-password", "forced-commands-only"):
        observe.fail(f"sshd lets root in: PermitRootLogin {found['permitrootlogin']}")
    if found["permitemptypasswords"] != "no":
        observe.fail(f"sshd lets accounts in without a secret: PermitEmptyPasswords {found['permitemptypasswords']}")


@pytest.mark.tier("T0")
def test_no_credentials_left(host: Any, observe: Observe) -> None:
    """No file holds an access key of AWS or a login elsewhere: every user of the image would have the builder's."""
    by_name = host.run(
        f"for h in {_HOMES}; do for f in {' '.join(_LOGINS)};"
        ' do [ -s "$h/$f" ] && [ "$h" != / ] && echo "$h/$f"; done; done'
    )
    by_content = host.run(f"grep -rIlE -e '{_ACCESS_KEY}' -e '{_TOKEN}' {_WHERE_KEYS_LIE} 2>/dev/null")
    addresses = host.run(
        f"{{ grep -rIoE '{_SECRET_IN_ADDRESS}' /etc; for h in {_HOMES}; do [ \"$h\" = / ] || grep -sIoE"
        f" '{_SECRET_IN_ADDRESS}' $h/.[a-z]* $h/.config/*/* /dev/null; done; }} 2>/dev/null"
    )
    found = {*_lines(by_name.stdout), *_lines(by_content.stdout)}
    found |= {line.partition(":")[0] for line in _lines(addresses.stdout) if not _EXAMPLES.search(line)}
    observe.nothing(sorted(found), "credentials")


@pytest.mark.tier("T0")
def test_nobody_else_becomes_root(host: Any, plan: Any, observe: Observe) -> None:
    """Without a password sudo makes root of the login user alone, and of ssm-user, which the SSM agent adds itself.

    Source: https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager.html
    """
    rules = [" ".join(line.split()) for line in _lines(host.run(_SUDO_RULES).stdout)]
    allowed = {"root", "ssm-user", plan["os"]["ssh_user"]}
    open_to = sorted({who for rule in rules for who in _roots(rule)} - allowed)
    observe(rules, f"of {', '.join(sorted(allowed))} at most")
    if any(re.match(r"Defaults\b[^#]*!authenticate", rule) for rule in rules):
        observe.fail("sudo asks nobody for a password (Defaults !authenticate)")
    if open_to:
        observe.fail(f"sudo makes root, without a password, of {', '.join(open_to)}")


def _roots(rule: str) -> list[str]:
    """Whom a rule of sudoers lets do everything, as root, without a password: `who host = (whom) NOPASSWD: ALL`."""
    head, _, rights = rule.partition("=")
    who = re.fullmatch(r"(\S+(?: ?, ?\S+)*) \S+ ?", head)
    whom = re.match(r" ?\(([^):]*)", rights)
    free = re.search(r"\bNOPASSWD ?: ?(?:\w+ ?: ?)*ALL\b", rights)
    as_root = whom is None or {"ALL", "root", "#0"} & set(re.split(" ?, ?", whom[1].strip()))
    alias = re.match(r"Defaults\b|\w+_Alias\b", rule)
    return re.split(" ?, ?", who[1]) if who and free and as_root and not alias else []


@pytest.mark.tier("T0")
def test_no_crontab_left(host: Any, observe: Observe) -> None:
    """No user has a crontab: a package brings files in /etc/cron.d, so these are somebody's of the build."""
    found = host.run(
        "find /var/spool/cron -type f -size +0 -exec grep -lE '^[[:space:]]*[^#[:space:]]' {} + 2>/dev/null"
    )
    observe.nothing(_lines(found.stdout), "crontabs")


@pytest.mark.tier("T0")
def test_nothing_is_put_before_every_program(host: Any, observe: Observe) -> None:
    """/etc/ld.so.preload is not there, or empty: what it names is loaded into every program, root's too (ld.so(8))."""
    found = host.run("grep -v '^[[:space:]]*$' /etc/ld.so.preload")
    observe.nothing(_lines(found.stdout), "libraries in /etc/ld.so.preload")


@pytest.mark.tier("T0")
def test_no_package_cache(host: Any, observe: Observe) -> None:
    """No downloaded package is left: it is dead weight in every volume."""
    found = host.run(
        "find /var/cache/apt/archives /var/cache/yum /var/cache/dnf /var/cache/zypp"
        r" -type f \( -name '*.deb' -o -name '*.rpm' \) 2>/dev/null"
    )
    observe.nothing(_lines(found.stdout), "cached packages")


def test_no_private_key_of_the_build(host: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """No private key is older than this instance: every machine of the image would share it (DKMS signs with one)."""
    since = int(min(machine.first_boot_time, machine.boot_time)) - 2
    found = host.run(
        "find /etc /root /home /opt /srv /usr/local /var/lib -xdev -type f -size -64k"
        r" \( -name '*.key' -o -name '*.pem' -o -name '*.priv' -o -name 'id_*' \)"
        f" ! -newermt @{since} -exec grep -lIE -e '-----BEGIN ([A-Z]+ )*PRIVATE KEY' {{}} + 2>/dev/null"
    )
    observe.nothing(_lines(found.stdout), "private keys made before this instance's first boot")
