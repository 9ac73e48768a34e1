"""What the machine under test is: its metadata, its boot, its clock. Each is asked for once, when a check needs it."""

from __future__ import annotations

import functools
import json
import shlex
import time
from dataclasses import dataclass
from typing import Any, TypedDict

from validator.observe import unproven
from validator.probes import nvidia_smi

CLOCK_SECONDS = 2.0  # CloudWatch stamps by the host's clock: beyond this, times prove nothing

# One Python process asks the instance metadata service (IMDSv2) for all that the checks compare with.
METADATA = """
import json, urllib.error, urllib.request as u
base = "http://169.254.169.254/latest/"
def get(path, method="GET", **headers):
    asked = u.Request(base + path, method=method, headers={k.replace("_", "-"): v for k, v in headers.items()})
    try:
        return u.build_opener(u.ProxyHandler({})).open(asked, timeout=5).read().decode()
    except urllib.error.HTTPError as error:
        if error.code != 404: raise
        return ""
token = get("api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
read = lambda path: get(path, X_aws_ec2_metadata_token=token).strip()
found = {name: read("meta-data/" + name) for name in ("instance-id", "instance-type", "ami-id")}
found["region"] = json.loads(read("dynamic/instance-identity/document") or "{}").get("region", "")
rows = [row.partition("=")[0] for row in read("meta-data/public-keys/").splitlines()]
found["public-keys"] = [read("meta-data/public-keys/%s/openssh-key" % row) for row in rows]
print(json.dumps(found))
"""


# What METADATA prints. region is "" if the identity document has none; public-keys: a line of authorized_keys each.
Metadata = TypedDict(
    "Metadata",
    {"instance-id": str, "instance-type": str, "ami-id": str, "region": str, "public-keys": list[str]},
)


@dataclass(frozen=True)
class Clock:
    """The host's clock against ours: how far ahead it is, at least and at most (seconds)."""

    least: float
    most: float

    @property
    def offset(self) -> float:
        """The smallest offset that explains what was seen; 0 where none is needed."""
        return self.least if self.least > 0 else min(self.most, 0.0)


class MachineUnderTest:
    """A host as EC2 and its kernel describe it. What the caller does not know of it, its metadata say."""

    def __init__(self, host: Any, instance_id: str | None = None, instance_type: str | None = None) -> None:
        self.host = host
        self._instance_id = instance_id
        self._instance_type = instance_type

    @functools.cached_property
    def metadata(self) -> Metadata:
        """What METADATA prints. UNPROVEN if the metadata service does not answer."""
        done = self.host.run(f"python3 -c {shlex.quote(METADATA)}", pure=True)
        if done.rc != 0:
            last = (done.stderr.strip().splitlines() or ["no output"])[-1]
            unproven(f"the instance metadata service does not answer on the host ({last})")
        metadata: Metadata = json.loads(done.stdout)
        return metadata

    @property
    def instance_id(self) -> str:
        return self._instance_id or self.metadata["instance-id"]

    @property
    def instance_type(self) -> str:
        return self._instance_type or self.metadata["instance-type"]

    @property
    def known_type(self) -> str:
        """The instance type if anybody has asked for it; "" else. Asks nothing of the host."""
        return self._instance_type or str(self.__dict__.get("metadata", {}).get("instance-type", ""))

    @functools.cached_property
    def clock(self) -> Clock:
        before = time.time()
        shown = float(self.host.run("date +%s.%N").stdout)
        return Clock(shown - time.time(), shown - before)

    def require_clock(self) -> None:
        """Ends the check as UNPROVEN where the host's clock would make every time meaningless."""
        if abs(self.clock.offset) > CLOCK_SECONDS:
            unproven(f"the host's clock is off by {self.clock.offset:+.1f} s, so arrival times prove nothing")

    @functools.cached_property
    def boot_time(self) -> float:
        """When this boot began, in seconds since 1970 by the host's clock."""
        lines = self.host.file("/proc/stat").content_string.splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith("btime ")))

    @functools.cached_property
    def first_boot_time(self) -> float:
        """When cloud-init first ran for this instance id: what is older on the disk comes from the image."""
        # Made once an instance; the files beside it are written anew at every boot.
        done = self.host.run("stat -L -c %Y /var/lib/cloud/instance/sem/consume_data")
        if done.rc != 0:
            unproven("cloud-init has left no record of this instance (/var/lib/cloud/instance/sem/consume_data)")
        return float(done.stdout)

    @functools.cached_property
    def gpus(self) -> list[nvidia_smi.Gpu]:
        """What nvidia-smi shows. UNPROVEN where there is none, because the driver checks say so already."""
        done = self.host.run("nvidia-smi -q -x", pure=True)
        if done.rc != 0:
            said = (done.stdout + done.stderr).strip().splitlines() or ["no output"]
            unproven(f"nvidia-smi -q -x ended with {done.rc}: {said[0]}")
        return nvidia_smi.read(done.stdout)
