"""The bill of materials: by CycloneDX's own schema, complete, without duplicates, one text for one content."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from gpu_ami import observe
from gpu_ami.errors import UsageError
from gpu_ami.files import data_dir
from gpu_ami.recipes import load_facts
from gpu_ami.release import bom
from gpu_ami.report import Report
from onhost import materials as program
from tests.observe import foreign_images as foreign
from tests.release import examples

PLAN = {
    "os": {"name": "debian12", "ssh_user": "admin"},
    "nvidia_driver": {
        "packages": {"nvidia-utils": "580.1"},
        "repository": {"url": "https://developer.download.nvidia.com/repos/debian12/x86_64", "suite": "./"},
    },
}  # fmt: skip
POLICY = {
    "p": "/etc/gpu-ami/xid-policy.json",
    "t": "f",
    "m": 0o644,
    "u": 0,
    "g": 0,
    "a": 1,
    "c": 2,
    "s": 7,
    "h": "cd" * 32,
}
KO = {"p": examples.MODULE, "t": "f", "m": 0o644, "u": 0, "g": 0, "a": 1, "c": 2, "s": 7, "h": "ef" * 32}


def make(folder: Path, change: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The bill of an example, after a check by the library's strict schema."""
    report = write(folder, change)
    assert bom.write(report, folder, [data_dir("roles")]) is not None
    text = (folder / "bom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document: dict[str, Any] = json.loads(text)
    return document


def write(folder: Path, change: Mapping[str, Any] | None = None) -> Report:
    report = replace(examples.certified_report(**PLAN), image=examples.AMI)
    examples.write_folder(folder, report, examples.inventory(examples.SMI, POLICY, KO))
    path = folder / "evidence/image-files/materials.json"
    path.write_text(json.dumps(copy.deepcopy(examples.MATERIALS) | dict(change or {})))
    build = json.loads((folder / "build.json").read_text())
    (folder / "build.json").write_text(
        json.dumps(build | {"source_ami": "ami-0base", "source_ami_name": "debian-12-amd64-20261101"})
    )
    return report


def component(document: dict[str, Any], name: str) -> dict[str, Any]:
    (found,) = [row for row in document["components"] if row["name"] == name]
    properties = {row["name"]: row["value"] for row in found.pop("properties", [])}
    return dict(found) | properties


def test_a_package_has_its_url_and_repository(tmp_path: Path) -> None:
    document = make(tmp_path)
    utils = component(document, "nvidia-utils")
    assert utils["purl"] == "pkg:deb/debian/nvidia-utils@580.1?arch=amd64&distro=debian-12"
    url = PLAN["nvidia_driver"]["repository"]["url"]  # type: ignore[index]
    assert utils["gpu-ami:repository"] == f"{url} ./"  # the plan's: the image keeps no lists of apt
    assert utils["externalReferences"] == [{"type": "distribution", "url": url}]
    libc = component(document, "libc6")
    assert libc["purl"] == "pkg:deb/debian/libc6@2:2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12"
    assert (libc["gpu-ami:repository"], libc["gpu-ami:source"]) == (
        "http://deb.debian.org/debian bookworm/main",
        "glibc",
    )


def test_an_image_as_found_has_a_bill(tmp_path: Path) -> None:
    """No recipe and no role: its packages and modules are read of its files by the program that observes them."""
    root, facts = foreign.eks_base(tmp_path / "root"), load_facts()
    observation = observe.read_files(root)
    plan = observe.observed_plan(observation, facts, observe.instance_types(observation, facts), "theirs").document
    report = replace(examples.certified_report(), plan=plan, image=examples.AMI)
    examples.write_folder(tmp_path / "out", report, examples.inventory())
    materials = tmp_path / "out/evidence/image-files/materials.json"
    materials.write_text(json.dumps(program.materials(str(root))))
    (tmp_path / "out/build.json").unlink()
    assert bom.write(report, tmp_path / "out", [data_dir("roles")]) is not None
    text = (tmp_path / "out/bom.cdx.json").read_text()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    observed = {name: full for one in observation.found.values() for name, full in one.packages.items()}
    listed = {row["name"]: row["version"] for row in document["components"]}
    assert observed and observed.items() <= listed.items()
    assert all(row["purl"].startswith("pkg:rpm/amzn/") for row in document["components"] if "purl" in row)
    assert "pedigree" not in document["metadata"]["component"]


def test_a_kernel_module_has_signer_vermagic_and_digest(tmp_path: Path) -> None:
    module = component(make(tmp_path), "nvidia")
    assert (module["type"], module["version"]) == ("device-driver", "580.1")
    assert module["gpu-ami:signer"] == "DKMS module signing key"
    assert module["gpu-ami:vermagic"] == "6.1.0-40-cloud-amd64 SMP"
    assert module["hashes"] == [{"alg": "SHA-256", "content": "ef" * 32}]


def test_files_of_roles_are_components(tmp_path: Path) -> None:
    file = component(make(tmp_path), "/etc/gpu-ami/xid-policy.json")
    assert (file["type"], file["gpu-ami:role"]) == ("file", "event_parser")
    assert file["hashes"] == [{"alg": "SHA-256", "content": "cd" * 32}]


def test_the_image_and_its_base_are_the_metadata(tmp_path: Path) -> None:
    metadata = make(tmp_path)["metadata"]
    image = metadata["component"]
    assert (image["type"], image["name"], image["version"]) == ("operating-system", "demo", examples.AMI)
    assert [row["version"] for row in image["pedigree"]["ancestors"]] == ["ami-0base"]
    assert image["pedigree"]["ancestors"][0]["name"] == "debian-12-amd64-20261101"
    assert metadata["lifecycles"] == [{"phase": "post-build"}]


def test_one_content_has_one_text_and_one_serial_number(tmp_path: Path) -> None:
    first = make(tmp_path / "a")
    rows = examples.MATERIALS["packages"]
    assert isinstance(rows, list)
    doubled = make(tmp_path / "b", {"packages": [*reversed(rows), *rows]})
    assert (tmp_path / "a/bom.cdx.json").read_text() == (tmp_path / "b/bom.cdx.json").read_text()
    assert doubled["serialNumber"] == first["serialNumber"]
    names = [row["bom-ref"] for row in first["components"]]
    assert len(names) == len(set(names)) == 4
    other = make(tmp_path / "c", {"packages": [rows[0] | {"version": "580.2"}]})
    assert other["serialNumber"] != first["serialNumber"]


@pytest.mark.parametrize(
    ("system", "package", "url"),
    [
        (
            "amzn", {"name": "openssl", "version": "3.2.2-1.amzn2023", "epoch": "1"},
            "pkg:rpm/amzn/openssl@3.2.2-1.amzn2023?arch=x86_64&distro=amzn-2023&epoch=1",
        ),
        (
            "rhel", {"name": "gcc-c++", "version": "11-2", "epoch": "0"},
            "pkg:rpm/redhat/gcc-c%2B%2B@11-2?arch=x86_64&distro=rhel-2023",
        ),
    ],
)  # fmt: skip
def test_the_image_and_the_outside_name_a_package_alike(system: str, package: dict[str, str], url: str) -> None:
    row = {"kind": "rpm", "architecture": "x86_64"} | package
    assert bom.package_url(row, system, "2023").to_string() == program.purl(row, system, "2023") == url


@pytest.mark.parametrize("text", ["", "{}", '{"schema": "gpu-ami/materials/0"}', '{"schema": 1}\n[exit status 127] '])
def test_without_materials_there_is_no_bill(tmp_path: Path, text: str) -> None:
    report = write(tmp_path)
    (tmp_path / "evidence/image-files/materials.json").write_text(text)
    (tmp_path / "bom.cdx.json").write_text("of an earlier proof")
    assert bom.write(report, tmp_path, []) is None
    assert not (tmp_path / "bom.cdx.json").exists()


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "os": (lambda m: m.update(os=7), "os: expected a text"),
    "packages": (lambda m: m.update(packages={"a": 1}), "packages: expected a list"),
    "modules": (lambda m: m.pop("modules"), "modules: expected a list"),
    "a package": (lambda m: m["packages"].append(["x"]), "packages[2]: expected an object"),
    "a version": (lambda m: m["packages"][0].update(version=[1]), "packages[0].version: expected a text"),
    "a missing name": (lambda m: m["packages"][1].pop("name"), "packages[1].name: expected a text"),
    "an empty name": (lambda m: m["packages"][1].update(name=""), "packages[1]: expected a name"),
    "a module": (lambda m: m["modules"][0].update(path=None), "modules[0].path: expected a text"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_materials_of_a_hostile_host_are_named(tmp_path: Path, name: str) -> None:
    """materials.json is what the host under test printed: other types ended in a traceback."""
    change, mistake = CHANGES[name]
    report = examples.write_folder(tmp_path)
    path = (tmp_path / examples.INVENTORY).with_name("materials.json")
    materials = json.loads(path.read_text())
    change(materials)
    path.write_text(json.dumps(materials))
    with pytest.raises(UsageError, match="materials.json: " + re.escape(mistake)):
        bom.write(report, tmp_path, [])
