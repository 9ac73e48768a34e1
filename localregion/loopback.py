"""Addresses of the local region: a /16 of 127.0.0.0/8 for its instances, and the services that a guest reaches."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from gpu_ami.errors import CloudError

# As the guest sees them; QEMU's user network forwards each to a service of the region.
METADATA_ADDRESS = "169.254.169.254"
API_ADDRESS = "169.254.169.251"
MIRROR_ADDRESS = "169.254.169.252"
CLUSTER_ADDRESS = "169.254.169.250"  # the API server of the EKS cluster, on port 443
# Operating systems' own archives, with their own signatures (localregion/mirror/distribution_archive.py).
ARCHIVES = f"http://{MIRROR_ADDRESS}/archive"

# 2222 by preference; the others for hosts where something listens on that port of all addresses.
SSH_PORTS = (2222, 22022, 22122)
_FIRST, _LAST = 20, 219


@dataclass(frozen=True)
class Network:
    """A claimed /16. It is this region's as long as `claim`, a listening socket on its first address, is open."""

    cidr: str
    ssh_port: int
    claim: socket.socket


def claim_network() -> Network:
    """Claims the first free /16. CloudError: none is free."""
    for port in SSH_PORTS:
        for second in range(_FIRST, _LAST + 1):
            claim = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                claim.bind((f"127.{second}.0.1", port))
                claim.listen(1)
            except OSError:
                claim.close()
                continue
            return Network(f"127.{second}.0.0/16", port, claim)
    hint = "run `gpu-ami region down` for each GPU_AMI_HOME that is no longer used"
    raise CloudError("no free loopback network for the local region", hint=hint)
