from pathlib import Path

import pytest

from gpu_ami.cloud.place import ApiAccess, Clusters, Credentials, Login, Mirror, Network, Place, load_place
from gpu_ami.errors import UsageError

GOOD = """
region: eu-central-1
profile: build
subnet_id: subnet-0123456789abcdef0
security_group_ids: [sg-0123456789abcdef0, sg-11111111]
instance_profile: gpu-ami-prover
ssh_interface: private_ip
ssh_port: 2022
kms_key_id: alias/images
cluster: gpu-nodes
tags: {team: accel, cost-centre: "4711"}
source_ami: ami-0123456789abcdef0
mirror:
  url: https://mirror.example/vendors/
  key_fingerprint: 0123456789abcdef0123456789abcdef01234567
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "aws.yml"
    path.write_text(text)
    return path


def test_a_whole_file_is_read(tmp_path: Path) -> None:
    assert load_place(write(tmp_path, GOOD)) == Place(
        name="aws",
        region="eu-central-1",
        instance_profile="gpu-ami-prover",
        kms_key_id="alias/images",
        tags={"team": "accel", "cost-centre": "4711"},
        source_ami="ami-0123456789abcdef0",
        mirror=Mirror("https://mirror.example/vendors", "0123456789ABCDEF0123456789ABCDEF01234567"),
        api=ApiAccess(profile="build"),
        network=Network(
            subnet_ids=("subnet-0123456789abcdef0",), security_group_ids=("sg-0123456789abcdef0", "sg-11111111")
        ),
        login=Login(ssh_interface="private_ip", ssh_port=2022),
        clusters=Clusters(name="gpu-nodes"),
    )


def test_subnets_and_ways_are_read_in_order(tmp_path: Path) -> None:
    text = """
