"""How Packer is run on the template: what it asks EC2 for, and what becomes of its output."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import paramiko
import pytest

from gpu_ami.build import packer
from gpu_ami.cloud.place import Network, Place
from gpu_ami.errors import BuildError, CloudError
from gpu_ami.plan import PACKER_FILE, Plan, make_plan
from gpu_ami.process import run
from gpu_ami.progress import Progress
from tests.packer.conftest import PLACE, RECIPE, ROOT, TEMPLATE

pytestmark = pytest.mark.slow


@dataclass
class Region:
    """Plain moto behind a door that keeps every call, with a subnet in which addresses are loopback addresses."""

    place: Place
    ec2: Any
    calls: list[dict[str, str]]

    def call(self, action: str) -> dict[str, str]:
        """Parameters of the only call of its kind."""
        (found,) = (call for call in self.calls if call["Action"] == action)
        return found

    def tags(self, call: dict[str, str], resource: str) -> dict[str, str]:
        """The tags that a call carried for the resources of one type it was to create."""
        prefixes = [key.removesuffix("ResourceType") for key, value in call.items() if value == resource]
        keys = [key for key in call for prefix in prefixes if key.startswith(prefix) and key.endswith(".Key")]
        return {call[key]: call[key.removesuffix("Key") + "Value"] for key in keys}


@pytest.fixture(scope="module")
def region() -> Iterator[Region]:
    import boto3
    from moto.core.models import DEFAULT_ACCOUNT_ID
    from moto.ec2.models import ec2_backends
    from moto.ec2.models.amis import Ami
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    calls: list[dict[str, str]] = []
    moto = DomainDispatcherApplication(create_backend_app)

    def recording(environ: Any, start_response: Any) -> Any:
        call = dict(
            urllib.parse.parse_qsl(environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0)).decode())
        )
        calls.append(call)
        # moto does not let CreateImage tag snapshots, which current Packers ask for.
        untaggable = tuple(
            key.removesuffix("ResourceType")
            for key, value in call.items()
            if call["Action"] == "CreateImage" and value == "snapshot"
        )
        body = urllib.parse.urlencode([one for one in call.items() if not one[0].startswith(untaggable)]).encode()
        environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return moto(environ, start_response)

    backend = ec2_backends[DEFAULT_ACCOUNT_ID]["us-east-1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # seconds for each fresh moto
        backend.reset()
    # RegisterImage of moto leaves out what Packer reads of an image.
    source = {"virtualization_type": "hvm", "hypervisor": "xen", "architecture": "x86_64", "root_device_type": "ebs"}
    backend.amis[PLACE.source_ami] = Ami(backend, PLACE.source_ami, name="debian-12", public=True, **source)
    server = make_server("127.0.0.1", 0, recording, threaded=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    ec2 = boto3.client(
        "ec2", "us-east-1", endpoint_url=endpoint, aws_access_key_id="testing", aws_secret_access_key="testing"
    )
    vpc = ec2.create_vpc(CidrBlock="127.90.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="127.90.1.0/24")["Subnet"]["SubnetId"]
    calls.clear()
    place = replace(
        PLACE,
        api=replace(PLACE.api, endpoint=endpoint),
        network=Network(subnet_ids=(subnet,)),
        login=replace(PLACE.login, ssh_port=free_port()),
    )
    yield Region(place, ec2, calls)
    server.shutdown()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


class _LetsIn(paramiko.ServerInterface):
    """A builder's sshd as Packer sees it: any key, any command, which ends with 0."""

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return paramiko.AUTH_SUCCESSFUL

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return paramiko.OPEN_SUCCEEDED

    def check_channel_pty_request(self, *_: Any) -> bool:
        return True

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        def answer() -> None:
            channel.send_exit_status(0)
            channel.close()

        threading.Timer(0.05, answer).start()
        return True


def listen(address: str, port: int) -> None:
    """Serves SSH there from a thread of its own."""
    listener = socket.create_server((address, port))
    key = paramiko.RSAKey.generate(2048)

    def accept() -> None:
        while True:
            transport = paramiko.Transport(listener.accept()[0])
            transport.add_server_key(key)
            with contextlib.suppress(
                EOFError, paramiko.SSHException, OSError
            ):  # Packer's look whether the port is open
                transport.start_server(server=_LetsIn())

    threading.Thread(target=accept, daemon=True).start()


@dataclass
class Built:
    made: packer.Made
    region: Region
    folder: Path
    notes: str

    @property
    def image(self) -> dict[str, Any]:
        (found,) = self.region.ec2.describe_images(ImageIds=[self.made.ami])["Images"]
        return dict(found)


