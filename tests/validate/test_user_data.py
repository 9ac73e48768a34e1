"""User data: as cloud-init and nodeadm read it."""

from __future__ import annotations

import base64
import subprocess
from email import message_from_string
from pathlib import Path

import pytest
import yaml

from gpu_ami.validate.user_data import user_data


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


def parts(*roles: str) -> dict[str, str]:
    message = message_from_string(user_data(240, "gpu-ami-run-1", roles))
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


def test_ecs_image_joins_no_cluster_of_anybody() -> None:
    script = parts("node_ecs")["text/x-shellscript"]
    assert script.startswith("#!/bin/sh\n") and "ECS_CLUSTER=gpu-ami-run-1" in script


@pytest.mark.parametrize("roles", [(), ("node_eks",), ("node_ecs",)])
def test_user_data_fits(roles: tuple[str, ...]) -> None:
    """EC2 takes 16 KiB."""
    assert len(user_data(240, "x" * 60, roles)) < 16 * 1024
