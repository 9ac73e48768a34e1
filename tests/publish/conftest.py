"""A publisher's account: the local region's API over HTTP, signed certificates of AMIs in it, a release policy."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli, pipeline
from gpu_ami.build.image import Build
from gpu_ami.cloud import ApiAccess, Place, image_parameters
from gpu_ami.progress import Progress
from gpu_ami.publish import publication
from gpu_ami.report import writer
from localregion.state import ImageRecord
from tests.localregion.api.test_application import client
from tests.localregion.conftest import World, served
from tests.release import examples
from validator.file_account import merkle_root, read

HOME, OTHER = "us-east-1", "eu-central-1"
ACCOUNT, CONSUMER = "123456789012", "111122223333"
ORGANIZATION = "arn:aws:organizations::111122223333:organization/o-a1b2c3d4e5"
LATEST = "/images/demo/latest"
POLICY: dict[str, Any] = {
    "regions": [{"region": HOME}, {"region": OTHER}],
    "share": {"accounts": [CONSUMER]},
    "ssm": {"prefix": "/images/demo"},
    "deprecate_after": 180,
    "deregistration_protection": True,
}
SERVICES = ("ec2", "iam", "kms", "logs", "cloudwatch", "ssm", "autoscaling")


@dataclass
class Account:
    """The folder is the current one; the certificate's key is release.key.pub, the place aws.yml."""

    world: World
    endpoint: str
    folder: Path

    clients: dict[tuple[str, str], Any] = field(default_factory=dict)

    def client(self, service: str, region: str = HOME) -> Any:
        if (service, region) not in self.clients:
            self.clients[service, region] = client(self.endpoint, service, region)
        return self.clients[service, region]

    def build(self, number: int = 1, **changes: Any) -> Path:
        """A certified image, built and signed; its folder."""
        ami, snapshot, name = f"ami-0{number:016x}", f"snap-0{number:016x}", f"gpu-ami-2026112200000{number}"
        tags = {
            "Name": name, "gpu-ami:run": f"run-{number}", "gpu-ami:recipe": "demo",
            "gpu-ami:plan": examples.PLAN_DIGEST, "gpu-ami:expires": "2026-12-31T00:00:00Z",
        }  # fmt: skip
        disk = self.folder / "disk.raw"
        disk.write_bytes(b"disk")
        record = ImageRecord(
            ami, name, "demo", ACCOUNT, "x86_64", "/dev/xvda", snapshot, 8, f"2026-11-2{number}T00:00:00.000Z",
            tags=tags, snapshot_tags={**tags, "of": "snapshot"}, disk=str(disk),
        )  # fmt: skip
        self.world.images.register(replace(record, **changes))
        self.client("ec2").modify_image_attribute(ImageId=ami, ImdsSupport={"Value": "v2.0"})
        out = Path("out") / f"demo-{number}"
        data = examples.inventory(examples.SMI)
        root = merkle_root(read(data))
        yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
        report = replace(
            examples.certified_report(inventory_root=root), image=ami, finished=f"{yesterday:%Y-%m-%dT%H:%M:%SZ}"
        )
        examples.write_folder(out, report, data)
        Build(ami, (snapshot,), examples.PLAN_DIGEST, "sha256:2", "aws", HOME, "run-1", report.finished).write(out)
        writer.write(report, out)
        pipeline.certify_stage(report, out, [examples.signer(Path())])
        return out

    def policy(self, **changes: Any) -> None:
        document = {key: value for key, value in (POLICY | changes).items() if value is not None}
        Path("publish.yml").write_text(json.dumps(document))

    def publish(self, out: Path, *words: str) -> int:
        return cli.main(["publish", str(out), "--key", "release.key.pub", "--where", "aws.yml", "-q", *words])

    def record(self, out: Path, name: str = "publication.json") -> dict[str, Any]:
        content: dict[str, Any] = json.loads((out / name).read_text())
        return content

    def images(self, region: str) -> list[dict[str, Any]]:
        rows = self.client("ec2", region).describe_images(Owners=["self"])["Images"]
        return sorted(rows, key=lambda row: str(row["Name"]))

    def parameters(self, region: str) -> dict[str, str]:
        rows = self.client("ssm", region).get_parameters_by_path(Path="/images", Recursive=True)["Parameters"]
        return {row["Name"]: row["Value"] for row in rows}

    def shared(self, region: str, ami: str) -> list[dict[str, str]]:
        answer = self.client("ec2", region).describe_image_attribute(ImageId=ami, Attribute="launchPermission")
        rows: list[dict[str, str]] = answer["LaunchPermissions"]
        return rows

    def snapshot(self, region: str, image: dict[str, Any]) -> dict[str, Any]:
        identity = image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
        row: dict[str, Any] = self.client("ec2", region).describe_snapshots(SnapshotIds=[identity])["Snapshots"][0]
        return row

    def place(self, **changes: Any) -> Place:
        return replace(Place("aws", HOME, api=ApiAccess(endpoint=self.endpoint)), **changes)

    def deprecate(self, ami: str, region: str, days_ago: int) -> None:
        """As if its deprecation date had passed so long ago."""
        from moto.ec2.models import ec2_backends

        moment = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=days_ago)
        image: Any = ec2_backends[ACCOUNT][region].amis[ami]
        image.deprecation_time = f"{moment:%Y-%m-%dT%H:%M:00.000Z}"


@pytest.fixture
def account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Account]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(publication, "POLL_SECONDS", 0.05)
    monkeypatch.setattr("gpu_ami.cloud.client.OUTAGE_SECONDS", 0.3)
    monkeypatch.setattr("gpu_ami.cloud.client.POLL_SECONDS", 0.05)
    monkeypatch.setattr(image_parameters, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(image_parameters, "READ_BACK_SECONDS", 0.3)
    from moto.backends import get_backend

    def reset() -> None:
        for service in SERVICES:
            get_backend(service).reset()  # type: ignore[call-overload]

    reset()
    world = World(tmp_path / "region")
    with served(world) as endpoint:
        made = Account(world, endpoint, tmp_path)
        Path("aws.yml").write_text(f"region: {HOME}\nendpoint: {endpoint}\n")
        made.policy()
        yield made
    reset()


@pytest.fixture
def quiet() -> Progress:
    return Progress("quiet")
