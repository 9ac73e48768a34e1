"""What of a template is dropped is said: builder keys, provisioners, post-processors, values of the environment."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.importer import import_template
from gpu_ami.recipes.template_leftovers import environment_lines, leftovers, root_volume_gib

TEMPLATE: dict[str, Any] = {
    "description": "ML base",
    "variables": {"region": "{{env `AWS_REGION`}}", "flag": "al2023-x", "nvidia_version": "{{env `NV`}}", "foo": "bar"},
    "sensitive-variables": ["token"],
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
        "region: '{{env `AWS_REGION`}}' is read from the environment; not carried over",
        "nvidia_version: '{{env `NV`}}' is read from the environment; not carried over",
        "foo: 'bar' has no place in a recipe; not carried over",
        "sensitive-variables: '[\"token\"]' is not carried over",
        "builders[0].ami_users: '[\"123456789012\"]' is not carried over: an AMI is private until it is published",
        'builders[0].tags: \'{"team": "ml"}\' is not carried over: name them in a --where file',
        "builders[0].launch_block_device_mappings[0].volume_type: 'gp2' is not carried over",
        "builders[1]: 'docker' is not carried over",
        'provisioners[0] (shell) \'["sudo yum update -y", "sudo reboot"]\': not carried over: write it',
        "provisioners[1] (ansible) './efa.yml': not carried over: gpu-ami's roles replace it",
        "post-processors[0] (manifest): not carried over",
        "os: al2023 is assumed from the name 'al2023'",
        "architecture: x86_64 is assumed",
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


@pytest.mark.parametrize("size", [None, "{{user `size`}}"])
def test_volume_size_that_is_no_number_is_a_leftover(size: object) -> None:
    template = {"builders": [{"launch_block_device_mappings": [{"volume_size": size}]}]}
    assert root_volume_gib(template) is None
    assert [line for line in leftovers(template) if "volume_size" in line]


def test_plain_values_are_not_of_the_environment() -> None:
    assert environment_lines({"a": "x", "b": "{{ env `B` }}"}) == [
        "b: '{{ env `B` }}' is read from the environment; not carried over: set it in the recipe or in a --where file"
    ]
