"""User data with the replica of the SSM Agent."""

from __future__ import annotations

import subprocess

from gpu_ami.local.images import ssm_agent


def test_user_data_is_a_script_that_ec2_takes() -> None:
    text = ssm_agent.user_data()
    assert text.startswith("#!/bin/sh\n") and len(text.encode()) <= ssm_agent.MAX_BYTES
    done = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "systemctl enable --now amazon-ssm-agent.service" in text
