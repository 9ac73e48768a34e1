"""A certified image in a folder, with an inventory and a bill of materials, signed by a key of the test."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from securesystemslib.signer import CryptoSigner

from gpu_ami import pipeline
from gpu_ami.build.image import Build
from gpu_ami.release import keys
from gpu_ami.report import HostReport, Report, writer
from gpu_ami.report.document import EVERY_FILE
from tests.report.examples import a_check, a_host, a_report
from validator.file_account import merkle_root, read

AMI, SNAPSHOT, REGION = "ami-0123456789abcdef0", "snap-0123456789abcdef0", "us-east-1"
PLAN_DIGEST = f"sha256:{'1' * 64}"
ENVELOPE = "certificate.dsse.json"
INVENTORY = "evidence/image-files/inventory.jsonl.gz"
FINISHED = "2026-11-20T00:00:00Z"
SMI = {
    "p": "/usr/bin/nvidia-smi", "t": "f", "m": 0o755, "u": 0, "g": 0, "a": 1, "c": 2, "s": 7, "h": "ab" * 32,
    "o": ["nvidia-utils"], "v": [],
}  # fmt: skip


MODULE = "/usr/lib/modules/6.1.0-40-cloud-amd64/updates/dkms/nvidia.ko"
MATERIALS = {
    "schema": "gpu-ami/materials/1", "os": "debian", "os_version": "12", "machine": "x86_64",
    "packages": [
        {"name": "nvidia-utils", "version": "580.1", "architecture": "amd64", "kind": "deb", "source": "",
         "vendor": "NVIDIA <x@nvidia.com>", "repository": ""},
        {"name": "libc6", "version": "2:2.36-9+deb12u10", "architecture": "amd64", "kind": "deb", "source": "glibc",
         "vendor": "", "repository": "http://deb.debian.org/debian bookworm/main"},
    ],
    "modules": [
        {"path": MODULE, "name": "nvidia", "version": "580.1", "signer": "DKMS module signing key",
         "vermagic": "6.1.0-40-cloud-amd64 SMP", "license": "Dual MIT/GPL"},
    ],
}  # fmt: skip


def inventory(*entries: dict[str, Any], packages: tuple[tuple[str, str], ...] = (("nvidia-utils", "580.1"),)) -> bytes:
    """A compressed inventory with these entries beside /usr and /etc."""
    folders = [{"p": path, "t": "d", "m": 0o755, "u": 0, "g": 0, "a": 1, "c": 2} for path in ("/etc", "/usr")]
    header = {
        "schema": "gpu-ami/inventory/1", "time": 10.0, "os": "debian", "os_version": "12", "running": False,
        "accounts": {"root": [0, 0, "/root", "/bin/sh", "locked"]}, "groups": {"root": [0, []]},
    }  # fmt: skip
    rows: list[dict[str, Any]] = [header]
    for name, version in packages:
        package = {"name": name, "version": version, "architecture": "amd64", "state": "installed"}
        rows.append({"package": package | {"depends": [], "provides": [], "automatic": False}})
    rows += [*folders, *entries, {"end": len(folders) + len(entries)}]
    return gzip.compress(b"".join(json.dumps(row).encode() + b"\n" for row in rows), mtime=0)


def certified_report(simulated: bool = False, inventory_root: str = "", **plan: Any) -> Report:
    """A PASS on one machine, and the image's files with their inventory."""
    files = HostReport(
        "", host="image-files", checks=(a_check("file_account", id=EVERY_FILE, tier="T0"),),
        offline=True,
        facts={"inventory_root": inventory_root, "inventory_entries": 3},
    )  # fmt: skip
    content = {"image": "demo", "digest": PLAN_DIGEST, "roles": ["nvidia_driver", "cloudwatch_agent", "event_parser"]}
    report = a_report(files, a_host(), simulated=simulated, **(content | plan))
    return replace(report, image=AMI, region=REGION, finished=FINISHED)


def write_folder(folder: Path, report: Report | None = None, data: bytes | None = None) -> Report:
    """The files that a proof on this machine leaves; not certified yet."""
    data = inventory(SMI) if data is None else data
    report = report or certified_report(inventory_root=merkle_root(read(data)))
    (folder / INVENTORY).parent.mkdir(parents=True, exist_ok=True)
    (folder / INVENTORY).write_bytes(data)
    (folder / INVENTORY).with_name("materials.json").write_text(json.dumps(MATERIALS))
    Build(AMI, (SNAPSHOT,), PLAN_DIGEST, "sha256:2", "aws", REGION, "run-1", FINISHED).write(folder)
    writer.write(report, folder)
    pipeline.sign_report(report, folder)
    return report


def signer(folder: Path, name: str = "release.key") -> CryptoSigner:
    """A signer whose key is in a file of the folder."""
    path = folder / name
    if not path.exists():
        keys.new_key(path)
    loaded = keys.load_signer(str(path))
    assert isinstance(loaded, CryptoSigner)
    return loaded


def signed_folder(folder: Path, key_folder: Path, report: Report | None = None) -> Path:
    """A folder with a signed certificate; the key is key_folder/release.key."""
    folder.mkdir(parents=True, exist_ok=True)
    key_folder.mkdir(parents=True, exist_ok=True)
    report = write_folder(folder, report)
    pipeline.certify_stage(report, folder, [signer(key_folder)])
    return folder


def envelope(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / ENVELOPE).read_text())
    return content


def write_envelope(folder: Path, content: dict[str, Any]) -> None:
    (folder / ENVELOPE).write_text(json.dumps(content))


def payload(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(base64.b64decode(envelope(folder)["payload"]))
    return content


def flip(path: Path) -> None:
    """Changes one byte in the middle of a file."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def link_elsewhere(path: Path) -> None:
    """Moves a file away and leaves a symbolic link to it."""
    away = path.with_name(f"{path.name}.moved")
    path.rename(away)
    path.symlink_to(away.name)