region: eu-central-1
subnet_ids: [subnet-0000000a, subnet-0000000b]
capacity: {p5.48xlarge: ["capacity-block:cr-00000001"], "*": [spot, on-demand]}
capacity_minutes: 30
no_stop_start: ["p5*", trn2.48xlarge]
"""
    place = load_place(write(tmp_path, text))
    assert (place.network.subnet_id, place.network.subnets) == (
        "subnet-0000000a",
        ("subnet-0000000a", "subnet-0000000b"),
    )
    assert place.capacity.ways == {"p5.48xlarge": ("capacity-block:cr-00000001",), "*": ("spot", "on-demand")}
    assert place.capacity.minutes == 30
    kinds = ("p5.48xlarge", "p5en.48xlarge", "p4d.24xlarge", "trn2.48xlarge")
    assert [place.capacity.stops(name) for name in kinds] == [False, False, True, False]
    assert load_place(write(tmp_path, "region: us-gov-west-1\n")).network.subnets == ("",)


@pytest.mark.parametrize(
    "region", ["eusc-de-east-1", "cn-northwest-1", "us-isob-east-1", "eu-isoe-west-1", "ap-southeast-7", "xx-north-12"]
)
def test_regions_of_every_partition_are_accepted(tmp_path: Path, region: str) -> None:
    assert load_place(write(tmp_path, f"region: {region}\n")).region == region


@pytest.mark.parametrize(
    "key",
    [
        "alias/images",
        "alias/aws/ebs",
        "1234abcd-12ab-34cd-56ef-1234567890ab",
        "mrk-1234abcd12ab34cd56ef1234567890ab",
        "arn:aws-cn:kms:cn-north-1:111122223333:key/1234abcd-12ab-34cd-56ef-1234567890ab",
        "arn:aws-cn:kms:cn-north-1:111122223333:alias/a_b/c",
    ],
)
def test_keys_of_every_form_are_accepted(tmp_path: Path, key: str) -> None:
    assert load_place(write(tmp_path, f"region: cn-north-1\nkms_key_id: {key}\n")).kms_key_id == key


def test_a_password_in_a_url_is_not_shown(tmp_path: Path) -> None:
    text = f"region: eu-central-1\nmirror: {{url: 'https://u:hush@m', key_fingerprint: {'A' * 40}}}\n"
    with pytest.raises(UsageError) as caught:
        load_place(write(tmp_path, text))
    assert "mirror.url: expected" in str(caught.value) and "hush" not in str(caught.value)


def test_a_region_is_enough(tmp_path: Path) -> None:
    place = load_place(write(tmp_path, "region: us-gov-west-1\n"))
    assert (place.login.ssh_port, place.login.ssh_interface, place.api.endpoint, place.machines.simulated) == (
        22,
        "public_ip",
        None,
        False,
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("profile: x", "region: missing"),
        (
            "region: us-est-1",
            "region: expected something like eu-central-1, got 'us-est-1'; did you mean us-east-1 or us-west-1?",
        ),
        ("region: eu-centrl-1", "did you mean eu-central-1"),
        ("region: Frankfurt", "region: expected something like eu-central-1, got 'Frankfurt'"),
        ("region: eu-central-1\nsubnet: subnet-01234567", "subnet: unknown key; did you mean subnet_id?"),
        ("region: eu-central-1\nsubnet_id: vpc-1", "subnet_id: expected something like subnet-"),
        (
            "region: eu-central-1\nsubnet_id: subnet-01234567\nsubnet_ids: [subnet-01234567]",
            "subnet_ids: expected subnet_id or subnet_ids, got both",
        ),
        ("region: eu-central-1\nsubnet_ids: []", "subnet_ids: expected at least one subnet"),
        ("region: eu-central-1\ncapacity: {p5*: [cheap]}", "expected something like on-demand, spot, reservation:cr-"),
        ("region: eu-central-1\ncapacity: {p5*: []}", "capacity.p5*: expected at least one way, got none"),
        ("region: eu-central-1\njump_host: admin@", "jump_host: expected something like admin@bastion.example"),
        ("region: eu-central-1\njump_key: ~/.ssh/id", "jump_key: expected jump_host beside it, got none"),
        (
            "region: eu-central-1\njump_host: a@b\nssh_interface: session_manager",
            "expected one way to log in, got jump_host and ssh_interface: session_manager",
        ),
        ("region: eu-central-1\nsecurity_group_ids: sg-11111111", "security_group_ids: expected a list"),
        ("region: eu-central-1\nsecurity_group_ids: [sg-11111111, nope]", "security_group_ids[1]: expected"),
        ("region: eu-central-1\nssh_interface: wifi", "ssh_interface: expected one of public_ip"),
        ("region: eu-central-1\nssh_port: true", "ssh_port: expected a whole number from 1 to 65535, got true"),
        ("region: eu-central-1\nssh_port: 70000", "ssh_port: expected a whole number from 1 to 65535, got 70000"),
        ("region: eu-central-1\ntags: {n: 4711}", 'tags.n: expected text such as "4711", got 4711'),
        ("region: eu-central-1\ntags: {'aws:x': y}", "tags.'aws:x': expected a key like team"),
        ("region: eu-central-1\ntags: {'AWS:x': y}", ":2: tags.'AWS:x': expected a key like team"),
        ("region: eu-central-1\ntags: {'gpu-ami:run': y}", "not aws:… or gpu-ami:…"),  # sweep reads it
        ('region: eu-central-1\ntags: {x: "a\\x01b"}', "tags.x: expected something like"),
        ("region: eu-central-1\njump_host: a@b:70000", "jump_host: expected a port from 1 to 65535, got 70000"),
        ("region: eu-central-1\njump_host: a@-oProxyCommand", "jump_host: expected something like admin@bastion"),
        ("region: eu-central-1\nprices: {p5.48xlarge: .inf}", "expected a number that is not negative, got .inf"),
        ("region: eu-central-1\nendpoint: https://u:hush@x", ":2: endpoint: expected a URL without user and password"),
        ("region: eu-central-1\nkms_key_id: images", ":2: kms_key_id: expected something like alias/images"),
        ("region: eu-central-1\nkms_key_id: alias/my key", "kms_key_id: expected something like alias/images"),
        (
            "region: eu-central-1\nkms_key_id: arn:aws:kms:us-east-1:111122223333:alias/x",
            ":2: kms_key_id: expected a key of eu-central-1, got one of us-east-1",
        ),
        ("region: eu-central-1\nimage_days: !!bool maybe", "not YAML"),
        ('region: eu-central-1\nimage_days: !!int ""', "not YAML"),
        ("region: !include other.yml", "no other file is included"),
        ("region: eu-central-1\nmirror: {url: ftp://x, key: y}", "mirror.key: unknown key"),
        ("region: eu-central-1\nmirror: {url: ftp://x, key_fingerprint: 12}", "mirror.key_fingerprint: expected text"),
        ("region: eu-central-1\nmirror: {url: 'ftp://x', key_fingerprint: 'zz'}", "mirror.url: expected something"),
        ("region: eu-central-1\ncredentials: {access_key_id: x}", "credentials: secrets do not belong in this file"),
        ("region: eu-central-1\n1: 2", "1: unknown key"),
        ("region: eu-central-1\nregion: us-east-1", "line 2: region: expected once, also in line 1"),
        ("region: eu-central-1\naws_secret_access_key: x", ":2: aws_secret_access_key: secrets do not belong"),
        ("region: EU-CENTRAL-1", "got 'EU-CENTRAL-1'; did you mean eu-central-1?"),
        ("region: eu-central-1\ncapacity_minutes: 2:30", ":2: capacity_minutes: expected a whole number from 0 to"),
        ("region: eu-central-1\ncapacity_minutes: 010", "got 010, which YAML reads as 8"),
        ("flag: x\nos: debian12\ninstance_types: [g5.xlarge]", "this is a recipe: --where takes the file of a place"),
        ("- a list", "(whole file): expected keys and values, got a list of 1"),
        ("a: [", "not YAML"),
    ],
)
def test_a_mistake_is_named_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_place(write(tmp_path, text))
    assert said in str(caught.value)
    assert caught.value.exit_code == 2


def test_what_is_no_file(tmp_path: Path) -> None:
    write(tmp_path, "region: eu-central-1")
    (name,) = [path.name for path in tmp_path.glob("*.yml")]
    with pytest.raises(UsageError, match=f"did you mean {tmp_path / name}"):
        load_place(tmp_path / f"{name[:-4]}s.yml")
    with pytest.raises(UsageError, match="one with the line `region: eu-central-1`"):
        load_place(Path("eu-central-1"))


def test_all_mistakes_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load_place(write(tmp_path, "ssh_port: 0\nregoin: eu-central-1\nkms_key_id: 3\nmirror: {url: 1, x: 2}\n"))
    assert [line.split(": ")[0].rpartition(":")[2] for line in caught.value.details[:5]] == ["1", "2", "3", "4", "4"]
    assert [line.split(": ")[1] for line in caught.value.details] == [
        "ssh_port", "regoin", "kms_key_id", "mirror.url", "mirror.x", "region", "mirror.key_fingerprint",
    ]  # fmt: skip


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"aws\.yml: No such file"):
        load_place(tmp_path / "aws.yml")


def test_a_secret_is_not_shown() -> None:
    assert "hush" not in repr(Place("local", "us-east-1", api=ApiAccess(credentials=Credentials("id", "hush"))))
