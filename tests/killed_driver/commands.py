"""Forks a process for each line that it reads, JSON: runs the commands `a b;c d` of `gpu-ami` one after the other.

Their folder and environment are in the line. Says the process's id, and how it ended. What machines answer is scripted:
they boot, restart and pass all checks.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import boto3.session
import botocore.session  # imported once for all lines

from gpu_ami import cli, cloud
from gpu_ami.cloud import Cloud, client, image_parameters, runs
from gpu_ami.publish import publication
from gpu_ami.release import keys, verification, verification_place
from gpu_ami.validate import image_proof, proof
from gpu_ami.validate.machines import machine, restarts
from localregion.backends import instance_access_key
from tests.killed_driver import SPEED
from tests.report.examples import a_check, core_checks
from validator.results import HostResults

FACTS = {"hardware": "real", "kernel": "6.1.0", "boot_id": "b-1"}
_SERVICES = ("autoscaling", "cloudwatch", "ec2", "iam", "logs", "scheduler", "ssm", "sts")
_PRELOADED = (botocore.session, boto3.session, keys, verification, verification_place, publication)


def read_services() -> None:
    """What botocore reads of the services, once for all lines."""
    botocore.session.create_loader = functools.cache(botocore.session.create_loader)
    loader = botocore.session.create_loader(None)
    for name in ("endpoints", "partitions", "sdk-default-configuration"):
        loader.load_data(name)
    for service in _SERVICES:
        for kind in ("service-2", "endpoint-rule-set-1"):
            loader.load_service_model(service, kind)


def quicken() -> None:
    """Every wait is SPEED times shorter, as everything in the region is."""
    sleep, read = time.sleep, cloud.load_place
    time.sleep = lambda seconds: sleep(seconds / SPEED)  # type: ignore[assignment]

    def load(path: Path) -> cloud.Place:
        place = read(path)
        return replace(place, api=replace(place.api, consistent_seconds=12.0 / SPEED))

    cloud.load_place = load
    runs.BEAT_SECONDS = 0.2
    publication.POLL_SECONDS = image_parameters.POLL_SECONDS = 0.05


def script_machines() -> None:
    def follow(self: Any, instance_id: str, instance_type: str) -> machine.Machine:
        made = machine.Machine(
            instance_id, instance_type, "192.0.2.1", 22, self.user, self.run.key_file, Path("k"), boot_id="b-1",
            log_group_suffix=cloud.log_groups.suffix(self.cloud.place, self.run),
        )  # fmt: skip
        self.cloud.wait_for_state(instance_id, "running", 600)
        return made

    def restart(boot: Any, made: machine.Machine, how: str) -> machine.Machine:
        if how == restarts.STOP_START:
            boot.cloud.stop(made.instance_id)
            boot.cloud.wait_for_state(made.instance_id, "stopped", 600)
            boot.cloud.start(made.instance_id)
            boot.cloud.wait_for_state(made.instance_id, "running", 600)
        return replace(made, boot_id=f"b-{how}", stages={"ssh": 1.0})

    def agent(self: Any, target: Any) -> Any:
        return boto3.client(
            "logs", endpoint_url=self.place.api.endpoint, region_name="us-east-1", aws_secret_access_key="x",
            aws_access_key_id=instance_access_key(target.instance_id),
        )  # fmt: skip

    def check(self: Any, target: Any, after: str = "", *_: Any, **__: Any) -> HostResults:
        """The agent has sent something."""
        logs = agent(self, target)
        for group in ("/ec2/accelerated/raw", "/ec2/accelerated/json"):
            with contextlib.suppress(logs.exceptions.ResourceAlreadyExistsException):
                logs.create_log_group(logGroupName=f"{group}{target.log_group_suffix}")
        checks = [replace(each, id=f"{each.id}{after and f'@{after}'}", after=after) for each in core_checks()]
        return HostResults(target.url, tuple(checks), facts=FACTS)

    def check_together(self: Any, target: Any, *_: Any, **__: Any) -> HostResults:
        """The checks of several machines, in the middle of which the agent begins a stream."""
        group = f"/ec2/accelerated/raw{target.log_group_suffix}"
        agent(self, target).create_log_stream(logGroupName=group, logStreamName=target.instance_id)
        return HostResults(target.url, (a_check("several_nodes", tier="T4"),), facts=FACTS)

    machine.Boot.follow = follow  # type: ignore[method-assign]
    image_proof.restart = restart
    proof.Proof.check = check  # type: ignore[method-assign]
    proof.Proof.run_checks = check_together  # type: ignore[method-assign]


def main() -> None:
    cli.make_parser()
    read_services()
    client.preload()
    quicken()
    script_machines()
    assert Cloud  # what a command would import
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.chdir(asked["folder"])
            os.environ.clear()
            os.environ.update(asked["environment"])
            os.dup2(os.open("commands.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
            os.dup2(1, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            codes = (cli.main(words.split()) for words in asked["line"].split(";"))
            os._exit(next((code for code in codes if code), 0))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
