"""User data: as cloud-init and nodeadm read it."""

from __future__ import annotations

import base64
import ipaddress
import subprocess
from email import message_from_string
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml

from gpu_ami.cloud import Cluster
from gpu_ami.validate.machines.launch import user_data


@pytest.mark.parametrize(
    ("clock", "left"), [(1_000_000, 14400), (1_007_200, 7200), (1_099_999, 60), (5, 14400)], ids=str
)
def test_machine_ends_itself_at_a_time_that_no_restart_moves(tmp_path: Path, clock: int, left: int) -> None:
    text = user_data(240, "proof", now=1_000_000)
    assert text.startswith("#cloud-boothook\n#!/bin/sh\n")
    told = tmp_path / "told"
    for name, body in (("date", f"echo {clock}"), ("systemd-run", f'echo "$@" >{told}')):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    script = tmp_path / "boothook"
    script.write_text(text + "wait\n")
    subprocess.run(["sh", script], env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True, timeout=20)
    assert told.read_text() == f"--quiet --unit=gpu-ami-dead-man --on-active={left}s systemctl poweroff\n"


def parts(*roles: str, cluster: Cluster | None = None) -> dict[str, str]:
    message = message_from_string(user_data(240, "gpu-ami-run-1", roles, cluster=cluster))
    assert message.get_content_type() == "multipart/mixed" and not message.defects
    return {part.get_content_type(): part.get_payload() for part in message.get_payload()}  # type: ignore[union-attr,misc]


