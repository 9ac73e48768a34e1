"""A recipe becomes a plan, at a place: mirror, endpoint, kernel, and the source AMI, looked up and never guessed."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import yaml
from botocore.exceptions import ClientError

from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.place import ApiAccess, Mirror, Place
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.plan import resolution
from gpu_ami.plan.document import packer_variables
from gpu_ami.plan.lock import load_lock, lock_file, recorded_ami, resolved_recipe, write_lock
from gpu_ami.plan.resolution import make_plan, require_digests, resolve_source_ami
from gpu_ami.recipes import ResolvedPlan
from tests.aws_requests import Checked
from tests.plan.conftest import AL2023, AWS, DEBIAN, LOCAL, RECIPES, ROOT, urls
from tests.recipes.facts.test_described_types import without


def test_plan_on_aws_fetches_from_the_vendors() -> None:
    plan = make_plan(DEBIAN, AWS)
    hosts = {url.split("/")[2] for url in urls(plan.document)}
    assert {"developer.download.nvidia.com", "amazoncloudwatch-agent.s3.amazonaws.com"} <= hosts
    assert all(url.startswith("https://") for url in urls(plan.document))
    assert "endpoint_override" not in json.dumps(plan.document)


def test_agent_configuration_keeps_what_others_rely_on() -> None:
    agent = make_plan(DEBIAN, AWS)["cloudwatch_agent"]
    raw, events, drain = agent["config"]["logs"]["logs_collected"]["files"]["collect_list"]
    assert (raw["file_path"], raw["log_group_name"], raw["log_stream_name"]) == (
        "/var/log/gpuevent.log", "/ec2/accelerated/accel-event-log", "{instance_id}",
    )  # fmt: skip
    assert events["timestamp_format"] == "%Y-%m-%dT%H:%M:%S.%f"
    assert len({raw["log_group_name"], events["log_group_name"], drain["log_group_name"]}) == 3
    assert agent["config"]["agent"]["run_as_user"] == "root"
    metrics = agent["gpu_config"]["metrics"]
    assert metrics["append_dimensions"]["AutoScalingGroupName"] == "${aws:AutoScalingGroupName}"
    assert metrics["aggregation_dimensions"] == [["InstanceId"]]
    assert metrics["namespace"] == "CWAgent"
    # The agent's schema has no `metrics` that collects nothing, so it all stands in the part that needs a GPU.
    assert "metrics" not in agent["config"]
    assert metrics["metrics_collected"]["nvidia_gpu"]["metrics_collection_interval"] == 10


def test_image_without_gpu_metrics_has_no_gpu_config() -> None:
    plan = make_plan(ROOT / "variables" / "recipes" / "al2023-neuron.yml", AWS)
    assert plan["cloudwatch_agent"]["gpu_config"] == {}
    assert "nvidia_driver" not in plan.document


def test_component_of_a_base_ami_is_recorded_not_installed() -> None:
    plan = make_plan(ROOT / "variables" / "recipes" / "dlami-ubuntu2204.yml", AWS)
    assert plan["nvidia_driver"] == {"version": "595.91.07", "provided_by": "dlami 20261006"}
    assert "nvidia_driver" not in plan["roles"]


def test_recipe_folder_lists_at_least_twenty_images_of_every_family() -> None:
    documents = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in RECIPES]
    assert len(documents) >= 20
    assert {document.get("node", "ec2") for document in documents} == {"ec2", "eks", "ecs", "parallelcluster", "dlami"}
    assert {"al2023", "ubuntu2204", "ubuntu2404", "debian12", "debian13"} == {document["os"] for document in documents}
    assert {document.get("architecture", "x86_64") for document in documents} == {"x86_64", "arm64"}
    assert {document.get("telemetry", {}).get("profile", "compute") for document in documents} == {
        "compute", "graphics", "neuron",
    }  # fmt: skip


def test_recorded_ami_is_used_in_its_region_alone(locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = load_lock(lock_file(AL2023.stem, locks))
    write_lock(lock | {"source_amis": {"eu-central-1": {"id": "ami-0123456789abcdef0"}}}, locks)
    document = resolved_recipe(AL2023)[1]
    assert recorded_ami(document, "eu-central-1", locks) == "ami-0123456789abcdef0"
    assert recorded_ami(document, "us-east-1", locks) is None
    moved: ResolvedPlan = {**document, "source_ami": {"owner": "self", "name": "mine"}}
    assert recorded_ami(moved, "eu-central-1", locks) is None
    monkeypatch.setattr(
        "gpu_ami.plan.resolution.recorded_ami", lambda plan, region, _: recorded_ami(plan, region, locks)
    )
    assert make_plan(AL2023, Place("aws", "eu-central-1"))["source_ami"] == {"id": "ami-0123456789abcdef0"}
    assert "id" not in make_plan(AL2023, Place("aws", "us-east-1"))["source_ami"]
    # An endpoint of one's own has AMIs of its own.
    elsewhere = Place("local", "eu-central-1", api=ApiAccess(endpoint="http://127.0.0.1:1"))
    assert "id" not in make_plan(AL2023, elsewhere)["source_ami"]


def test_plan_at_a_mirror_fetches_from_nowhere_else() -> None:
    plan = make_plan(DEBIAN, LOCAL)
    for url in urls(plan.document):
        assert url.startswith(("http://169.254.169.252/", "http://169.254.169.251")), url
    assert plan["nvidia_driver"]["repository"]["url"] == (
        "http://169.254.169.252/developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"
    )
    assert plan["nvidia_driver"]["repository"]["key_fingerprint"] == "A" * 40
    assert plan["cloudwatch_agent"]["key_fingerprint"] == "A" * 40
    assert plan["cloudwatch_agent"]["config"]["logs"]["endpoint_override"] == "http://169.254.169.251"
    assert plan["cloudwatch_agent"]["gpu_config"]["metrics"]["endpoint_override"] == "http://169.254.169.251"


def test_citations_stay_what_they_are_at_a_mirror() -> None:
    assert make_plan(DEBIAN, LOCAL)["sources"] == make_plan(DEBIAN, AWS)["sources"]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_can_be_planned_at_a_mirror(recipe: Path) -> None:
    plan = make_plan(recipe, LOCAL)
    assert plan["cloudwatch_agent"]["config"]["logs"]["endpoint_override"] == LOCAL.api.guest_endpoint


def test_own_endpoint_has_no_auto_scaling_groups() -> None:
    """The agent asks AWS itself for that name, and publishes nothing until it is told."""
    placed = make_plan(DEBIAN, LOCAL)["cloudwatch_agent"]["gpu_config"]["metrics"]["append_dimensions"]
    assert set(placed) == {"ImageId", "InstanceId", "InstanceType"}


def test_place_may_name_the_source_ami() -> None:
    plan = make_plan(DEBIAN, Place(name="x", region="us-east-1", source_ami="ami-0123456789abcdef0"))
    assert plan["source_ami"] == {"id": "ami-0123456789abcdef0"}
    assert packer_variables(plan.document, AWS, Path("/x"))["source_ami"] == "ami-0123456789abcdef0"


def test_a_place_with_a_kernel_of_its_own_says_so() -> None:
    """The version is of the series that really boots, the packages are the planned ones, and the plan says so."""
    recipe = ROOT / "variables" / "recipes" / "eks-1.33-al2023-gpu.yml"
    assumed = make_plan(recipe, AWS)
    booted = make_plan(recipe, dataclasses.replace(LOCAL, machines=dataclasses.replace(LOCAL.machines, kernel="6.1")))
    assert assumed["kernel"] == {
        "version": "6.12",
        "package": "kernel6.12",
        "headers": "kernel6.12-devel-{release}",
        "hold": ["kernel6.12", "kernel6.12-devel", "kernel6.12-headers"],
    }
    assert booted["kernel"] == assumed["kernel"] | {"version": "6.1"}
    note = "not proven here: kernel 6.12; machines of local boot 6.1"
    assert note in booted["notes"] and note not in assumed["notes"]
    machines = dataclasses.replace(LOCAL.machines, kernel="6.1", kernels={"debian 13": "6.12"})
    own = dataclasses.replace(LOCAL, machines=machines)
    trixie = ROOT / "variables/recipes/debian13-distribution.yml"
    for recipe in (DEBIAN, trixie):
        assert make_plan(recipe, own)["notes"] == make_plan(recipe, LOCAL)["notes"]
    assert make_plan(trixie, own)["kernel"]["version"] == "6.12"


@pytest.mark.parametrize(
    ("system", "note"),
    [
        (
            "debian12",
            "1 role of the site (company_monitor): packages of the operating system are those of Debian 12's archive on"
            " the day of the build",
        ),
        (
            "debian13",
            "1 role of the site (company_monitor): packages of the operating system are those of Debian 13's archive on"
            " the day of the build",
        ),
        (
            "ubuntu2404",
            "1 role of the site (company_monitor): packages of the operating system are those of Debian 12's archive on"
            " the day of the build, not ubuntu 24.04's",
        ),
        (
            "al2023",
            "not proven here: packages of amzn 2023 that 1 role of the site (company_monitor) may install: local has"
            " none of that archive, and such an installation fails there",
        ),
    ],
)
def test_a_mirror_says_whose_packages_roles_of_a_site_get(system: str, note: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ROOT / "docs" / "examples" / "site", tmp_path / "site"))
    recipe = folder / "recipes" / "monitored.yml"
    text = recipe.read_text().replace("os: debian12", f"os: {system}")
    if system == "debian13":  # whose repository of NVIDIA's has no driver before R590
        text = text.replace('"580"', '"595"').replace('"13.0"', '"13.2"')
    recipe.write_text(text)
    archives = dataclasses.replace(LOCAL.mirror, distributions=("Debian 12", "Debian 13"))
    local = dataclasses.replace(LOCAL, mirror=archives)
    assert note in make_plan(recipe, local)["notes"]
    assert note not in make_plan(recipe, LOCAL)["notes"] and note not in make_plan(recipe, AWS)["notes"]


@pytest.mark.parametrize(
    ("region", "note"),
    [
        ("us-east-99", "Region us-east-99 is none that botocore knows: is it newer, or misspelt; did you mean"),
        ("us-gov-west-1", ""), ("cn-north-1", ""), ("eu-central-2", ""),
    ],
)  # fmt: skip
def test_a_region_that_nobody_knows_is_noted(region: str, note: str) -> None:
    notes = "\n".join(make_plan(DEBIAN, Place("aws", region))["notes"])
    assert (note in notes) and ("Region" in notes) is bool(note)


def test_archive_of_the_system_keeps_its_signatures() -> None:
    """Only the address changes: a guest verifies it with the keys that its own system brings."""
    recipe = ROOT / "variables/recipes/debian12-distribution.yml"
    there = make_plan(recipe, AWS)["nvidia_driver"]["repository"]
    for archives, url in (
        ("", "http://169.254.169.252"),
        ("http://169.254.169.252/archive", "http://169.254.169.252/archive"),
    ):
        assert LOCAL.mirror
        place = dataclasses.replace(LOCAL, mirror=dataclasses.replace(LOCAL.mirror, archives=archives))
        placed = make_plan(recipe, place)["nvidia_driver"]["repository"]
        further = [{**row, "url": row["url"].replace("https:/", url)} for row in there["further"]]
        assert placed == {**there, "url": there["url"].replace("https:/", url), "further": further}


PLAN = {"architecture": "x86_64", "build": {"root_volume_gib": 40}}


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    from moto import mock_aws

    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")  # seconds for each fresh moto
    with mock_aws():
        yield Cloud(AWS)


def an_image(cloud: Cloud) -> str:
    """An AMI of our own."""
    return str(cloud.ec2.register_image(Name="al2023")["ImageId"])


def test_source_ami_is_the_newest_of_owner_and_name() -> None:
    dated = {"ami-1": "2025-01-01", "ami-2": "2026-01-01", "ami-3": "2025-06-01"}
    images = [{"ImageId": ami, "Name": f"debian-{ami}", "CreationDate": date} for ami, date in dated.items()]
    asked: dict[str, Any] = {}
    pages = [{"Images": []}, {"Images": images[:2]}, {"Images": images[2:]}]  # EC2 may send an empty page first
    ec2 = Checked("ec2", describe_images=lambda **params: asked.update(params) or pages)
    cloud = Mock(ec2=ec2, place=AWS, image=lambda ami: next(one for one in images if one["ImageId"] == ami))
    plan = PLAN | {"source_ami": {"owner": "136693071363", "name": "debian-12-amd64-*"}}
    assert resolve_source_ami(cloud, plan) == {
        "id": "ami-2", "name": "debian-ami-2", "created": "2026-01-01", "through": "136693071363:debian-12-amd64-*",
        "root_device": "",
    }  # fmt: skip
    assert asked["Owners"] == ["136693071363"]
    assert asked["IncludeDeprecated"] is True  # AMIs of an ended release are hidden otherwise
    assert {one["Name"]: one["Values"] for one in asked["Filters"]} == {
        "name": ["debian-12-amd64-*"], "architecture": ["x86_64"], "state": ["available"],
    }  # fmt: skip


def test_source_ami_comes_from_the_public_parameter(cloud: Cloud) -> None:
    wanted = an_image(cloud)
    cloud.client("ssm").put_parameter(Name="/gpu-ami/test", Value=wanted, Type="String")
    found = resolve_source_ami(cloud, PLAN | {"source_ami": {"ssm": "/gpu-ami/test"}})
    assert (found["id"], found["through"]) == (wanted, "ssm:/gpu-ami/test")


@pytest.mark.parametrize(
    "source, message",
    [
        ({"owner": "self", "name": "nothing-*"}, "no AMI of self named nothing"),
        ({"id": "ami-0123456789abcdef0"}, "is not in eu-central-1"),
        ({"ssm": "/gpu-ami/none"}, "no SSM parameter /gpu-ami/none"),
    ],
)
def test_source_ami_that_is_not_there_is_an_error(source: dict[str, str], message: str, cloud: Cloud) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_source_ami(cloud, PLAN | {"source_ami": source})


@pytest.mark.parametrize(
    ("partition", "owner"),
    [("aws", "099720109477"), ("aws-cn", "837727238323"), ("aws-us-gov", "513442679011"), ("aws-eusc", "099720109477")],
)
def test_canonicals_amis_have_the_account_of_the_partition(partition: str, owner: str) -> None:
    asked: dict[str, Any] = {}
    ec2 = Checked("ec2", describe_images=lambda **params: asked.update(params) or {"Images": []})
    ec2.meta.partition = partition
    source = {"owner": "099720109477", "name": "ubuntu/images/*"}
    with pytest.raises(UsageError, match=f"no AMI of {owner} named ubuntu") as caught:
        resolve_source_ami(Mock(ec2=ec2, place=AWS), PLAN | {"source_ami": source})
    assert asked["Owners"] == [owner]
    assert ("another account" in caught.value.hint) is (partition == "aws-eusc")


@pytest.mark.usefixtures("cloud")
@pytest.mark.parametrize(
    ("region", "named"), [("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov"), ("eu-central-1", "")]
)
def test_publishers_have_other_accounts_in_other_partitions(region: str, named: str) -> None:
    with pytest.raises(UsageError, match="no AMI of 136693071363") as caught:
        source = {"owner": "136693071363", "name": "nothing-*"}
        resolve_source_ami(Cloud(Place("p", region)), PLAN | {"source_ami": source})
    assert ("publisher has another account" in caught.value.hint and f"in {named}" in caught.value.hint) is bool(named)


def test_root_volume_smaller_than_the_source_ami_s_is_refused() -> None:
    image = {
        "ImageId": "ami-1", "RootDeviceName": "/dev/xvda",
        "BlockDeviceMappings": [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 64}}],
    }  # fmt: skip
    cloud = Mock(place=AWS, image=lambda ami: image)
    with pytest.raises(UsageError, match=r"build\.root_volume_gib: expected at least 64 \(source AMI ami-1\), got 40"):
        resolve_source_ami(cloud, PLAN | {"source_ami": {"id": "ami-1"}})
    assert resolve_source_ami(cloud, {"build": {"root_volume_gib": 64}, "source_ami": {"id": "ami-1"}})["id"] == "ami-1"


@pytest.mark.parametrize(
    ("source", "action"),
    [
        ({"ssm": "/gpu-ami/test"}, "SSM parameter /gpu-ami/test"),
        ({"owner": "amazon", "name": "al2023-*"}, "amazon:al2023-*"),
    ],
)
def test_a_refused_look_up_says_what_aws_said_and_what_to_do(source: dict[str, str], action: str) -> None:
    refusal = ClientError({"Error": {"Code": "AccessDenied", "Message": "not authorized"}}, "op")

    def refuse(**_: Any) -> None:
        raise refusal

    ssm = Checked("ssm", get_parameter=refuse, exceptions=SimpleNamespace(ParameterNotFound=KeyError))
    cloud = Mock(ec2=Checked("ec2", describe_images=refuse), place=AWS, client=lambda _: ssm)
    with pytest.raises(CloudError) as caught:
        resolve_source_ami(cloud, PLAN | {"source_ami": source})
    assert action in caught.value.message and caught.value.code == "AccessDenied"
    assert caught.value.hint and caught.value.exit_code == 4


UNKNOWN_TYPE = "flag: x\nos: ubuntu2404\ninstance_types: [{}]\nnvidia_driver: {{version: '595'}}\n"


@pytest.mark.usefixtures("cloud")
def test_an_instance_type_that_the_facts_lack_is_asked_of_ec2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a place in AWS, its DescribeInstanceTypes fills the row; the region's name is its source."""
    known = make_plan(ROOT / "variables" / "recipes" / "ubuntu2404-graphics.yml", AWS)["instance_types"]
    monkeypatch.setattr(resolution, "facts_of", lambda _recipe: without("g6.48xlarge"))
    recipe = tmp_path / "image.yml"
    recipe.write_text(UNKNOWN_TYPE.format("g6.48xlarge"))
    document = make_plan(recipe, AWS).document
    assert document["instance_types"][0]["gpu_count"] == 8
    assert document["instance_types"][0]["gpu"]["name"] in {row["gpu"]["name"] for row in known}
    assert "EC2 DescribeInstanceTypes (eu-central-1)" in {row["source"] for row in document["sources"]}


