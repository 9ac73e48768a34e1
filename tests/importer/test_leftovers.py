"""What of a template is dropped is said: builder keys, provisioners, post-processors, values of the environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.importer import import_template
from gpu_ami.recipes.facts.tables import load_facts

TEMPLATE: dict[str, Any] = {
    "description": "ML base",
    "variables": {
        "region": "{{env `IMPORT_REGION`}}",
        "flag": "al2023-x",
        "nvidia_version": "{{env `IMPORT_NV`}}",
        "foo": "bar",
    },
    "sensitive-variables": ["token"],
    "comment": "of the team",
    "builders": [
        {
            "type": "amazon-ebs",
            "region": "{{user `region`}}",
            "instance_type": "g5.12xlarge",
            "ssh_username": "ec2-user",
            "ami_users": ["123456789012"],
            "tags": {"team": "ml"},
            "launch_block_device_mappings": [
                {"device_name": "/dev/xvda", "volume_size": 120, "volume_type": "gp2", "delete_on_termination": True}
            ],
        },
        {"type": "docker"},
    ],
    "provisioners": [
        {"type": "shell", "inline": ["sudo yum update -y", "sudo reboot"]},
        {"type": "ansible", "playbook_file": "./efa.yml"},
    ],
    "post-processors": [{"type": "manifest"}],
}


def remarks(tmp_path: Path) -> list[str]:
    path = tmp_path / "al2023.json"
    path.write_text(json.dumps(TEMPLATE))
    return import_template(path, load_facts()).remarks


@pytest.mark.parametrize(
    "line",
    [
        "region: read from the environment variable IMPORT_REGION, which is not set here: not carried over",
        "nvidia_version: read from the environment variable IMPORT_NV, which is not set here: not carried over",
        "foo: 'bar' has no place in a recipe; not carried over",
        "comment: 'of the team' is not carried over",
        "builders[0].ami_users: '[\"123456789012\"]' is not carried over: an AMI is private until it is published",
        'builders[0].tags: \'{"team": "ml"}\' is not carried over: name them in a --where file',
        "builders[0].launch_block_device_mappings[0].volume_type: 'gp2' is not carried over",
        "builders[1]: 'docker' is not carried over",
        "provisioners[0] (shell) 2 inline commands: not carried over: write it",
        "provisioners[1] (ansible) './efa.yml': not carried over: gpu-ami's roles replace it",
        "post-processors[0] (manifest): not carried over",
        "os: al2023 is assumed from the name 'al2023'",
        "telemetry: metrics and log groups of variables/defaults.yml are assumed",
        "node: ec2 is assumed",
    ],
)
def test_every_dropped_key_and_assumed_value_is_said(line: str, tmp_path: Path) -> None:
    assert [remark for remark in remarks(tmp_path) if remark.startswith(line)]


def test_key_that_reads_an_imported_variable_is_no_leftover(tmp_path: Path) -> None:
    assert [line for line in remarks(tmp_path) if line.startswith("builders[0].region")] == []


def test_volume_size_and_description_are_carried_over(tmp_path: Path) -> None:
    path = tmp_path / "al2023.json"
    path.write_text(json.dumps(TEMPLATE))
    recipe = import_template(path, load_facts()).recipe
    assert recipe["build"] == {"instance_type": "g5.12xlarge", "root_volume_gib": 120}
    assert recipe["description"] == "ML base"
    assert "nvidia_driver" not in recipe


@pytest.mark.parametrize("size", [None, "{{user `size`}}", "x"])
def test_volume_size_that_is_no_number_is_a_leftover(size: object, tmp_path: Path) -> None:
    path = tmp_path / "al2023.json"
    volume = {"device_name": "/dev/xvda", "volume_size": size, "volume_type": "gp2"}
    path.write_text(json.dumps({"variables": {}, "builders": [{"launch_block_device_mappings": [volume]}]}))
    imported = import_template(path, load_facts())
    assert "build" not in imported.recipe
    assert [line for line in imported.remarks if "launch_block_device_mappings[0]" in line]


def test_value_of_the_environment_is_used_where_it_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPORT_REGION", "eu-west-1")
    monkeypatch.setenv("IMPORT_NV", "580.178.04")
    path = tmp_path / "al2023.json"
    path.write_text(json.dumps(TEMPLATE))
    imported = import_template(path, load_facts())
    assert imported.place == {"region": "eu-west-1"}
    assert imported.recipe["nvidia_driver"] == {"version": "580.178.04"}
    line = "region: read from the environment variable IMPORT_REGION, whose value is not shown"
    assert line in imported.remarks


def test_empty_and_null_values_are_no_leftovers(tmp_path: Path) -> None:
    path = tmp_path / "al2023.json"
    builder = {"type": "amazon-ebs", "subnet_id": None, "kms_key_id": "", "ami_users": [], "tags": {}}
    path.write_text(json.dumps({"variables": {"a": None, "b": ""}, "builders": [builder]}))
    imported = import_template(path, load_facts())
    assert [line for line in imported.remarks if "None" in line or "builders[0]" in line or "''" in line] == []
    assert imported.place == {}


def test_provisioner_of_another_builder_is_no_leftover(tmp_path: Path) -> None:
    path = tmp_path / "al2023.json"
    steps = [{"type": "shell", "only": ["docker"], "script": "a.sh"}, {"type": "shell", "script": "b.sh"}]
    path.write_text(json.dumps({"builders": [{"type": "amazon-ebs"}], "provisioners": steps}))
    lines = [line for line in import_template(path, load_facts()).remarks if line.startswith("provisioners")]
    assert [line.partition(":")[0] for line in lines] == ["provisioners[0] (shell) 'b.sh'"]
