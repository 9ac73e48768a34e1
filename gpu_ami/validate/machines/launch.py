"""Launches instances, which are terminated at the end of their block, also after an error."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import RUN_ATTRIBUTE, Cloud, Cluster, Launch, key_name, log_groups, login, runs
from gpu_ami.validate.machines.deadlines import deadlines
from validator.probes.agent import config as agent_config
from validator.probes.cluster import joined

if TYPE_CHECKING:
    from gpu_ami.cloud import Run
    from gpu_ami.errors import GpuAmiError
    from gpu_ami.recipes import PlanDocument

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
# The agent of this machine sends to log groups and a namespace of the proof. The files of the image stay as they are:
# the agent's unit has a copy of the folder mounted over it, in a mount namespace of its own, made anew at each start of
# the agent. This runs before network-online.target, which the agent waits for; a running agent is restarted.
# nsenter: systemd applies BindPaths= to commands with `+` too, and the copy would be of itself.
# systemd 233 and later know BindPaths=; with an older one the validator finds production's groups and injects nothing.
_AGENT_OF_PROOF = """\
(
  proof=/run/gpu-ami-proof
  drop_in=/run/systemd/system/amazon-cloudwatch-agent.service.d
  mkdir -p "$proof/amazon-cloudwatch-agent.d" "$drop_in"
  cat >"$proof/copy-configuration" <<'END'
etc=/opt/aws/amazon-cloudwatch-agent/etc
cd /run/gpu-ami-proof/amazon-cloudwatch-agent.d && rm -f ./* || exit 1
for file in "$etc"/amazon-cloudwatch-agent.d/* "$etc"/amazon-cloudwatch-agent.json; do
  [ -f "$file" ] || continue
  copy=${{file##*/}}
  [ "$copy" != amazon-cloudwatch-agent.json ] || copy=../$copy
  sed -E -e 's#("log_group_name"[[:space:]]*:[[:space:]]*"[^"]*)"#\\1{suffix}"#g' \\
    -e 's#("namespace"[[:space:]]*:[[:space:]]*"[^"]*)"#\\1{namespace}"#g' "$file" >"$copy" || exit 1
done
END
  cat >"$drop_in/00-gpu-ami-proof.conf" <<'END'
[Service]
ExecStartPre=+/bin/sh -c 'exec nsenter --target 1 --mount /bin/sh /run/gpu-ami-proof/copy-configuration'
BindPaths=/run/gpu-ami-proof/amazon-cloudwatch-agent.d:/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d
END
  json=/opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.json
  if [ -f "$json" ]; then
    : >"$proof/amazon-cloudwatch-agent.json"
    echo "BindPaths=$proof/amazon-cloudwatch-agent.json:$json" >>"$drop_in/00-gpu-ami-proof.conf"
  fi
  systemctl daemon-reload
  systemctl --no-block try-restart amazon-cloudwatch-agent.service
)
"""
# The endpoint refuses connections: kubelet keeps trying, and the node joins nothing.
_NODE_CONFIG = """\
apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  cluster:
    name: {cluster}
    apiServerEndpoint: {endpoint}
    certificateAuthority: {authority}
    cidr: {cidr}
"""
# No pod without a toleration of the taint is scheduled on the node; NVIDIA's device plug-in and the VPC CNI have one.
_KUBELET_FLAGS = """\
  kubelet:
    flags:
      - --node-labels={label}={run}
      - --register-with-taints=nvidia.com/gpu={run}:NoSchedule