def build_in(
    region: Region, folder: Path, plan: Plan, run_id: str = "r-1", template: str = "", **variables: str
) -> Built:
    """One build from end to end, but for what Ansible does: in its place, a program that notes how it was called."""
    plan.write(folder, region.place)
    ansible = folder / "ansible-playbook"
    ansible.write_text(
        f'#!/bin/sh\n[ "$1" != --version ] || {{ echo ansible-playbook 2.19.0 | tee {folder}/asked; exit; }}\n'
        f'printf "%s\\n" "$ANSIBLE_CONFIG" "$@" >{folder}/called\n'
        f'while [ $# -gt 1 ]; do [ "$1" != -i ] || cp "$2" {folder}/inventory; shift; done\n'
    )
    ansible.chmod(0o755)

    def builder(instance_id: str) -> None:
        found = region.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
        listen(found["PrivateIpAddress"], region.place.login.ssh_port)

    notes = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPU_AMI_HOME", str(folder))
        patch.setattr(packer, "ansible_playbook", lambda: str(ansible))
        made = packer.build(
            packer.PackerRun(
                TEMPLATE,
                folder,
                region.place,
                run_id=run_id,
                expires="2030-01-31T12:00:00Z",
                key_name=f"gpu-ami-{run_id}-builder",
                progress=Progress(stream=notes),
                poll_seconds=1,
                timeout=120,
                on_builder=builder,
                variables=variables,
                template=template or None,
            )
        )
    return Built(made, region, folder, notes.getvalue())


@pytest.fixture(scope="module")
def built(region: Region, tmp_path_factory: pytest.TempPathFactory, plan: Plan) -> Built:
    return build_in(region, tmp_path_factory.mktemp("build"), plan)


def test_build_ends_with_the_image_of_the_manifest(built: Built) -> None:
    assert re.fullmatch(r"gpu-ami_debian12-gpu_580\.178\.04-\d{14}", built.image["Name"])
    assert built.made.region == "us-east-1"
    assert (
        built.made.record["custom_data"]["plan_digest"]
        == json.loads((built.folder / PACKER_FILE).read_text())["plan_digest"]
    )


def test_ansible_is_started_once_with_the_builder_s_address(built: Built) -> None:
    """Packer would ask for its version twice, a start of Python each, to choose the inventory's form."""
    assert (built.folder / "called").exists() and not (built.folder / "asked").exists()
    port = built.region.place.login.ssh_port
    inventory = (built.folder / "inventory").read_text()
    assert re.fullmatch(rf"default ansible_host=127\.90\.1\.\d+ ansible_user=admin ansible_port={port}\n", inventory)


