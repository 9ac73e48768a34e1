"""SSH routes to instances: by address, or through a program (as OpenSSH's ProxyCommand).

jump host                   `ssh -W`, with OpenSSH's own configuration and agent
Session Manager             `aws ssm start-session` with the document AWS-StartSSHSession, and session-manager-plugin
Instance Connect Endpoint   `aws ec2-instance-connect open-tunnel`
proxy_command               the command of the place; %i is the instance's id

Sources: https://docs.aws.amazon.com/systems-manager/latest/userguide/session-manager-getting-started-enable-ssh-connections.html
and https://docs.aws.amazon.com/cli/latest/reference/ec2-instance-connect/open-tunnel.html, read 2026-11-22.
"""

from __future__ import annotations

import functools
import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami import process
from gpu_ami.cloud import aws_errors, runs
from gpu_ami.cloud.place import JUMP_HOST_PATTERN, SESSION_MANAGER, Place
from gpu_ami.cloud.sweep import key_name
from gpu_ami.errors import GpuAmiError, MachineError, UsageError

if TYPE_CHECKING:
    from gpu_ami.cloud.client import Cloud
    from gpu_ami.cloud.runs import Run

_JUMP_HOST = re.compile(JUMP_HOST_PATTERN)


ADDRESSES = {
    "public_ip": "PublicIpAddress",
    "private_ip": "PrivateIpAddress",
    "public_dns": "PublicDnsName",
    "private_dns": "PrivateDnsName",
    SESSION_MANAGER: "InstanceId",  # a session names the instance
}


def address(instance: Mapping[str, object], interface: str) -> str:
    """The address of a running instance that `ssh_interface` names. MachineError: it has none."""
    found = str(instance.get(ADDRESSES[interface]) or "")
    if not found:
        raise MachineError(
            f"{instance['InstanceId']} has no {ADDRESSES[interface]}",
            hint="choose another ssh_interface, or a subnet that assigns public addresses",
        )
    return found


def proxy_command(place: Place, instance_id: str) -> str:
    """The program that leads to an instance, with %h and %p left to be replaced; "" where its address does."""
    if place.login.jump_host:
        return _jump(place)
    if place.login.ssh_interface == SESSION_MANAGER:
        words = ["ssm", "start-session", "--target", instance_id, "--document-name", "AWS-StartSSHSession"]
        return f"{_aws(place)} {shlex.join(words)} --parameters portNumber=%p"
    if place.login.instance_connect_endpoint:
        words = ["ec2-instance-connect", "open-tunnel", "--instance-id", instance_id]
        if place.login.instance_connect_endpoint != "any":
            words += ["--instance-connect-endpoint-id", place.login.instance_connect_endpoint]
        return f"{_aws(place)} {shlex.join(words)} --remote-port %p"
    return (place.login.proxy_command or "").replace("%i", instance_id)


def programs(place: Place) -> list[str]:
    """The programs that a login needs on this machine."""
    if place.login.jump_host:
        return ["ssh"]
    if place.login.ssh_interface == SESSION_MANAGER:
        return ["aws", "session-manager-plugin"]
    if place.login.instance_connect_endpoint:
        return ["aws"]
    return shlex.split(place.login.proxy_command or "")[:1]


def bastion(place: Place) -> dict[str, object]:
    """The jump host as variables of the Packer template; nothing without one."""
    match = _JUMP_HOST.fullmatch(place.login.jump_host or "")
    if not match:
        return {}
    return {
        "ssh_bastion_host": match["host"],
        "ssh_bastion_username": match["user"],
        "ssh_bastion_port": int(match["port"] or 22),
        "ssh_bastion_key_file": place.login.jump_key or "",
    }


def require_packer_login(place: Place) -> None:
    """UsageError where Packer cannot log in to the builder: it knows addresses, a jump host and Session Manager."""
    key = "proxy_command" if place.login.proxy_command else "instance_connect_endpoint"
    if place.login.proxy_command or place.login.instance_connect_endpoint:
        raise UsageError(
            f"{key}: Packer cannot log in to a builder through it; a proof of an AMI can (gpu-ami validate --ami)",
            hint="build with jump_host or ssh_interface: session_manager",
        )


def _jump(place: Place) -> str:
    match = _JUMP_HOST.fullmatch(place.login.jump_host or "")
    assert match  # the place's grammar
    words = ["ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new"]
    words += ["-i", place.login.jump_key, "-o", "IdentitiesOnly=yes"] if place.login.jump_key else []
    words += ["-p", match["port"]] if match["port"] else []
    return f"{shlex.join(words)} -W %h:%p {match['user']}@{match['host']}"


def _aws(place: Place) -> str:
    words = ["aws", "--region", place.region]
    words += ["--profile", place.api.profile] if place.api.profile and not place.api.credentials else []
    words += ["--endpoint-url", place.api.endpoint] if place.api.endpoint else []
    return shlex.join(words)


Leftover = Callable[[GpuAmiError], object]


def make_key(run: Run) -> str:
    """Makes the run's temporary key (0600) once; returns its public half."""
    if not run.key_file.exists():
        keygen = process.find_tool("ssh-keygen", package="openssh-client")
        command: list[str | Path] = [keygen, "-q", "-t", "ed25519", "-N", ""]
        command += ["-C", key_name(run.id), "-f", run.key_file]
        process.run(command, timeout=30)
    return run.key_file.with_suffix(".pub").read_text().strip()


@contextmanager
def temporary_key(
    cloud: Cloud, run: Run, tags: Mapping[str, str], on_leftover: Leftover | None = None, suffix: str = ""
) -> Iterator[str]:
    """Name of a key pair that lives as long as the block. on_leftover: gets the error if it cannot be deleted."""
    name = key_name(run.id) + suffix
    public_key = make_key(run)
    try:
        cloud.import_key(name, public_key, tags)
    except BaseException as error:
        if not isinstance(error, GpuAmiError) or aws_errors.may_have_happened(error):  # its answer may be lost
            clean_up(run, lambda: cloud.delete_key(name), on_leftover or (lambda _: None))
        raise
    with removed_after(run, lambda: cloud.delete_key(name), on_leftover):
        yield name


@contextmanager
def removed_after(run: Run, remove: Callable[[], object], on_leftover: Leftover | None = None) -> Iterator[None]:
    """Removes something after the block. An error of the block stays the error; what cannot be removed is a detail."""
    try:
        yield
    except GpuAmiError as error:
        clean_up(run, remove, on_leftover or functools.partial(_add_leftover, error))
        raise
    except BaseException:
        clean_up(run, remove, on_leftover)
        raise
    clean_up(run, remove, on_leftover)


def _add_leftover(error: GpuAmiError, leftover: GpuAmiError) -> None:
    error.details = (*error.details, f"not removed: {leftover.message}")


def clean_up(run: Run, remove: Callable[[], object], on_leftover: Leftover | None) -> None:
    """Removes something. What cannot be removed stays in the run's record for `sweep`, and does not hide results."""
    try:
        with runs.cleaning_up(run):
            remove()
    except GpuAmiError as error:
        if on_leftover is None:
            raise
        on_leftover(error)