def test_eks_image_gets_a_node_config() -> None:
    """Without one nodeadm-config.service fails, and the system is degraded."""
    found = parts("nvidia_driver", "node_eks")
    assert found["text/cloud-boothook"].startswith("#cloud-boothook")
    config = yaml.safe_load(found["application/node.eks.aws"])
    assert (config["apiVersion"], config["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
    cluster = config["spec"]["cluster"]
    assert cluster.keys() == {"name", "apiServerEndpoint", "certificateAuthority", "cidr"}
    assert cluster["name"] == "gpu-ami-run-1" and base64.b64decode(cluster["certificateAuthority"], validate=True)


def test_eks_image_that_joins_a_cluster_gets_that_cluster_a_label_and_a_taint() -> None:
    node = {"joined_at": "https://abc.eks.amazonaws.com", "authority": "UEVN", "cidr": "10.200.0.0/16"}
    found = parts("node_eks", cluster=Cluster("EKS", "gpu-nodes", "20261125-a", node=node))
    spec = yaml.safe_load(found["application/node.eks.aws"])["spec"]
    assert spec["cluster"] == {
        "name": "gpu-nodes",
        "apiServerEndpoint": "https://abc.eks.amazonaws.com",
        "certificateAuthority": "UEVN",
        "cidr": "10.200.0.0/16",
    }
    assert spec["kubelet"]["flags"] == [
        "--node-labels=gpu-ami.run=20261125-a",
        "--register-with-taints=nvidia.com/gpu=20261125-a:NoSchedule",
    ]


# spec.cluster of NodeConfig v1alpha1, https://awslabs.github.io/amazon-eks-ami/nodeadm/doc/api/, 2026-11; required
# are those of the minimal example of https://awslabs.github.io/amazon-eks-ami/nodeadm/.
CLUSTER_DETAILS = {"name", "apiServerEndpoint", "certificateAuthority", "cidr", "enableOutpost", "id"}
REQUIRED = {"name", "apiServerEndpoint", "certificateAuthority", "cidr"}
NODE_CONFIG_SPEC = {"cluster", "containerd", "instance", "kubelet", "featureGates"}


@pytest.mark.parametrize("suffix", ["", "-proof/20260101-000000-0a1b2c"])
def test_node_config_is_what_nodeadm_reads(suffix: str) -> None:
    """nodeadm reads a multi-part document's parts of type application/node.eks.aws and ignores the others.

    Source: nodeadm/internal/configprovider/mime.go of https://github.com/awslabs/amazon-eks-ami (09eea9e8).
    """
    text = user_data(240, "gpu-ami-run-1", ["node_eks"], suffix)
    head, _, body = text.partition("\n\n")
    assert head.isascii() and "boundary=" in head and body.startswith("--"), "net/mail reads a header, then the parts"
    message = message_from_string(text)
    named = [part for part in message.walk() if part.get_content_type() == "application/node.eks.aws"]
    assert len(named) == 1 and not any(part.defects for part in message.walk())
    config = yaml.safe_load(named[0].get_payload())
    assert config.keys() == {"apiVersion", "kind", "spec"} and set(config["spec"]) <= NODE_CONFIG_SPEC
    cluster = config["spec"]["cluster"]
    assert REQUIRED <= set(cluster) <= CLUSTER_DETAILS and all(isinstance(cluster[key], str) for key in REQUIRED)
    assert urlsplit(cluster["apiServerEndpoint"]).hostname == "127.0.0.1"
    assert ipaddress.ip_network(cluster["cidr"]).is_private
    assert base64.b64decode(cluster["certificateAuthority"], validate=True)


def test_ecs_image_joins_no_cluster_of_anybody() -> None:
    script = parts("node_ecs")["text/x-shellscript"]
    assert script.startswith("#!/bin/sh\n") and "ECS_CLUSTER=gpu-ami-run-1" in script


def test_ecs_image_joins_the_cluster_of_the_proof(tmp_path: Path) -> None:
    """The agent takes the last line of a name; the run's id tells whose container instance it is."""
    script = parts("node_ecs", cluster=Cluster("ECS", "gpu-nodes", "run-1"))["text/x-shellscript"]
    config = tmp_path / "ecs.config"
    subprocess.run(["sh", "-c", script.replace("/etc/ecs/ecs.config", str(config))], check=True, timeout=20)
    assert config.read_text().splitlines() == [
        "ECS_CLUSTER=gpu-nodes", 'ECS_INSTANCE_ATTRIBUTES={"gpu-ami.run": "run-1"}',
    ]  # fmt: skip


@pytest.mark.parametrize("roles", [(), ("node_eks",), ("node_ecs",)])
def test_user_data_fits(roles: tuple[str, ...]) -> None:
    """EC2 takes 16 KiB."""
    assert len(user_data(240, "x" * 60, roles, "-proof/20260101-000000-0a1b2c")) < 16 * 1024


CONFIG = '{"logs": {"logs_collected": {"files": {"collect_list": [{"log_group_name" : "/ec2/raw", "x": "y"}]}}}}\n'


def run_boothook(root: Path, suffix: str = "-proof/run-1") -> list[str]:
    """Runs the boothook with its paths below root and without systemd; returns what systemctl was asked."""
    programs = root / "bin"
    programs.mkdir(exist_ok=True)
    for name, body in (("systemd-run", "exit 0"), ("systemctl", f'echo "$*" >>{root}/asked')):
        (programs / name).write_text(f"#!/bin/sh\n{body}\n")
        (programs / name).chmod(0o755)
    text = user_data(240, "proof", log_group_suffix=suffix).replace("/opt/", f"{root}/opt/")
    text = text.replace("/run/", f"{root}/run/")
    environment = {"PATH": f"{programs}:/usr/bin:/bin"}
    subprocess.run(["sh", "-s"], input=f"{text}wait\n", env=environment, check=True, timeout=20, text=True)
    return (root / "asked").read_text().splitlines() if (root / "asked").exists() else []


def test_agent_sees_other_log_groups_and_the_image_keeps_its_files(tmp_path: Path) -> None:
    parts = tmp_path / "opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d"
    parts.mkdir(parents=True)
    base, gpu = parts / "file_base.json", parts / "file_gpu.json"
    base.write_text(CONFIG)
    gpu.write_text('{"metrics": {"namespace" : "CWAgent", "x": 1}}')
    asked = run_boothook(tmp_path)
    assert asked == ["daemon-reload", "--no-block try-restart amazon-cloudwatch-agent.service"]
    (drop_in,) = (tmp_path / "run/systemd/system/amazon-cloudwatch-agent.service.d").iterdir()
    copies = tmp_path / "run/gpu-ami-proof/amazon-cloudwatch-agent.d"
    script = tmp_path / "run/gpu-ami-proof/copy-configuration"
    assert drop_in.name < "gpu-ami.conf", "the image's own ExecStartPre= runs after the copy"
    assert drop_in.read_text().splitlines() == [
        "[Service]",
        # Outside the unit's mount namespace: inside, the copy is mounted over what it is made of.
        f"ExecStartPre=+/bin/sh -c 'exec nsenter --target 1 --mount /bin/sh {script}'",
        f"BindPaths={copies}:{parts}",
    ]
    (copies / "file_of_the_last_start.json").touch()
    for group in ("/ec2/raw", "/ec2/other"):  # what the image has at this start of the agent, not at the boot
        base.write_text(CONFIG.replace("/ec2/raw", group))
        subprocess.run(["sh", script], check=True, timeout=20)
        assert {file.name: file.read_text() for file in copies.iterdir()} == {
            "file_base.json": CONFIG.replace("/ec2/raw", f"{group}-proof/run-1"),
            "file_gpu.json": '{"metrics": {"namespace" : "CWAgent-proof", "x": 1}}',
        }
        assert base.read_text() == CONFIG.replace("/ec2/raw", group)


def test_image_without_agent_boots_and_production_groups_change_nothing(tmp_path: Path) -> None:
    run_boothook(tmp_path)
    subprocess.run(["sh", tmp_path / "run/gpu-ami-proof/copy-configuration"], check=True, timeout=20)
    assert "amazon-cloudwatch-agent" not in user_data(240, "proof")
