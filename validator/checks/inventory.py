"""Every file, account and setting of the machine belongs to a package, the base AMI, a first boot or a role.

These checks find traces that a build left behind. They compare the machine with its package database and with the
files that the roles declare (meta/footprint.yml) and those of official AMIs (validator/probes/footprints.py).
"""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest

from validator.file_account import NotTaken, find_base, plan_variables
from validator.observe import SCAN_SECONDS, Observe, output, unproven
from validator.plan import OBSERVED
from validator.plan_document import PlanDocument
from validator.probes import (
    Declared,
    Entry,
    MachineUnderTest,
    SinceImage,
    base_ami,
    base_driver,
    bill_of_materials,
    footprints,
    keyrings,
    packages,
    rights,
    unchanged_since_image,
)
from validator.transport import backend

_DPKG = "/var/lib/dpkg"
_UNITS = ("/etc/systemd", "/usr/lib/systemd")
# Where links of enabled and masked units lead.
_UNIT_TARGETS = ("/lib/systemd/", "/usr/lib/systemd/", "/etc/systemd/", "/run/systemd/", "/dev/null", "/usr/share/")
# What programs of packages write in /opt: state of AWS's agents, and Python.
_STATE_IN_OPT = re.compile(r"/opt/aws/|/opt/amazon/|/opt/.*/__pycache__/[^/]+\.pyc$")
_LOGIN = ("/etc/pam.d", "/etc/security", "/etc/sudoers.d", "/etc/ssh", "/etc/polkit-1")
_ENVIRONMENT = ("/etc/profile.d", "/etc/environment.d", "/etc/ld.so.conf.d", "/etc/skel")
_KERNEL = (
    "/etc/sysctl.d", "/etc/modprobe.d", "/etc/modules-load.d", "/etc/udev/rules.d", "/etc/default/grub.d",
    "/etc/dracut.conf.d", "/etc/initramfs-tools/conf.d", "/etc/initramfs-tools/hooks", "/etc/initramfs-tools/scripts",
)  # fmt: skip
_JOBS = (
    "/etc/cron.d", "/etc/cron.hourly", "/etc/cron.daily", "/etc/cron.weekly", "/etc/cron.monthly", "/etc/init.d",
    "/etc/cloud/cloud.cfg.d", "/etc/network/if-up.d", "/etc/dhcp/dhclient-exit-hooks.d",
    "/etc/NetworkManager/dispatcher.d", "/etc/networkd-dispatcher", "/etc/update-motd.d", "/etc/rc.local",
    "/etc/tmpfiles.d", "/usr/lib/tmpfiles.d", "/etc/binfmt.d",
)  # fmt: skip
_SOURCES = (
    "/etc/apt/sources.list.d", "/etc/apt/apt.conf.d", "/etc/apt/preferences.d", "/etc/apt/auth.conf.d",
    "/etc/apt/trusted.gpg.d", "/etc/apt/keyrings", "/etc/yum.repos.d", "/etc/yum/vars", "/etc/dnf/vars",
)  # fmt: skip
_SOURCE_FILES = (
    "/etc/apt/auth.conf", "/etc/apt/apt.conf", "/etc/apt/preferences", "/etc/apt/trusted.gpg", "/etc/pip.conf",
    "/etc/xdg/pip/pip.conf", "/etc/npmrc", "/usr/etc/npmrc", "/etc/condarc",
)  # fmt: skip
_CERTIFICATES = ("/usr/local/share/ca-certificates", "/etc/pki/ca-trust/source/anchors", "/etc/pki/tls/certs")
# Where the links of trusted certificates lead: to files of packages, or to those that are looked at themselves.
_OF_CERTIFICATES = (
    "/usr/share/ca-certificates/", "/usr/local/share/ca-certificates/", "/etc/ssl/", "/etc/pki/", "/usr/share/pki/",
    "/usr/lib/", "/var/lib/ca-certificates/",
)  # fmt: skip
_PROGRAMS = ("/usr/bin", "/usr/sbin", "/usr/libexec", "/usr/lib", "/usr/lib64", "/usr/lib32")
# Configuration files that control access; other changed configuration files are the base AMI's.
_GUARDED = (
    "/etc/pam.d/", "/etc/security/", "/etc/sudoers", "/etc/profile.d/", "/etc/bash.bashrc", "/etc/bashrc",
    "/etc/cron", "/etc/init.d/", "/etc/logrotate", "/etc/modprobe.d/", "/etc/sysctl.d/", "/etc/udev/",
    "/etc/ld.so.conf", "/etc/skel/", "/etc/systemd/", "/etc/apt/apt.conf.d/", "/etc/update-motd.d/",
    "/etc/apt/trusted.gpg.d/", "/etc/apt/keyrings/", "/etc/pki/rpm-gpg/",
)  # fmt: skip
# Configuration of the driver's stack: the plan has these packages, and what a role changes it declares.
_OF_THE_STACK = (
    "/usr/share/nvidia/", "/etc/nvidia", "/etc/dcgm", "/etc/gdrcopy", "/opt/amazon/efa/", "/opt/amazon/ofi-nccl/",
    "/opt/amazon/openmpi/", "/etc/default/nvidia", "/etc/containers/", "/etc/cdi/",
)  # fmt: skip
# State, and documentation that minimal images leave out. Other files below /etc are configuration.
_NOT_COMPARED = (
    "/var/",
    "/run/",
    "/boot/",
    "/usr/share/doc/",
    "/usr/share/man/",
    "/usr/share/info/",
    "/usr/share/locale/",
    "/usr/share/lintian/",
)
_PROGRAM_FOLDERS = ("/usr/bin/", "/usr/sbin/", "/usr/lib", "/bin/", "/sbin/", "/lib", "/opt/slurm/", "/snap/")
_LOGIN_SHELL = re.compile(r"/(ba|da|z|c|tc|k|fi)?sh$")
_PRIVILEGED_GROUPS = (
    "root", "sudo", "wheel", "admin", "shadow", "disk", "docker", "kmem", "adm", "lxd", "libvirt", "kvm", "ssh_keys",
    "systemd-journal",
)  # fmt: skip
# Whoever is in one of these reads disks, memory or passwords: root's rights without sudo and its log.
_NEVER_OF_A_LOGIN = ("root", "shadow", "disk", "kmem", "ssh_keys")
# Ubuntu's rsyslog runs as syslog and writes logs of the group adm.
_KNOWN_MEMBERS = ("syslog in adm",)
# System accounts with a shell that a node family's base AMI has. Source: aws-parallelcluster-cookbook f75d84c3
# (install/users.rb, install/slurm_users.rb), read 2026-11-25.
_OF_FAMILY = {"node_parallelcluster": ("slurm", "pcluster-admin")}
_KNOWN_IN_HOMES = re.compile(
    r"/(\.bashrc|\.profile|\.bash_logout|\.bash_profile|\.cshrc|\.tcshrc|\.zshrc|\.kshrc|\.sudo_as_admin_successful"
    r"|\.emacs|\.screenrc|\.inputrc|\.ssh|\.cache|snap|\.snap|\.gnupg|\.hushlogin|\.selected_editor|\.lesshst|\.nv)$"
)
_HOMES = "/root $(awk -F: '$3 >= 1000 && $3 < 60000 {print $6}' /etc/passwd)"


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _unpackaged(host: Any, plan: Any, declared: Declared, below: tuple[str, ...]) -> list[Entry]:
    """Files in or below these paths that no package owns; without what the base AMI has, where that is much.

    That is so on node families, and on systems whose packages do not own their programs. Of the latter image files
    alone are judged, since every file is read. UNPROVEN where the base AMI's inventory is missing.
    """
    family, running = plan["node"].get("family", "ec2"), not isinstance(host.backend, backend.ImageBackend)
    try:
        entries = footprints.find(host)
        if entries is not None and family == "ec2":
            return [entry for entry in entries if entry.path.startswith(below)]
        if entries is None and running:
            unproven("the package database does not own the system's programs")
        base = find_base(host, declared.build).inventory
        found = entries if entries is not None else footprints.find(host, whole=True)
    except footprints.NotListed as error:
        unproven(f"{error}: see system::test_tools_of_the_checks_work")
    except NotTaken as reason:
        unproven(f"the base AMI ({family}) has files that no package owns, and it is not known which: {reason}")
    return footprints.not_of_base(host, [entry for entry in found or [] if entry.path.startswith(below)], base)


