"""The machine under test: metadata, boot, clock, GPUs and environment. Each is read once, when first needed."""

from __future__ import annotations

import functools
import json
import shlex
import time
from dataclasses import dataclass
from typing import Any, TypedDict

from validator.observe import unproven
from validator.probes import nvidia_smi

CLOCK_SECONDS = 2.0  # the agent sends the host's time: with a larger offset, arrival times prove nothing

# One Python process reads all metadata of the checks from the instance metadata service (IMDSv2), a connection each.
# Without http.client and urllib: their import is most of what such a program costs.
_METADATA = """
import socket, sys
ADDRESS = ("169.254.169.254", 80)
def get(path, method="GET", **headers):
    service = socket.socket()
    service.settimeout(5)
    service.connect(ADDRESS)
    headers.update(Host="%s:%d" % ADDRESS, Connection="close")
    lines = [method + " /latest/" + path + " HTTP/1.1"]
    lines += [name.replace("_", "-") + ": " + value for name, value in headers.items()]
    service.sendall(("\\r\\n".join(lines) + "\\r\\n\\r\\n").encode())
    head, _, body = service.makefile("rb").read().partition(b"\\r\\n\\r\\n")
    service.close()
    status = head.partition(b"\\r\\n")[0].decode(errors="replace")
    if status.split()[1:2] == ["404"]:
        return ""
    if status.split()[1:2] != ["200"] or b"\\ntransfer-encoding:" in head.lower():
        sys.exit(path + ": " + (status or "no answer"))
    return body.decode()
token = get("api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
read = lambda path: get(path, X_aws_ec2_metadata_token=token).strip()
keys = [row.partition("=")[0] for row in read("meta-data/public-keys/").splitlines()]
paths = ["meta-data/instance-id", "meta-data/instance-type", "meta-data/ami-id", "dynamic/instance-identity/document"]
print("\\36".join(map(read, paths + ["meta-data/public-keys/%s/openssh-key" % key for key in keys])))
"""
METADATA = f"python3 -IS -c {shlex.quote(_METADATA)}"  # the command; metadata_of reads its output


# The instance metadata. region and private-ip are "" if the identity document has none; public-keys: a line of
# authorized_keys each.
Metadata = TypedDict(
    "Metadata",
    {
        "instance-id": str,
        "instance-type": str,
        "ami-id": str,
        "region": str,
        "private-ip": str,
        "public-keys": list[str],
    },
)


@dataclass(frozen=True)
class Clock:
    """The offset of the host's clock from this machine's, at least and at most (seconds; positive: ahead)."""

    least: float
    most: float

    @property
    def offset(self) -> float:
        """The smallest possible offset; 0 if the clocks may agree."""
        return self.least if self.least > 0 else min(self.most, 0.0)


def metadata_of(printed: str) -> Metadata:
    """What METADATA has printed."""
    instance_id, instance_type, ami_id, document, *keys = printed.rstrip("\n").split("\36")
    identity = json.loads(document or "{}")
    values = {"instance-id": instance_id, "instance-type": instance_type, "ami-id": ami_id}
    values |= {name: str(identity.get(key, "")) for name, key in (("region", "region"), ("private-ip", "privateIp"))}
    return {**values, "public-keys": keys}  # type: ignore[typeddict-item]


class MachineUnderTest:
    """A host as EC2 and its kernel describe it. Id and type come from the metadata unless the caller sets them."""

    def __init__(self, host: Any, instance_id: str | None = None, instance_type: str | None = None) -> None:
        self.host = host
        self._instance_id = instance_id
        self._instance_type = instance_type

    @functools.cached_property
    def metadata(self) -> Metadata:
        """The instance metadata. UNPROVEN if the metadata service does not answer."""
        done = self.host.run(METADATA, pure=True)
        if done.rc != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            unproven(f"the instance metadata service does not answer on the host ({last})")
        try:
            return metadata_of(done.stdout)
        except ValueError as error:
            unproven(f"the instance metadata service has no identity document of JSON ({error})")

    @property
    def instance_id(self) -> str:
        return self._instance_id or self.metadata["instance-id"]

    @property
    def instance_type(self) -> str:
        return self._instance_type or self.metadata["instance-type"]

    @property
    def known_type(self) -> str:
        """The instance type if it has been read or set, else "". Runs no command."""
        return self._instance_type or str(self.__dict__.get("metadata", {}).get("instance-type", ""))

    @functools.cached_property
    def clock(self) -> Clock:
        before = time.time()
        shown = float(self.host.run("date +%s.%N").stdout)
        return Clock(shown - time.time(), shown - before)

    def require_clock(self) -> None:
        """Ends the check as UNPROVEN if the host's clock is off by more than CLOCK_SECONDS."""
        if abs(self.clock.offset) > CLOCK_SECONDS:
            unproven(f"the host's clock is off by {self.clock.offset:+.1f} s, so arrival times prove nothing")

    @functools.cached_property
    def boot_time(self) -> float:
        """Time of this boot, in seconds since 1970 by the host's clock."""
        lines = self.host.file("/proc/stat").content_string.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("btime ")))

    @functools.cached_property
    def first_boot_time(self) -> float:
        """Time when cloud-init first ran for this instance id. Older files on the disk are the image's."""
        # cloud-init creates this file once for each instance; it rewrites the files beside it at every boot.
        done = self.host.run("stat -L -c %Y /var/lib/cloud/instance/sem/consume_data")
        if done.rc != 0:
            unproven("cloud-init has no record of this instance (/var/lib/cloud/instance/sem/consume_data)")
        return float(done.stdout)

    @functools.cached_property
    def gpus(self) -> list[nvidia_smi.Gpu]:
        """The GPUs in nvidia-smi. UNPROVEN if it fails, because the driver checks report that."""
        done = self.host.run("nvidia-smi -q -x", pure=True)
        if done.rc != 0:
            lines = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
            unproven(f"nvidia-smi -q -x exited with status {done.rc}: {lines[0]}")
        return nvidia_smi.read(done.stdout)


def in_login_shell(command: str) -> str:
    """`command` in a login shell of root with an empty environment, which reads /etc/profile and similar files."""
    return f"env -i HOME=/root TERM=dumb bash -lc {shlex.quote(command)}"


# Source → command that prints it. A login shell reads /etc/profile and profile.d; PAM reads /etc/environment.
_COMMANDS = {
    "login shells": f"{in_login_shell('env')} 2>/dev/null",
    "/etc/environment": "cat /etc/environment",
    "services": "systemctl show-environment",
    "services' defaults": "systemctl show -p DefaultEnvironment --value | tr ' ' '\\n'",
}


def environments(host: Any) -> list[tuple[str, str]]:
    """Every setting as source and `NAME=value`. A source that the host does not have is left out."""
    settings = []
    for source, command in _COMMANDS.items():
        lines = [line.strip().removeprefix("export ") for line in host.run(command).stdout.splitlines()]
        settings += [(source, line) for line in lines if line.partition("=")[0].isidentifier()]
    return settings
