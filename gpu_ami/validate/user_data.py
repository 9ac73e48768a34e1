"""User data of the machines of a proof: the dead man's switch, and what the node families need at their first boot.

A plain boothook for most images. An EKS image without a NodeConfig fails in nodeadm-config.service, and an ECS image
without ECS_CLUSTER joins the cluster `default`; both get a multi-part document with a cluster that does not exist.
Sources, read 2026-11: https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/ (required fields of spec.cluster),
https://docs.aws.amazon.com/AmazonECS/latest/developerguide/ecs-agent-config.html (ECS_CLUSTER).
"""

from __future__ import annotations

import base64
import time
from collections.abc import Sequence

_BOUNDARY = "==gpu-ami=="
# Terminates the machine even if nobody is left to do it: shutdown means terminate for every instance that we launch.
# A boothook runs at every boot, so a restart does not disarm it; the time counts from the launch, and a clock that is
# wrong early in a boot makes it no longer. It runs before the jobs that a timer waits for, which wait for cloud-init,
# which waits for whoever holds its output: so it continues in the background until the timer runs.
_DEAD_MAN = """\
#cloud-boothook
#!/bin/sh
# The driver of this run may die; this machine then ends itself {minutes} minutes after its launch.
exec </dev/null >/dev/null 2>&1
left=$(( {expires} - $(date +%s) ))
[ "$left" -le {seconds} ] || left={seconds}
[ "$left" -ge 60 ] || left=60
arm() {{
  systemd-run --quiet --unit=gpu-ami-dead-man --on-active="${{left}}s" systemctl poweroff
}}
until arm || systemctl --quiet is-active gpu-ami-dead-man.timer; do sleep 5; done &
"""
# The endpoint refuses connections: kubelet keeps trying, and the node joins nothing.
_NODE_CONFIG = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  cluster:
    name: {cluster}
    apiServerEndpoint: https://127.0.0.1:1
    certificateAuthority: {authority}
    cidr: 10.100.0.0/16
"""
_ECS_CONFIG = """\
#!/bin/sh
echo 'ECS_CLUSTER={cluster}' >> /etc/ecs/ecs.config
"""


def user_data(minutes: int, cluster: str, roles: Sequence[str] = (), now: float | None = None) -> str:
    """User data with which an instance that is launched now ends itself after `minutes`, however often it boots.

    cluster: the name of a cluster that does not exist, for images with the role node_eks or node_ecs. now: seconds
    since 1970, for tests.
    """
    expires = int(time.time() if now is None else now) + 60 * minutes
    dead_man = _DEAD_MAN.format(minutes=minutes, seconds=60 * minutes, expires=expires)
    if "node_eks" in roles:
        authority = base64.b64encode(b"no certificate authority: this cluster does not exist\n").decode()
        node = ("application/node.eks.aws", _NODE_CONFIG.format(cluster=cluster, authority=authority))
    elif "node_ecs" in roles:
        node = ("text/x-shellscript", _ECS_CONFIG.format(cluster=cluster))
    else:
        return dead_man
    return _multi_part(("text/cloud-boothook", dead_man), node)


def _multi_part(*parts: tuple[str, str]) -> str:
    """A MIME multi-part document, as cloud-init and nodeadm read it."""
    head = f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{_BOUNDARY}"\n\n'
    body = "".join(f'--{_BOUNDARY}\nContent-Type: {kind}; charset="us-ascii"\n\n{text}\n' for kind, text in parts)
    return f"{head}{body}--{_BOUNDARY}--\n"
