"""Packer 1.6.6, as far as AWS and gpu-ami see it: its calls, its output, its manifest. Nothing is provisioned."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from tests.killed_driver import SPEED


def say(text: str, kind: str = "say") -> None:
    print(f"{time.time():.0f},,ui,{kind},==> amazon-ebs.image: {text}", flush=True)


def until(call: Callable[[], Any], is_done: Callable[[Any], bool] = lambda _: True) -> Any:
    """The answer as soon as it is as it should be; what AWS does not know yet is asked again."""
    for _ in range(600):
        try:
            if is_done(answer := call()):
                return answer
        except ClientError as error:
            if not error.response["Error"]["Code"].endswith(".NotFound"):
                raise
        time.sleep(2 / SPEED)
    raise SystemExit("no end of waiting")


def build(ec2: Any, variables: dict[str, str], plan: dict[str, Any]) -> str:
    """The image's id."""
    name = f"gpu-ami_{plan['flag']}-{time.time_ns()}"
    origin = {"gpu-ami:run": variables["run_id"], "gpu-ami:recipe": plan["recipe"], "gpu-ami:plan": plan["plan_digest"]}
    of_builder = {"Name": f"gpu-ami {plan['recipe']} {variables['run_id']} builder"}
    of_builder |= origin | {"gpu-ami:expires": variables["expires"]}
    tags = {kind: [{"Key": key, "Value": value} for key, value in of_kind.items()] for kind, of_kind in (
        ("builder", of_builder), ("image", origin | {"Name": name, "gpu-ami:expires": "never"}),
    )}  # fmt: skip
    key = variables["key_pair_name"]
    ec2.create_key_pair(KeyName=key, TagSpecifications=[{"ResourceType": "key-pair", "Tags": tags["builder"]}])
    instance = ""
    try:
        launched = until(lambda: ec2.run_instances(
            ImageId=variables["source_ami"], InstanceType=plan["instance_type"], MinCount=1, MaxCount=1, KeyName=key,
            SubnetId=plan["subnet_id"], SecurityGroupIds=plan["security_group_ids"],
            TagSpecifications=[{"ResourceType": kind, "Tags": tags["builder"]} for kind in ("instance", "volume")],
        ))  # fmt: skip
        instance = launched["Instances"][0]["InstanceId"]
        say(f"Instance ID: {instance}", "message")

        def state(expected: str) -> None:
            described = until(
                lambda: ec2.describe_instances(InstanceIds=[instance]),
                lambda row: row["Reservations"][0]["Instances"][0]["State"]["Name"] in (expected, "terminated"),
            )
            if described["Reservations"][0]["Instances"][0]["State"]["Name"] != expected:
                raise SystemExit(f"the builder is not {expected}")

        state("running")
        say("Provisioning with Ansible...")
        time.sleep(20 / SPEED)
        ec2.stop_instances(InstanceIds=[instance])
        state("stopped")
        image = str(ec2.create_image(InstanceId=instance, Name=name)["ImageId"])
        described = until(
            lambda: ec2.describe_images(ImageIds=[image]), lambda row: row["Images"][0]["State"] == "available"
        )
        (device,) = described["Images"][0]["BlockDeviceMappings"]
        ec2.create_tags(Resources=[image, device["Ebs"]["SnapshotId"]], Tags=tags["image"])
        return image
    finally:
        if instance:
            until(lambda: ec2.terminate_instances(InstanceIds=[instance]))
        ec2.delete_key_pair(KeyName=key)


def main(words: list[str]) -> int:
    if words[0] == "version":
        print("Packer v1.6.6")
        return 0
    variables = dict(word.removeprefix("-var=").split("=", 1) for word in words if word.startswith("-var="))
    (var_file,) = [word.removeprefix("-var-file=") for word in words if word.startswith("-var-file=")]
    plan = json.loads(Path(var_file).read_text())
    import boto3  # not for its version, which is asked first
    from botocore.config import Config

    config = Config(retries={"mode": "standard", "total_max_attempts": 10})
    ec2 = boto3.client("ec2", endpoint_url=os.environ["AWS_ENDPOINT_URL"], region_name="us-east-1", config=config)
    try:
        image = build(ec2, variables, plan)
    except ClientError as error:
        refusal = error.response["Error"]
        say(f"Error: api error {refusal['Code']}: {refusal['Message']}", "error")
        return 1
    record = {"artifact_id": f"us-east-1:{image}", "custom_data": {"run_id": variables["run_id"]}}
    Path(variables["manifest_file"]).write_text(json.dumps({"builds": [record]}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