@pytest.mark.usefixtures("cloud")
def test_an_instance_type_that_nobody_knows_is_refused_with_who_was_asked(tmp_path: Path) -> None:
    recipe = tmp_path / "image.yml"
    recipe.write_text(UNKNOWN_TYPE.format("p9.48xlarge"))
    with pytest.raises(UsageError, match="neither in the facts nor known to EC2 in eu-central-1"):
        make_plan(recipe, AWS)
    with pytest.raises(UsageError) as refused:  # the local region has the machines of the facts alone
        make_plan(recipe, LOCAL)
    assert "no instance type 'p9.48xlarge'" in refused.value.details[0]


WORKSTATION = ROOT / "variables" / "recipes" / "ubuntu2404-workstation.yml"


def test_an_installer_that_nothing_verifies_is_refused() -> None:
    """It was executed to check itself: what a changed installer says of itself is no check."""
    with pytest.raises(
        UsageError, match=r"ubuntu2404-workstation: nvidia_driver.sha256: expected the digest of "
    ) as told:
        require_digests(make_plan(WORKSTATION, AWS))
    assert "curl --proto =https -fO https://ec2-linux-nvidia-drivers.s3.amazonaws.com/grid-19.0/" in told.value.hint
    require_digests(make_plan(WORKSTATION, AWS, [f"nvidia_driver.sha256={'a' * 64}"]))
    require_digests(make_plan(DEBIAN, AWS))


def test_a_mirror_says_the_digest_of_its_own_installer() -> None:
    replica = Mirror("http://169.254.169.252", "A" * 40, digest=lambda url, version: f"{version} {url[:19]}")
    plan = make_plan(WORKSTATION, dataclasses.replace(LOCAL, mirror=replica))
    assert plan["nvidia_driver"]["sha256"] == "580.65.06 https://ec2-linux-n"
    assert "sha256" not in make_plan(WORKSTATION, LOCAL)["nvidia_driver"]  # this one has the vendor's own file
