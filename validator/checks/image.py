"""The image before its first boot (tier T0): services are enabled, and it has no identity and no logs yet."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from typing import Any

import pytest

from validator.checks import event_parser, hygiene
from validator.observe import SCAN_SECONDS, Observe, output, unproven
from validator.plan import OBSERVED
from validator.plan_document import PlanDocument
from validator.probes import base_driver, packages
from validator.transport import cage

pytestmark = [pytest.mark.offline, pytest.mark.tier("T0")]

_UNITS = {
    "cloudwatch_agent": "amazon-cloudwatch-agent.service",
    "event_parser": "aws-hw-monitor.service",
    "drain_hook": "gpu-ami-drain-hook.service",
}
# With a merged /usr, dpkg lists some files by their former path.
_OWNER = (
    'owner() { if command -v dpkg >/dev/null; then dpkg -S "$1" || dpkg -S "${1#/usr}";'
    ' else rpm -qf "$1"; fi >/dev/null 2>&1; }'
)
_OF_THE_SYSTEM = tuple(f"{top}{name}/" for top in ("/usr/", "/") for name in ("bin", "sbin", "lib", "lib64", "libexec"))
_HOMES = "$(cut -d: -f6 /etc/passwd | sort -u)"


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


@pytest.mark.needs("observed")
def test_services_start_at_boot(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Agent, parser and drain hook are enabled in the image before any boot.

    Of an image as found, what configures the agent at boot also starts it (amazon-cloudwatch-agent-ctl).
    """
    units = [unit for role, unit in _UNITS.items() if role in plan["roles"]]
    if not units:
        unproven(f"the image has none of {', '.join(_UNITS.values())}")
    states = {unit: host.run("systemctl is-enabled %s", unit).stdout.strip() or "not installed" for unit in units}
    agent, found = _UNITS["cloudwatch_agent"], plan.get("observed")
    if found and not found["agent_from"] and states.get(agent) == "disabled":
        unproven(f"{agent} is disabled and not configured: the files do not say whether a boot (user data) does both")
    observe.same(states, dict.fromkeys(units, "enabled"), "units in the image")


