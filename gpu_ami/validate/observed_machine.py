"""One machine of an AMI that others built, booted to see what is in it: the proof's plan is made of what was read."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from gpu_ami import observe as observing
from gpu_ami.cloud import Cloud, login, runs
from gpu_ami.progress import Progress
from gpu_ami.validate.machines import Boot, launch, require_interface

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef

# Words of an AMI's name or description → its login user. What none of them names is tried as ec2-user.
_USERS = {
    "ubuntu": "ubuntu", "debian": "admin", "rocky": "rocky", "alma": "ec2-user", "rhel": "ec2-user",
    "centos": "centos", "bottlerocket": "ec2-user",
}  # fmt: skip
_DEFAULT_TYPES = {"x86_64": "g5.12xlarge", "arm64": "g5g.xlarge"}


def login_user(image: ImageTypeDef) -> str:
    """The login user of an AMI, by its name and description."""
    told: Any = image
    text = " ".join(str(told.get(key, "")) for key in ("Name", "Description", "PlatformDetails")).lower()
    return next((user for word, user in _USERS.items() if word in text), "ec2-user")


def observe(
    ami: str,
    image: ImageTypeDef,
    cloud: Cloud,
    run: runs.Run,
    progress: Progress,
    *,
    instance_types: Sequence[str] = (),
) -> observing.Observation:
    """Boots it once, waits for the end of the boot, reads it, and terminates it. CloudError, MachineError."""
    require_interface(cloud.place.login.ssh_interface)
    instance_type = (instance_types or [_DEFAULT_TYPES.get(str(image.get("Architecture")), "g5.12xlarge")])[0]
    cancelled = threading.Event()
    tags = dict(cloud.place.tags) | run.tags(recipe=ami)
    with ExitStack() as stack:
        key = stack.enter_context(login.temporary_key(cloud, run, tags))
        with progress.stage(f"launch {instance_type} of {ami}"):
            one = launch.launch_of(
                cloud, run, ami=ami, instance_type=instance_type, key=key, tags=tags, cancelled=cancelled
            )
            instance_id = stack.enter_context(launch.launched(cloud, one, run))
        boot = Boot(cloud, run, login_user(image), progress, cancelled)
        with progress.stage(f"boot {instance_type}"):
            machine = boot.follow(instance_id, instance_type)
        with progress.stage(f"read {instance_id}"):
            return observing.read_host(boot.target(machine)).named(ami)