"""
_ECS_CONFIG = """\
#!/bin/sh
echo 'ECS_CLUSTER={cluster}' >> /etc/ecs/ecs.config
"""
_ECS_ATTRIBUTES = """\
echo 'ECS_INSTANCE_ATTRIBUTES={attributes}' >> /etc/ecs/ecs.config
"""


def user_data(
    minutes: int,
    no_cluster: str,
    roles: Sequence[str] = (),
    log_group_suffix: str = "",
    now: float | None = None,
    *,
    cluster: Cluster | None = None,
) -> str:
    """User data with which an instance that is launched now ends itself after `minutes`, however often it boots.

    cluster: the one that it joins, for images with the role node_eks or node_ecs; None: `no_cluster`, the name of one
    that does not exist. now: seconds since 1970, for tests. log_group_suffix: appended to the log groups that the agent
    sends to, which then publishes its metrics in a namespace of proofs; "": the image's own.
    """
    expires = int(time.time() if now is None else now) + 60 * minutes
    boothook = _DEAD_MAN.format(minutes=minutes, seconds=60 * minutes, expires=expires)
    if log_group_suffix:
        boothook += _AGENT_OF_PROOF.format(suffix=log_group_suffix, namespace=agent_config.NAMESPACE_SUFFIX)
    if "node_eks" in roles:
        node = ("application/node.eks.aws", _eks_config(no_cluster, cluster))
    elif "node_ecs" in roles:
        node = ("text/x-shellscript", _ecs_config(no_cluster, cluster))
    else:
        return boothook
    return _multi_part(("text/cloud-boothook", boothook), node)


def _eks_config(no_cluster: str, cluster: Cluster | None) -> str:
    """The NodeConfig of nodeadm."""
    if cluster is None or cluster.node is None:
        authority = base64.b64encode(b"no certificate authority: this cluster does not exist\n").decode()
        values = {"cluster": no_cluster, "endpoint": "https://127.0.0.1:1", "authority": authority}
        return _NODE_CONFIG.format(**values, cidr="10.100.0.0/16")
    node = {"endpoint": cluster.node["joined_at"], "authority": cluster.node["authority"], "cidr": cluster.node["cidr"]}
    flags = _KUBELET_FLAGS.format(label=joined.RUN_LABEL, run=cluster.run)
    return _NODE_CONFIG.format(cluster=cluster.name, **node) + flags


def _ecs_config(no_cluster: str, cluster: Cluster | None) -> str:
    """What the agent reads, in the last lines of its file: which cluster, and of which run the node is."""
    if cluster is None:
        return _ECS_CONFIG.format(cluster=no_cluster)
    attributes = json.dumps({RUN_ATTRIBUTE: cluster.run})
    return _ECS_CONFIG.format(cluster=cluster.name) + _ECS_ATTRIBUTES.format(attributes=attributes)


def _multi_part(*parts: tuple[str, str]) -> str:
    """A MIME multi-part document, as cloud-init and nodeadm read it."""
    head = f'MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary="{_BOUNDARY}"\n\n'
    body = "".join(f'--{_BOUNDARY}\nContent-Type: {kind}; charset="us-ascii"\n\n{text}\n' for kind, text in parts)
    return f"{head}{body}--{_BOUNDARY}--\n"


@contextmanager
def launched(cloud: Cloud, launch: Launch, run: Run, on_leftover: login.Leftover | None = None) -> Iterator[str]:
    """Id of an instance that runs, and is terminated when the block ends. on_leftover: gets the error if that fails."""
    with launched_together(cloud, launch, run, on_leftover) as instance_ids:
        yield instance_ids[0]


def launch_of(
    cloud: Cloud,
    run: Run,
    *,
    ami: str,
    instance_type: str,
    key: str,
    tags: Mapping[str, str],
    roles: Sequence[str] = (),
    cluster: Cluster | None = None,
    **options: Any,
) -> Launch:
    """One machine of a proof, with the user data of its node family. options: further fields of Launch.

    roles: the plan's; node families get user data of their own. cluster: the one that it joins.
    """
    minutes = int(runs.LIFETIME.total_seconds() // 60)
    text = user_data(minutes, key_name(run.id), roles, log_groups.suffix(cloud.place, run), cluster=cluster)
    pending = deadlines(instance_type, cloud.place).boot_seconds
    return Launch(ami, instance_type, key, tags, text, pending_seconds=pending, **options)


@contextmanager
def launched_together(
    cloud: Cloud, launch: Launch, run: Run, on_leftover: login.Leftover | None = None
) -> Iterator[list[str]]:
    """Ids of `launch.count` instances of one call, all of which are terminated when the block ends.

    One whose capacity EC2 withdraws before it runs is followed by the next. on_leftover: also gets the error of one
    that was launched, did not come to run, and could not be terminated.
    """

    def note_leftover(error: GpuAmiError) -> None:
        runs.leave_behind(run.folder)
        if on_leftover:
            on_leftover(error)

    instance_ids = cloud.launch_all(replace(launch, on_leftover=note_leftover))
    with login.removed_after(run, lambda: cloud.terminate(instance_ids), on_leftover):
        yield instance_ids


def efa_interfaces(plan: PlanDocument | None, instance_type: str) -> int:
    """How many EFA interfaces to launch with: the type's where the plan has EFA, else none."""
    if not plan or "efa" not in plan:
        return 0
    return next((row["efa_interfaces"] for row in plan["instance_types"] if row["name"] == instance_type), 0)
