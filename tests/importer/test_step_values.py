"""Versions that a template gives to its provisioners alone are read; secrets among them are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.importer import import_template
from gpu_ami.importer.conversion import Imported
from gpu_ami.importer.step_values import step_values
from gpu_ami.recipes.facts.tables import load_facts

BUILDER = {"type": "amazon-ebs", "instance_type": "g5.12xlarge", "ssh_username": "ec2-user"}


def imported(tmp_path: Path, step: dict[str, Any], **variables: str) -> Imported:
    path = tmp_path / "al2023.json"
    path.write_text(json.dumps({"variables": variables, "builders": [BUILDER], "provisioners": [step]}))
    return import_template(path, load_facts())


def test_environment_of_a_shell_step_names_versions(tmp_path: Path) -> None:
    step = {"type": "shell", "script": "x.sh", "environment_vars": ["CUDA_VERSION=12.8", "NCCL_VERSION='2.27.3-1'"]}
    recipe = imported(tmp_path, step).recipe
    assert (recipe["cuda"], recipe["nccl"]) == ({"version": "12.8"}, {"version": "2.27.3"})


def test_user_variable_in_a_step_has_its_value(tmp_path: Path) -> None:
    step = {"type": "shell", "script": "x.sh", "environment_vars": ["EFA_VERSION={{user `installer`}}"]}
    assert imported(tmp_path, step, installer="1.43.1").recipe["efa"] == {"version": "1.43.1"}


@pytest.mark.parametrize(
    "arguments",
    [
        ["--extra-vars", "nvidia_driver_version=570.172.08 other=1"],
        ["-v", "-e", '{"nvidia_driver_version": "570.172.08"}'],
        ["--extra-vars=nvidia_driver_version=570.172.08"],
    ],
)
def test_extra_vars_of_ansible_name_versions(arguments: list[str], tmp_path: Path) -> None:
    step = {"type": "ansible", "playbook_file": "x.yml", "extra_arguments": arguments}
    assert imported(tmp_path, step).recipe["nvidia_driver"] == {"version": "570.172.08"}


@pytest.mark.parametrize("arguments", [["-e"], ["-e", "@vars.yml"], ["-e", "{broken"], ["-e", "a='"], "text", [1]])
def test_arguments_without_variables_give_nothing(arguments: object) -> None:
    assert list(step_values([{"type": "ansible", "extra_arguments": arguments}], {})) == []


def test_second_version_of_a_component_is_said(tmp_path: Path) -> None:
    step = {"type": "shell", "script": "x.sh", "environment_vars": ["CUDA_VERSION=12.8"]}
    result = imported(tmp_path, step, cuda_version="12.6")
    assert result.recipe["cuda"] == {"version": "12.6"}
    assert "provisioners[0].environment_vars.CUDA_VERSION: '12.8' is a second version of cuda; not carried over" in (
        result.remarks
    )


def test_hcl2_variable_in_a_step_has_its_value() -> None:
    step = {"type": "shell", "env": {"NCCL_VERSION": "${var.nccl}"}}
    assert list(step_values([step], {"nccl": "2.27.3"})) == [("provisioners[0].env", "NCCL_VERSION", "2.27.3")]


def test_secret_of_a_step_is_not_copied(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2" * 9
    result = imported(
        tmp_path,
        {"type": "shell", "script": "x", "environment_vars": [f"CUDA_VERSION={secret}", "DB_PASSWORD=hunter22"]},
    )
    text = repr(result)
    assert "cuda" not in result.recipe and secret not in text and "hunter22" not in text


def test_only_a_credential_of_aws_names_boto3(tmp_path: Path) -> None:
    remarks = imported(tmp_path, {"type": "shell"}, aws_secret_key="x" * 40, hub_token="hf_" + "b" * 30).remarks
    assert [line for line in remarks if "boto3" in line] == [
        "aws_secret_key: a secret, its value is not copied: boto3 finds credentials (profile, role, environment)"
    ]
    assert "hub_token: a secret, its value is not copied" in remarks


def test_key_of_a_tag_is_no_secret(tmp_path: Path) -> None:
    builder = {**BUILDER, "tag": [{"key": "team", "value": "ml"}, {"key": "db_password", "value": "hunter22"}]}
    path = tmp_path / "al2023.json"
    for tags, is_shown in ((builder["tag"][:1], True), (builder["tag"], False)):
        path.write_text(json.dumps({"variables": {}, "builders": [{**builder, "tag": tags}]}))
        line = next(line for line in import_template(path, load_facts()).remarks if line.startswith("builders[0].tag"))
        assert ("team" in line) == is_shown and "hunter22" not in line
