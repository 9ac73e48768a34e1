"""User data that puts the replica of the SSM Agent on a machine of the local region.

AWS's own images of Amazon Linux and Ubuntu have the agent; Debian's have not. AWS's user guide ("Manually installing
SSM Agent on EC2 instances for Linux", read 2026-11-23) puts it there by user data, too.
"""

from __future__ import annotations

from pathlib import Path

_REPLICA = Path(__file__).resolve().parents[1] / "replicas" / "ssm_agent"
_UNIT = "amazon-ssm-agent.service"
MAX_BYTES = 16 * 1024  # EC2 user guide, "Run commands when you launch an EC2 instance": user data before base64


def user_data() -> str:
    """A shell script of cloud-init that installs and starts the agent."""
    program = (_REPLICA / "amazon_ssm_agent.py").read_text(encoding="utf-8")
    unit = (_REPLICA / _UNIT).read_text(encoding="utf-8")
    return (
        "#!/bin/sh\n"
        f"cat >/usr/bin/amazon-ssm-agent <<'END_OF_AGENT'\n{program}END_OF_AGENT\n"
        "chmod 0755 /usr/bin/amazon-ssm-agent\n"
        f"cat >/etc/systemd/system/{_UNIT} <<'END_OF_UNIT'\n{unit}END_OF_UNIT\n"
        f"systemctl daemon-reload && systemctl enable --now {_UNIT}\n"
    )