def test_builder_is_tagged_and_bounded_by_the_call_that_makes_it(built: Built, plan: Plan) -> None:
    call = built.region.call("RunInstances")
    for resource in ("instance", "volume"):
        tags = built.region.tags(call, resource)
        assert {key: tags[key] for key in tags if key != "Name"} == {
            "gpu-ami:run": "r-1",
            "gpu-ami:expires": "2030-01-31T12:00:00Z",
            "gpu-ami:recipe": plan.image,
            "gpu-ami:plan": json.loads((built.folder / PACKER_FILE).read_text())["plan_digest"],
            "team": "vision",
        }
    assert call["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert "--on-active=180m systemctl poweroff" in base64.b64decode(call["UserData"]).decode()


def test_current_packers_ask_for_imds_v2_at_once(built: Built) -> None:
    """The driver asks for it afterwards where Packer cannot (gpu_ami/build/image.py)."""
    of_builder = built.region.call("RunInstances").get("MetadataOptions.HttpTokens")
    of_image = [call["ImdsSupport.Value"] for call in built.region.calls if "ImdsSupport.Value" in call]
    assert (of_builder, of_image) == (("required", ["v2.0"]) if packer.Packer.find().has_plugins else (None, []))


def test_builder_may_use_open_capacity_reservations(built: Built) -> None:
    """EC2's default, which Packer 1.6 leaves alone; the amazon plugin's default is `none`."""
    preference = built.region.call("RunInstances").get("CapacityReservationSpecification.CapacityReservationPreference")
    assert preference in (None, "open")


def test_nothing_changes_the_image_before_it_is_tagged(built: Built) -> None:
    """The caller's policy allows ModifyImageAttribute on images that carry the run's tag."""
    image, calls = built.image["ImageId"], list(built.region.calls)
    actions = [call["Action"] for call in calls]
    tagged = actions.index("CreateImage")
    if (
        "gpu-ami:run" not in calls[tagged].values()
    ):  # current Packers tag in this call, 1.6.6 when the image is complete
        later = [number for number, action in enumerate(actions) if action == "CreateTags"]
        tagged = next(number for number in later if image in calls[number].values())
    assert [
        number for number, action in enumerate(actions) if action == "ModifyImageAttribute" and number < tagged
    ] == []


def test_root_volume_is_encrypted_from_the_start(built: Built) -> None:
    call = built.region.call("RunInstances")
    device = {key.rpartition(".")[2]: value for key, value in call.items() if key.startswith("BlockDeviceMapping.1.")}
    assert (device["DeviceName"], device["Encrypted"], device["VolumeType"]) == ("/dev/xvda", "true", "gp3")
    assert not [
        call for call in built.region.calls if call["Action"] == "CopyImage"
    ]  # that is how encrypt_boot does it


def test_image_says_what_is_in_it_and_never_expires(built: Built) -> None:
    tags = {tag["Key"]: tag["Value"] for tag in built.image["Tags"]}
    assert tags["gpu-ami:expires"] == "never"
    assert {key: value for key, value in tags.items() if key.endswith("_version")} == {
        "nvidia_version": "580.178.04",
        "cuda_version": "13.0",
        "cudnn_version": "9.20.0",
        "nccl_version": "2.28.9",
        "efa_version": "1.50.0",
        "intel_mkl_version": "2020.4-912",
    }


def test_nothing_temporary_is_left(built: Built) -> None:
    ec2 = built.region.ec2
    assert ec2.describe_key_pairs()["KeyPairs"] == []
    assert [
        group["GroupName"]
        for group in ec2.describe_security_groups()["SecurityGroups"]
        if "packer" in group["GroupName"]
    ] == []
    states = [one["State"]["Name"] for all_ in ec2.describe_instances()["Reservations"] for one in all_["Instances"]]
    assert states == ["terminated"]
    assert list(built.folder.glob("packer-*/")) == []


def test_ansible_gets_the_plan_and_this_project_s_configuration(built: Built) -> None:
    config, *words = (built.folder / "called").read_text().splitlines()
    assert config == str(ROOT / "ansible.cfg")
    assert f"@{built.folder}/ansible.json" in words
    assert json.loads(next(word for word in words if word.startswith("{"))) == {"gpu_ami_layer": ""}
    assert Path(words[-1]).resolve() == ROOT / "playbooks" / "image.yml"


def test_log_and_progress_are_readable(built: Built) -> None:
    log = (built.folder / packer.LOG_FILE).read_text()
    assert re.search(r"^ +\d+\.\d  Launching a source AWS instance\.\.\.$", log, re.MULTILINE)
    assert "· Launching a source AWS instance..." in built.notes
    assert "%!(" not in log + built.notes


def test_by_hand_the_var_file_of_a_local_region_is_enough(
    region: Region, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No credentials in the environment: those of the place are in the var-file. The source AMI does not exist.

    Current Packers need the endpoint in the environment too, and say so before they create anything.
    """
    place = replace(region.place, source_ami="ami-0123456789abcdef0")
    make_plan(RECIPE, place).write(tmp_path, place)
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    used = packer.Packer.find()
    command = [used.program, "build", "-color=false", f"-var-file={tmp_path / PACKER_FILE}", used.template(TEMPLATE)]
    region.calls.clear()
    environment = {"CHECKPOINT_DISABLE": "1"}
    if used.has_plugins:
        refused = run(command, timeout=60, env=environment, cwd=tmp_path, check=False)
        message = " ".join((refused.stdout + refused.stderr).split())
        assert refused.returncode != 0 and region.calls == []
        assert "AWS_ENDPOINT_URL in the environment: expected the value of custom_endpoint" in message
        environment["AWS_ENDPOINT_URL"] = str(region.place.api.endpoint)
    done = run(command, timeout=60, env=environment, cwd=tmp_path, check=False)
    assert "InvalidAMIID" in done.stdout + done.stderr
    assert "DescribeImages" in [call["Action"] for call in region.calls]


@pytest.mark.skipif("not packer.Packer.find().has_plugins", reason="Packer before 1.7 takes no spot_price")
def test_spot_builder_is_tagged_by_the_call_that_makes_it(region: Region, tmp_path: Path, plan: Plan) -> None:
    """moto's fleets make no Spot request, which the plugin reads next: the build ends there, with what it asked for."""
    plan.write(tmp_path, region.place)
    region.calls.clear()
    run_options: dict[str, Any] = {"run_id": "r-3", "expires": "2030-01-31T12:00:00Z", "key_name": "k-3", "timeout": 90}
    with pytest.raises(BuildError):
        source = {"spot_price": "auto"}
        packer.build(
            packer.PackerRun(
                TEMPLATE, tmp_path, region.place, progress=Progress("quiet"), variables=source, **run_options
            )
        )
    template = region.call("CreateLaunchTemplate")
    assert template["LaunchTemplateData.InstanceMarketOptions.MarketType"] == "spot"
    assert template["LaunchTemplateData.MetadataOptions.HttpTokens"] == "required"
    for resource in ("instance", "volume", "launch-template"):
        assert region.tags(template, resource)["gpu-ami:run"] == "r-3"
    assert region.call("CreateFleet")["Type"] == "instant"


def test_failing_build_says_why(region: Region, tmp_path: Path, plan: Plan) -> None:
    """No such source AMI: AWS's code, as our own calls name it, Packer's sentence, and where to read on."""
    place = replace(region.place, source_ami="ami-0123456789abcdef0")
    make_plan(RECIPE, place).write(tmp_path, place)
    with pytest.raises(CloudError) as caught:
        packer.build(
            packer.PackerRun(
                TEMPLATE,
                tmp_path,
                place,
                run_id="r-2",
                expires="",
                key_name="k-2",
                progress=Progress("quiet"),
                timeout=60,
            )
        )
    assert "InvalidAMIID" in caught.value.message
    assert any(detail.endswith("build.log") for detail in caught.value.details)
    assert "not in this region" in caught.value.hint


def test_tags_of_the_image_are_not_the_builder_s(region: Region, tmp_path: Path, plan: Plan) -> None:
    region.calls.clear()
    further = {"parallelcluster:version": "3.16.3", "parallelcluster:os": "ubuntu2404"}
    built = build_in(region, tmp_path, plan, "r-7", image_tags=json.dumps(further))
    tags = {tag["Key"]: tag["Value"] for tag in built.image["Tags"]}
    assert further.items() <= tags.items() and tags["gpu-ami:run"] == "r-7"
    assert not further.keys() & built.region.tags(built.region.call("RunInstances"), "instance").keys()


def test_a_layer_image_is_tagged_as_one_expires_and_runs_its_roles(region: Region, tmp_path: Path, plan: Plan) -> None:
    """No tag of a recipe or plan, by which finished images are found, and no version of what it does not have."""
    region.calls.clear()
    digest, roles = f"sha256:{'1' * 64}", ["kernel", "hygiene"]
    layer = {"layer": "kernel", "layer_digest": digest, "image_expires": "2030-01-31T12:00:00Z"}
    layer["image_tags"] = json.dumps({"parallelcluster:version": "3.16.3"})  # of finished images alone
    built = build_in(region, tmp_path, plan, "r-9", **layer, roles=json.dumps(roles))
    assert re.fullmatch(r"gpu-ami-layer_kernel_debian12-gpu-\d{14}", built.image["Name"])
    shared = {"gpu-ami:run": "r-9", "gpu-ami:layer": "kernel", "gpu-ami:layer-digest": digest, "team": "vision"}
    tags = {tag["Key"]: tag["Value"] for tag in built.image["Tags"]}
    assert tags == {"Name": built.image["Name"], "gpu-ami:expires": "2030-01-31T12:00:00Z", **shared}
    of_builder = built.region.tags(built.region.call("RunInstances"), "instance")
    assert {key: value for key, value in of_builder.items() if key not in ("Name", "gpu-ami:expires")} == shared
    words = (tmp_path / "called").read_text().splitlines()
    given = json.loads(next(word for word in words if word.startswith("{")))
    assert given == {"gpu_ami_layer": "kernel", "gpu_ami_roles": roles}


def test_a_builder_that_gpu_ami_launched_is_provisioned_and_hands_over_the_image_s_tags(
    built: Built, region: Region, tmp_path: Path, plan: Plan
) -> None:
    """The null builder runs the same playbook; its manifest has the name and the tags that Packer gives an image."""
    calls, port = len(region.calls), free_port()
    listen("127.90.7.7", port)
    key = tmp_path / "id"
    paramiko.RSAKey.generate(2048).write_private_key_file(str(key))
    variables = {"ssh_host": "127.90.7.7", "ssh_private_key_file": str(key), "ssh_port": str(port)}
    other = build_in(region, tmp_path, plan, "r-2", template=packer.LAUNCHED, **variables)
    assert len(region.calls) == calls and (other.made.ami, other.made.region) == ("", "")
    inventory = (tmp_path / "inventory").read_text()
    assert inventory == f"default ansible_host=127.90.7.7 ansible_user=admin ansible_port={port}\n"
    called, expected = ((folder / "called").read_text() for folder in (tmp_path, built.folder))
    assert [line for line in called.splitlines() if line.startswith("{")] == [
        line for line in expected.splitlines() if line.startswith("{")
    ]
    assert "playbooks/image.yml" in called
    data: Any = other.made.record["custom_data"]
    tags = {tag["Key"]: tag["Value"] for tag in built.image["Tags"]}
    changing = {"Name", "gpu-ami:run"}
    given = json.loads(data["image_tags"])
    assert {key: given[key] for key in given if key not in changing} == {
        key: tags[key] for key in tags if key not in changing
    }
    assert given["gpu-ami:run"] == "r-2" and data["image_name"] == given["Name"]
    assert re.fullmatch(r"gpu-ami_debian12-gpu_580\.178\.04-\d{14}", data["image_name"])