@pytest.mark.needs("promise")
def test_kernel_log_buffer_is_configured(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every boot entry sets the planned size of the kernel log buffer."""
    planned = f"log_buf_len={plan['event_parser']['log_buf_len']}"
    entries = _lines(host.run("grep -hE '^[[:space:]]*linux' /boot/grub/grub.cfg").stdout)
    entries += _lines(host.run("grep -h '^options' /boot/loader/entries/*.conf").stdout)
    if not entries:
        unproven("no boot entry in /boot/grub/grub.cfg or /boot/loader/entries")
    without = [entry.strip() for entry in entries if planned not in entry.split()]
    observe(f"{len(entries) - len(without)} of {len(entries)} entries", planned)
    if without:
        observe.fail(f"{len(without)} of {len(entries)} boot entries have no {planned}, the first: {without[0]}")


def test_image_has_no_event_policy(host: Any, observe: Observe) -> None:
    """The image has no severity policy. The catalogue determines severities until an operator changes them."""
    observe.nothing(
        event_parser.policy_overrides(host.run(f"cat {event_parser.POLICY_FILE}").stdout),
        "Xids with a policy in the image",
    )


def test_no_key_lets_in(host: Any, observe: Observe) -> None:
    """No account has an authorized key. cloud-init installs the key pair at launch."""
    keys = host.run(f"for h in {_HOMES}; do grep -Hs '^[^#]' $h/.ssh/authorized_keys $h/.ssh/authorized_keys2; done")
    observe.nothing([line.partition(":")[0] for line in _lines(keys.stdout)], "authorized keys in the image")


def test_no_host_keys(host: Any, observe: Observe) -> None:
    """The image has no SSH host key. Each instance generates its own."""
    keys = output(host, "find /etc/ssh -name 'ssh_host_*_key'")
    observe.nothing(sorted(_lines(keys)), "host keys in the image")


def test_no_machine_id(host: Any, observe: Observe) -> None:
    """The machine id is not set, so each instance generates its own at its first boot."""
    text = host.run("cat /etc/machine-id").stdout.strip()
    observe(text or "empty", "empty, or uninitialized")
    if text not in ("", "uninitialized"):
        observe.fail(f"/etc/machine-id: expected empty, got {text!r}: all instances of this image would share it")


@pytest.mark.needs("observed")
def test_no_private_key(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The image has no private key. Everybody who can launch it would have the key, and all instances the same one."""
    keys = hygiene.private_keys(host)
    made = [path for path in keys if _MADE_BY_PACKAGES.search(path)] if plan.get("origin") == OBSERVED else []
    observe(keys, [])
    observe.nothing([path for path in keys if path not in made], "private keys in the image")
    if made:
        unproven(
            f"{', '.join(made)}: made when a package was installed; the files do not say whether a service uses it"
        )


# By scripts of packages: DKMS (it signs modules; a key counts once a machine enrolls it), ssl-cert, mod_ssl.
_MADE_BY_PACKAGES = re.compile(
    r"/var/lib/(?:dkms|shim-signed)/|/etc/ssl/private/ssl-cert-snakeoil\.key$|/etc/pki/tls/private/localhost\.key$"
)


@pytest.mark.needs("observed")
def test_no_state_of_a_machine(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The image has no registration, lease, secret or random seed of a machine. All instances would share it.

    Of an image as found, a random seed is UNPROVEN: the shutdown before the snapshot saves one, after every clean-up.
    So are identities that daemons make at their first start. Sources: systemd's guide to building images, the
    clean-up script of EC2 Image Builder, amazon-ecs-agent#2738.
    """
    found = hygiene.state_files(host, hygiene.STATE_OF_A_MACHINE)
    observe.nothing(found, "state of a machine in the image")
    others = hygiene.state_files(host, f"{hygiene.RANDOM_SEED} {hygiene.DOCKER} {hygiene.NETWORK_MANAGER}")
    if others and plan.get("origin") == OBSERVED:
        unproven(
            f"{', '.join(others)}: identities of the machine that the image was made of; vendors may mean to ship it"
        )
    observe.nothing(others, "identities of a machine in the image")


def test_cloud_init_has_run_nowhere(host: Any, observe: Observe) -> None:
    """cloud-init has no state of an instance, such as the build instance."""
    instances = host.run("ls -1 /var/lib/cloud/instances").stdout
    observe.nothing(_lines(instances), "instances in cloud-init's state")


def test_no_instance_id(host: Any, observe: Observe) -> None:
    """No configuration, log or state file names an instance. It could only be the build instance."""
    names = host.run(
        "grep -rIoE '\\bi-([0-9a-f]{17}|[0-9a-f]{8})\\b' /etc /var/log /var/lib/cloud /var/lib/amazon /opt/aws"
        " 2>/dev/null | sort -u | head -n 200"
    )
    observe.nothing(_lines(names.stdout), "instance ids in the image")


def test_no_log(host: Any, observe: Observe) -> None:
    """No log file has content. It could only be of the build instance."""
    logs = output(host, "find /var/log -xdev -type f -size +0 ! -path '/var/log/journal/*'")
    # Databases of logins have a fixed size: test_no_login_is_recorded reads them.
    with_content = [path for path in _lines(logs) if not re.search(r"/(lastlog|faillog|tallylog)$", path)]
    observe.nothing(with_content, "log files with content in the image")


@pytest.mark.needs("observed")
def test_no_login_is_recorded(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """lastlog, faillog and tallylog are missing or all zero. A login could only be of the build instance.

    Of an image as found it is UNPROVEN: clean-up scripts of AWS's own AMIs remove wtmp and leave lastlog.
    """
    found = _lines(host.run(_WITH_LOGINS).stdout)
    if found and plan.get("origin") == OBSERVED:
        unproven(f"logins of the machine that the image was made of: {', '.join(found)}")
    observe.nothing(found, "logins in the image")


# They are sparse: with an account of a high id, they seem longer than the disk.
_WITH_LOGINS = """for f in /var/log/lastlog /var/log/faillog /var/log/tallylog; do
[ ! -f $f ] || [ -z "$(head -c 64M $f | tr -d '\\000' | head -c 1 | od -An -c)" ] || echo $f; done"""


@pytest.mark.needs("observed")
def test_module_indexes_are_what_depmod_writes(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Each kernel's modules.dep, modules.alias, modules.symbols and modules.softdep are what depmod makes of them.

    A line more loads another module, or loads one before the driver. Of an image as found, another depmod than the
    image's own may have written them.
    """
    kernels = host.run(
        'for k in $(ls -1 /lib/modules); do test -e "/lib/modules/$k/modules.dep" && echo "$k"; done; true'
    )
    wrong = []
    for kernel in _lines(kernels.stdout):
        made = host.run(f"PATH=$PATH:/usr/sbin:/sbin depmod -n {shlex.quote(kernel)}", timeout=SCAN_SECONDS)
        if made.rc != 0 or not made.stdout:
            unproven(f"depmod -n {kernel}: {made.stderr.strip()[-200:] or f'exited with status {made.rc}'}")
        names = " ".join(f"/lib/modules/{shlex.quote(kernel)}/modules.{name}" for name in _INDEXES)
        kept = Counter(_index_lines(host.run(f"cat {names} 2>/dev/null").stdout))
        due = Counter(_index_lines(made.stdout))
        wrong += [f"{kernel}: more: {line}" for line in kept - due] + [f"{kernel}: less: {line}" for line in due - kept]
    observe(f"{len(_lines(kernels.stdout))} kernels", "indexes as depmod makes them")
    if wrong and plan.get("origin") == OBSERVED:
        unproven(f"indexes of modules differ from what depmod makes: {'; '.join(wrong[:20])}")
    observe.nothing(wrong, "lines of modules' indexes that differ from depmod's")


_INDEXES = ("dep", "alias", "symbols", "softdep")


def _index_lines(text: str) -> list[str]:
    """`alias …`, `softdep …` and `PATH: PATHS`; without comments and the names of device nodes."""
    return [line for line in text.splitlines() if re.match(r"alias\s|softdep\s|[^\s:#]+\.ko[.\w]*:", line)]


def test_nothing_is_below_dev_and_proc(host: Any, observe: Observe) -> None:
    """/dev and /proc have no file with content. A machine mounts over them, so that nobody sees what a build left.

    A program that writes to /dev/null where no device was mounted makes such a file.
    """
    observe.nothing(
        _lines(output(host, f"cat {cage.HIDDEN_FILES}")), "files below /dev and /proc: mount the root and remove"
    )


def test_setuid_programs_are_packaged(host: Any, observe: Observe) -> None:
    """Every setuid or setgid program belongs to a package. Any other gives its owner's rights to every user."""
    # As in inventory, which then needs no search of its own.
    programs = _lines(output(host, "find / -xdev -type f -perm /6000 -print", timeout=SCAN_SECONDS))
    unpackaged = [path for path in programs if not path.startswith(_OF_THE_SYSTEM)]
    # If the package manager does not own even su, the system was not installed from packages: only paths are compared.
    if host.run(f"{_OWNER}; owner $(readlink -f $(command -v su))").rc == 0:
        unpackaged = packages.of_no_package(host, programs)
    of_drivers = base_driver.kept_modprobes(host, unpackaged)
    observe(f"{len(programs)} programs", "each belongs to a package")
    observe.nothing([path for path in unpackaged if path not in of_drivers], "setuid and setgid programs of no package")