@pytest.fixture(scope="session")
def declared(plan: Any, request: pytest.FixtureRequest) -> Declared:
    """Files that official AMIs and the planned roles leave."""
    option = request.config.getoption
    build = option("base_inventory") or (option("plan") and option("plan").parent)
    return footprints.load(option("roles_path"), plan, build)


def _unexpected(host: Any, plan: Any, declared: Declared, below: tuple[str, ...]) -> list[str]:
    return footprints.unexpected(_unpackaged(host, plan, declared, below), below, declared)


def _links_elsewhere(entries: list[Entry], known: tuple[str, ...]) -> list[str]:
    """Links that lead to other places than those."""
    links = [entry for entry in entries if entry.kind == "l" and entry.target.startswith("/")]
    return [f"{link.path} -> {link.target}" for link in links if not link.target.startswith(known)]


def _require_none(files: list[str], what: str, declared: Declared, observe: Observe) -> None:
    """Fails with each file. UNPROVEN if the plan has a role of a site without declared files."""
    __tracebackhide__ = True
    if files and declared.undeclared:
        roles = ", ".join(declared.undeclared)
        unproven(f"{what}: {', '.join(files[:20])} (the plan has roles whose files are not declared: {roles})")
    observe.nothing(files, what)


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_packaged_files_are_unchanged(
    host: Any, plan: Any, declared: Declared, since_image: SinceImage | None, observe: Observe
) -> None:
    """Every file of a package has the package's content, including configuration that controls logins and startup.

    So does the configuration of the driver's stack, unless a role declares that it changes it: one word of
    fabricmanager.cfg decides whether CUDA starts. Documentation may be missing. Other changed configuration files are
    the base AMI's. On a machine, files are not read again below a directory in which nothing has changed since the
    image, if this check passed on the image's files.
    """
    kept: list[str] = []
    if since_image and since_image.passed("inventory::test_packaged_files_are_unchanged"):
        kept = since_image.unchanged([*since_image.trees(), _DPKG])
    kept = [path for path in kept if path != _DPKG] if _DPKG in kept else []
    changed = packages.changed_files(host, plan["os"]["family"], kept)
    if changed is None:
        unproven("the package database does not own the system's programs")
    registered = base_driver.registered_files(host, plan)
    wrong = [
        f"{path}{' (missing)' if missing else ''}"
        for path, missing, is_configuration in changed
        if not (missing and path in registered)
        and (
            path.startswith(_GUARDED)
            or (path.startswith(_OF_THE_STACK) and not missing and not declared.has(path))
            or not (is_configuration or "/etc/" in path or path.startswith(_NOT_COMPARED))
        )
    ]
    observe.nothing(sorted(wrong), "files that differ from their package")
    if kept:
        observe(unchanged_since_image(kept, []), [])


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_programs_are_packaged(host: Any, plan: Any, declared: Declared, observe: Observe) -> None:
    """Every program and library in the system's directories belongs to a package, or a role declares it."""
    entries = [
        entry
        for entry in _unpackaged(host, plan, declared, _PROGRAMS)
        if entry.is_executable or re.search(r"\.so(\.[\d.]+)?$|/(dist|site)-packages/", entry.path)
    ]
    _require_none(footprints.unexpected(entries, _PROGRAMS, declared), "programs of no package", declared, observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_local_files_are_declared(host: Any, plan: Any, declared: Declared, observe: Observe) -> None:
    """/usr/local, /usr/src, /srv and, on plain instances, /opt have only files of packages and roles.

    Programs in /usr/local precede the system's; a source tree in /usr/src is what a build was made of.
    """
    folders = ["/usr/local", "/usr/src", "/srv"]
    if plan["node"].get("family", "ec2") == "ec2":
        folders.append("/opt")
    files = _unexpected(host, plan, declared, tuple(folders))
    _require_none([path for path in files if not _STATE_IN_OPT.match(path)], "files of no package", declared, observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_units_are_declared(host: Any, plan: Any, declared: Declared, observe: Observe) -> None:
    """Every systemd unit, timer and drop-in belongs to a package or a role, and so do the units that links enable."""
    entries = _unpackaged(host, plan, declared, _UNITS)
    files = [*footprints.unexpected(entries, _UNITS, declared), *_links_elsewhere(entries, _UNIT_TARGETS)]
    _require_none(files, "systemd units and drop-ins of no package", declared, observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_login_settings_are_declared(host: Any, plan: Any, declared: Declared, observe: Observe) -> None:
    """Every file of PAM, sudo, sshd and polkit belongs to a package, the base AMI or a role."""
    _require_none(_unexpected(host, plan, declared, _LOGIN), "login settings of no package", declared, observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_environment_settings_are_declared(host: Any, plan: Any, declared: Declared, observe: Observe) -> None:
    """Every shell profile and loader path belongs to a package or a role. They affect every login or program."""
    _require_none(
        _unexpected(host, plan, declared, _ENVIRONMENT), "shell and loader settings of no package", declared, observe
    )


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_kernel_settings_are_declared(host: Any, plan: Any, declared: Declared, observe: Observe) -> None:
    """Every file of sysctl.d, modprobe.d, udev and the boot loader belongs to a package, the base AMI or a role."""
    _require_none(_unexpected(host, plan, declared, _KERNEL), "kernel settings of no package", declared, observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_scheduled_jobs_are_declared(host: Any, plan: Any, declared: Declared, observe: Observe) -> None:
    """Every cron job, startup script and cloud-init setting belongs to a package or the base AMI."""
    entries = _unpackaged(host, plan, declared, (*_JOBS, "/etc/rc.d/rc.local"))
    files = [*footprints.unexpected(entries, _JOBS, declared)]
    files += [entry.path for entry in entries if entry.path in ("/etc/rc.local", "/etc/rc.d/rc.local")]
    scripts = "find /var/spool/at /var/spool/cron/atjobs /var/lib/cloud/scripts -type f ! -name .SEQ 2>/dev/null"
    _require_none(
        sorted([*files, *_lines(host.run(scripts, pure=True).stdout)]),
        "jobs and scripts of no package",
        declared,
        observe,
    )


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_bill_of_materials_is_current(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """The image's bill of materials lists the installed packages and kernel modules, no more and no fewer.

    Scanners on a machine read it in place of the package database. The driver that a base AMI takes at the first boot
    of a machine is not in it.
    """
    kept = host.run(f"cat {bill_of_materials.PATH}", pure=True)
    if kept.rc != 0:
        unproven(f"the image has no {bill_of_materials.PATH}: it was not built by gpu-ami, or by a version without one")
    found = host.run(bill_of_materials.INSTALLED, pure=True, timeout=SCAN_SECONDS).stdout
    modules = host.run(bill_of_materials.MODULES, pure=True, timeout=SCAN_SECONDS).stdout
    try:
        listed = bill_of_materials.listed(kept.stdout)
    except bill_of_materials.InvalidBill as error:
        observe.fail(f"{bill_of_materials.PATH}: {error}")
    if not found.strip():
        packages.require_readable(host, plan["os"]["family"])
    installed = bill_of_materials.installed(found, modules)
    installed -= base_driver.installed_at_first_boot(host, plan, machine, installed - listed)
    observe(f"{len(listed)} components", f"{len(installed)} packages and kernel modules")
    observe.nothing(bill_of_materials.differences(listed, installed), "differences from the bill of materials")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_package_sources_are_planned(host: Any, plan: Any, declared: Declared, observe: Observe) -> None:
    """Package sources, keys, proxies and credentials are the base AMI's or planned. Upgrades come from them."""
    planned = plan_variables(plan)["source"]
    entries = _unpackaged(host, plan, declared, (*_SOURCES, *_SOURCE_FILES))
    files = [
        path
        for path in footprints.unexpected(entries, _SOURCES, declared)
        if path.rpartition("/")[2].rpartition(".")[0] not in planned
        and path.rpartition("/")[2].replace("-", "_") not in plan["roles"]
    ]
    files += [entry.path for entry in entries if entry.path in _SOURCE_FILES]
    proxies = (
        r"grep -rsEi '^[^#/]*\bproxy\b.*[a-z0-9]' /etc/apt/apt.conf /etc/apt/apt.conf.d /etc/dnf/dnf.conf /etc/yum.conf"
    )
    _require_none(
        [*files, *_lines(host.run(proxies, pure=True).stdout)],
        "package sources that are not planned",
        declared,
        observe,
    )


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_keyrings_have_the_planned_keys_alone(host: Any, observe: Observe) -> None:
    """Each keyring of a vendor has the key after which it is named, and no other. Any key in it could sign packages."""
    shown = host.run(_KEYRINGS, pure=True).stdout
    rows = [line.split() for line in _lines(shown)]
    wrong = []
    for path, *content in rows:
        planned = path.removesuffix(".gpg")[-40:]
        try:
            found = keyrings.fingerprints(base64.b64decode("".join(content)))
        except (keyrings.InvalidKeyring, ValueError) as error:
            wrong.append(f"{path}: {error}")
            continue
        if found != [planned]:
            wrong.append(f"{path}: {', '.join(found)}")
    observe(f"{len(rows)} keyrings", "one key in each")
    observe.nothing(wrong, "keyrings with other keys than the planned one")


# Role vendor_key names each after the fingerprint of its key. Those of the system are files of packages.
_KEYRINGS = (
    "for f in /usr/share/keyrings/*-*.gpg /etc/pki/rpm-gpg/RPM-GPG-KEY-*; do"
    ' echo "$f" | grep -qE -e \'-[0-9A-F]{40}(\\.gpg)?$\' && echo "$f $(base64 -w 0 < "$f")"; done; true'
)


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_certificates_are_packaged(host: Any, plan: Any, declared: Declared, observe: Observe) -> None:
    """No certificate authority is trusted beyond those of the packages. It could sign for every host."""
    entries = _unpackaged(host, plan, declared, (*_CERTIFICATES, "/etc/ssl/certs"))
    files = [*footprints.unexpected(entries, _CERTIFICATES, declared), *_links_elsewhere(entries, _OF_CERTIFICATES)]
    _require_none(files, "certificates of no package", declared, observe)


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_accounts_are_known(host: Any, plan: Any, observe: Observe) -> None:
    """Only root and the login user can log in, and only they are members of privileged groups."""
    user = plan["os"]["ssh_user"]
    allowed = {"root", user, "ssm-user", "ec2-user", "sync", "halt", "shutdown", "nobody"}
    of_family = {name for role, names in _OF_FAMILY.items() if role in plan for name in names}
    rows = [line.split(":") for line in _lines(output(host, "cat /etc/passwd"))]
    accounts = {row[0]: (int(row[2]), row[6]) for row in rows if len(row) == 7}
    unknown = [
        name
        for name, (uid, shell) in accounts.items()
        if name not in allowed and (1000 <= uid < 60000 or (_LOGIN_SHELL.search(shell) and name not in of_family))
    ]
    groups = [line.split(":") for line in _lines(output(host, "cat /etc/group"))]
    members = [
        f"{member} in {row[0]}"
        for row in groups
        if len(row) == 4 and row[0] in _PRIVILEGED_GROUPS
        for member in row[3].split(",")
        if member
        and (member not in ("root", user, "ssm-user") or (row[0] in _NEVER_OF_A_LOGIN and member != "root"))
        and f"{member} in {row[0]}" not in _KNOWN_MEMBERS
    ]
    numbers = {row[2]: row[0] for row in groups if len(row) == 4 and row[0] in _PRIVILEGED_GROUPS}
    members += [
        f"{row[0]} in {numbers[row[3]]} (its own group)"
        for row in rows
        if len(row) == 7
        and row[3] in numbers
        and row[0] not in ("root", "sync", "shutdown", "halt", "operator", numbers[row[3]])
    ]
    added = [row[0] for row in groups if len(row) == 4 and 1000 <= int(row[2]) < 60000 and row[0] not in accounts]
    observe.nothing(
        [*unknown, *members, *(f"group {name}" for name in added)], "accounts and groups that are not known"
    )


def _observe_walk(observe: Observe, kept: list[str], found: Any, planned: Any) -> None:
    observe(unchanged_since_image(kept, found) if kept else found, planned)


@pytest.mark.tier("T0")
def test_setuid_programs_are_known(
    host: Any, since_image: SinceImage | None, observe: Observe, declared_programs: Declared
) -> None:
    """Every setuid or setgid program is declared by a role, or is one that distributions ship as such in a package.

    Others give every user root's rights: a copy of a shell, and an old `su` in /opt too.
    """
    walked = rights.find(host, since_image)
    found = walked.setuid
    roles = declared_programs.roles_of("setuid")
    others = [path for path in found if path not in roles]
    of_drivers = base_driver.kept_modprobes(host, others)
    programs = [path for path in others if path not in of_drivers]
    unknown = [
        path
        for path in programs
        if path.rpartition("/")[2] not in footprints.SETUID or not path.startswith(_PROGRAM_FOLDERS)
    ]
    known = [path for path in programs if path not in unknown]
    by_hand = packages.of_no_package(host, known)
    if len(by_hand) == len(programs) - len(unknown):
        by_hand = []  # the package database does not own the system's programs
    unknown += [path for path in by_hand if path.rpartition("/")[2] != "nvidia-modprobe"]  # of the driver's installer
    used = {path: roles[path] for path in found if path in roles}
    _observe_walk(observe, walked.kept, footprints.with_declared(f"{len(found)} programs", used), "known programs")
    footprints.require_none(observe, unknown, "setuid and setgid programs that are not known", "setuid")


@pytest.mark.tier("T0")
def test_file_capabilities_are_known(
    host: Any, since_image: SinceImage | None, observe: Observe, declared_programs: Declared
) -> None:
    """Every program with file capabilities is declared by a role, or one that distributions ship with them.

    They give rights of root.
    """
    if host.run("command -v getcap || test -x /usr/sbin/getcap || test -x /sbin/getcap").rc != 0:
        unproven("getcap is not installed")
    shown, kept = rights.capabilities(host, since_image)
    roles = declared_programs.roles_of("capabilities")
    found = [(line.split()[0], line) for line in shown]
    rows = [line for path, line in found if path.rpartition("/")[2] not in footprints.CAPABLE and path not in roles]
    used = {path: roles[path] for path, _ in found if path in roles}
    _observe_walk(observe, kept, footprints.with_declared(f"{len(found)} programs", used), "known programs")
    footprints.require_none(observe, rows, "file capabilities that are not known", "capabilities")


@pytest.mark.tier("T0")
def test_nothing_is_world_writable(host: Any, since_image: SinceImage | None, observe: Observe) -> None:
    """No file, and no directory without the sticky bit, can be written by every user."""
    walked = rights.find(host, since_image)
    observe.nothing(walked.writable, "writable by every user")
    _observe_walk(observe, walked.kept, [], [])


@pytest.mark.tier("T0")
def test_no_files_in_homes(host: Any, observe: Observe) -> None:
    """Home directories have only the files of a new account. Files of pip, conda, npm or an installer are traces."""
    listed = host.run(f"find -H {_HOMES} -xdev -mindepth 1 -maxdepth 1 2>/dev/null", pure=True).stdout
    entries = [path for path in _lines(listed) if not _KNOWN_IN_HOMES.search(path)]
    hidden = r"-not -name authorized_keys -not -name motd.legal-displayed -not -path '*/.gnupg/*' -not -path '*/snap/*'"
    nested = host.run(
        f"for h in {_HOMES}; do find $h/.ssh $h/.cache -xdev -type f {hidden} 2>/dev/null; done", pure=True
    ).stdout
    orphans = host.run(
        'for d in /home/*/; do d=${d%/}; test -d "$d" -a "$d" != /home/lost+found &&'
        ' ! cut -d: -f6 /etc/passwd | grep -qxF -- "$d" && echo "$d"; done; true',
        pure=True,
    ).stdout
    entries += [f"{path} (of no account)" for path in _lines(orphans)]
    observe.nothing(sorted([*entries, *_lines(nested)]), "files in home directories")


# Files that a login shell or a program of the user reads, in homes and in the folders that new accounts are made of.
_SHELL_FILES = (
    ".bashrc", ".profile", ".bash_profile", ".bash_login", ".bash_logout", ".zshrc", ".zshenv", ".zprofile", ".kshrc",
    ".cshrc", ".tcshrc", ".inputrc", ".pam_environment", ".ssh/rc", ".ssh/environment", ".config/environment.d",
)  # fmt: skip
_HOME_FILES = """
for home in {homes}; do
  for name in {names}; do
    file=$home/$name; test -e "$file" || continue
    for new in /etc/skel/$name /usr/share/base-files/dot$name /usr/share/rootfiles/$name; do
      cmp -s "$file" "$new" && continue 2
    done
    owner=$(rpm -qf "$file" 2>/dev/null) &&
      ! rpm -V --nomtime --nomode "$owner" 2>/dev/null | grep -qF " $file" && continue
    echo "$file"
  done
done"""


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_shell_files_are_those_of_a_new_account(host: Any, plan: Any, observe: Observe) -> None:
    """What a login shell reads in a home is what a new account has. A line of a build there runs at each login."""
    if plan["node"].get("family", "ec2") != "ec2":
        unproven("the base AMI of this family has shell files of its own in homes")
    command = _HOME_FILES.format(homes=_HOMES, names=" ".join(_SHELL_FILES))
    observe.nothing(_lines(host.run(command, pure=True).stdout), "shell files that are not those of a new account")


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_authorized_keys_are_in_homes_only(
    host: Any, plan: Any, since_image: SinceImage | None, observe: Observe
) -> None:
    """No authorized_keys file is outside home directories, and sshd reads keys from no other place."""
    homes = [row.split(":")[5] for row in _lines(output(host, "cat /etc/passwd")) if row.count(":") == 6]
    known = {f"{home.rstrip('/')}/.ssh/authorized_keys" for home in homes}
    walked = rights.find(host, since_image)
    settings = host.run("PATH=$PATH:/usr/sbin sshd -T 2>/dev/null").stdout
    rows = dict(line.partition(" ")[::2] for line in _lines(settings))
    strange = [path for path in walked.keys if path not in known]
    command = rows.get("authorizedkeyscommand", "none")
    if command != "none" and "eic_run_authorized_keys" not in command:
        strange.append(f"AuthorizedKeysCommand {command}")
    if rows.get("trustedusercakeys", "none") != "none":
        strange.append(f"TrustedUserCAKeys {rows['trustedusercakeys']}")
    for name in rows.get("authorizedkeysfile", "").split():
        if name not in (".ssh/authorized_keys", ".ssh/authorized_keys2", "%h/.ssh/authorized_keys"):
            strange.append(f"AuthorizedKeysFile {name}")
    observe.nothing(strange, "other sources of authorized keys")
    _observe_walk(observe, walked.kept, [], [])


@pytest.mark.tier("T0")
def test_no_leftover_files(host: Any, observe: Observe) -> None:
    """No core dump, mail, editor backup or package backup file is left."""
    names = " -o ".join(
        f"-name '{name}'" for name in ("*~", ".*.sw[op]", "#*#", "*.orig", "*.rej", "*.rpmsave", "*.dpkg-old", "*.kept")
    )
    backups = host.run(
        f"find /etc /usr/local/bin /usr/local/sbin /root /home /srv -xdev -type f \\( {names} \\) 2>/dev/null",
        pure=True,
    )
    dumps = host.run(
        "{ find / /var /root /home /home/* /tmp /var/tmp /opt /srv /mnt -xdev -maxdepth 1 -type f -size +0"
        r" \( -name core -o -name 'core.[0-9]*' -o -name '*.core' -o -name 'vgcore.*' -o -name '*.crash' \);"
        # By their content where programs and data have such names, too.
        " find /etc /opt /srv /home /root /usr/local /var/lib /var/log -xdev -maxdepth 4 -type f -size +0"
        r" \( -name core -o -name 'core.*' -o -name '*.core' -o -name 'vmcore*' -o -name 'hs_err_pid*'"
        r" -o -name '*.nvcudmp' \) -exec grep -lE -m 1 -e '^.ELF' -e '^KDUMP' -e 'fatal error has been detected' {} +;"
        " find /var/lib/systemd/coredump /var/crash /var/spool/abrt /var/lib/apport/coredump -type f"
        " ! -name kexec_cmd ! -name kdump_lock; } 2>/dev/null",
        pure=True,
    )
    mail = host.run("find /var/mail /var/spool/mail -type f -size +0 2>/dev/null", pure=True)
    left = sorted({*_lines(backups.stdout), *_lines(dumps.stdout), *_lines(mail.stdout)})
    observe.nothing(left, "backup files, core dumps and mail")


def _is_of_this_boot(host: Any, row: list[str]) -> bool:
    """cloud-init mounts instance store volumes at the first boot; in an image's files such a row is the builder's."""
    if "comment=cloudconfig" not in " ".join(row):
        return False
    if isinstance(host.backend, backend.ImageBackend):
        return False
    device = row[0].replace("UUID=", "/dev/disk/by-uuid/").replace("LABEL=", "/dev/disk/by-label/")
    return not device.startswith("/dev/") or host.run("test -e %s", device).rc == 0


@pytest.mark.tier("T0")
def test_file_systems_are_known(host: Any, observe: Observe) -> None:
    """fstab mounts only the root, boot and pseudo file systems, and there is no swap. Others fail on new instances."""
    rows = [line.split() for line in _lines(host.run("cat /etc/fstab").stdout) if not line.lstrip().startswith("#")]
    entries = [
        " ".join(row[:3])
        for row in rows
        if len(row) >= 3
        and row[1] not in ("/", "/boot", "/boot/efi", "/boot/firmware", "/efi")
        and row[2] not in ("tmpfs", "proc", "sysfs", "devpts", "hugetlbfs")
        and not _is_of_this_boot(host, row)
    ]
    swaps = [line.split()[0] for line in _lines(host.run("tail -n +2 /proc/swaps").stdout)]
    files = _lines(host.run("ls -d /swapfile /swap.img /swap /var/swap /var/swapfile 2>/dev/null").stdout)
    observe.nothing([*entries, *(f"swap {path}" for path in (*swaps, *files))], "file systems that are not planned")


@pytest.mark.tier("T0")
def test_no_file_is_immutable(host: Any, observe: Observe) -> None:
    """No file has the attribute immutable or append-only. Upgrades and cloud-init cannot write it."""
    folders = "/etc /root /home /boot /usr/local /opt"  # themselves, and what is in them
    command = (
        f"lsattr -d {folders} /usr/bin /usr/sbin /var/lib/dpkg 2>/dev/null; lsattr /usr/bin /var/lib/dpkg 2>/dev/null"
    )
    command += f"; lsattr -R {folders} 2>/dev/null"
    shown = host.run(command, timeout=SCAN_SECONDS).stdout
    rows = [line.split(None, 1) for line in _lines(shown)]
    marked = [
        row[1] for row in rows if len(row) == 2 and re.fullmatch(r"[A-Za-z-]+", row[0]) and {"i", "a"} & set(row[0])
    ]
    observe.nothing(marked, "immutable files")


@pytest.mark.tier("T0")
def test_names_and_time_are_default(host: Any, observe: Observe) -> None:
    """/etc/hosts names only the machine itself, the time zone is UTC, and no time server was added."""
    own = set(host.run("hostname -I 2>/dev/null").stdout.split())
    rows = [line.split() for line in _lines(host.run("cat /etc/hosts").stdout) if not line.lstrip().startswith("#")]
    local = re.compile(r"127\.|169\.254\.|::1$|f[ef]0[0-9a-f]::|fe80:|ff02::")
    wrong = [f"/etc/hosts: {' '.join(row)}" for row in rows if not local.match(row[0]) and row[0] not in own]
    zone = host.run("readlink /etc/localtime").stdout.strip()
    if zone and not re.search(r"/(UTC|UCT|Universal|Zulu|Etc/\w+|localtime)$", zone):
        wrong.append(f"time zone {zone}")
    servers = (
        "find /etc/chrony/sources.d /etc/chrony/conf.d /etc/systemd/timesyncd.conf.d -type f ! -name README 2>/dev/null"
    )
    wrong += [path for path in _lines(host.run(servers, pure=True).stdout) if "cloud" not in path]
    observe.nothing(wrong, "names and time settings that are not default")


@pytest.mark.survives
def test_kernel_command_line_is_safe(host: Any, observe: Observe) -> None:
    """The kernel command line replaces no init and disables no protection of the kernel."""
    options = output(host, "cat /proc/cmdline").split()
    observe.nothing([option for option in options if base_ami.is_unsafe_option(option)], "kernel options")


def test_listeners_are_known(host: Any, plan: PlanDocument, observe: Observe, declared_programs: Declared) -> None:
    """Every process that listens on a socket is part of the system or of a planned component, or declared by a role.

    Of an image as found, which plans nothing, it may be any service of the image's.
    """
    shown = host.run("PATH=$PATH:/usr/sbin:/sbin ss -Hltunp")
    if shown.rc != 0:
        unproven(f"ss cannot list sockets: {shown.stderr.strip() or 'not installed'}")
    rows = [line.split() for line in _lines(shown.stdout)]
    listeners = {(row[4], name) for row in rows if len(row) > 5 for name in re.findall(r'\("([^"]+)"', row[-1])}
    of_services = footprints.of_services(host, rows) if plan.get("origin") == OBSERVED else set()
    roles = declared_programs.roles_of("listeners")
    known = {*footprints.LISTENERS, *roles, *of_services}
    unknown = sorted(f"{name} on {address}" for address, name in listeners if name not in known)
    used = {name: roles[name] for _, name in listeners if name in roles and name not in footprints.LISTENERS}
    observe(footprints.with_declared(", ".join(sorted({name for _, name in listeners})), used), "known programs")
    footprints.require_none(observe, unknown, "listening programs that are not known", "listeners")
