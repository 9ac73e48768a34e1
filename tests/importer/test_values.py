"""Values of HCL2 expressions.

Versions that a template gives to its provisioners alone are read; secrets among them are not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import hcl2
import pytest

from gpu_ami.importer import import_template
from gpu_ami.importer.conversion import Imported
from gpu_ami.importer.hcl2 import Evaluator, NotUnderstood
from gpu_ami.importer.template import step_values
from gpu_ami.recipes.facts.tables import load_facts

KNOWN = {"a": "x", "n": 3, "list": ["p", "q"], "map": {"k": "v"}, "empty": "", "none": None}


def lookup(scope: str, name: str) -> object:
    if scope != "var" or name not in KNOWN:
        raise NotUnderstood(f"{scope}.{name}")
    return KNOWN[name]


def evaluated(expression: str) -> tuple[object, list[str]]:
    evaluator = Evaluator(lookup)
    node = hcl2.parses(f"v = {expression}\n").body.children[0].expression
    return evaluator.value(node), evaluator.not_understood


@pytest.mark.parametrize(
    "expression, value",
    [
        ('"text"', "text"), ("12", 12), ("-1", -1), ("true", True), ("null", None), ('["a", 1]', ["a", 1]),
        ('{ k = "v", "q" = 2 }', {"k": "v", "q": 2}), ('"${var.a}-${var.n}"', "x-3"), ("var.a", "x"),
        ('"${var.list}"', ["p", "q"]), ("var.list[1]", "q"), ('var.map["k"]', "v"), ("var.map.k", "v"),
        ('var.a == "x" ? 1 : 2', 1), ('var.empty == "" ? null : var.empty', None), ("!(var.n > 2)", False),
        ('coalesce(var.empty, "d-${var.a}")', "d-x"), ('compact(split(",", ""))', []), ('lower("AB")', "ab"),
        ('join("-", var.list)', "p-q"), ('replace("a.b", ".", "-")', "a-b"),
        ('merge(var.map, { z = 1 })', {"k": "v", "z": 1}),
        ("var.n + 1", 4), ('"a\\"b\\n"', 'a"b\n'), ('"$${var.a}"', "${var.a}"), ('"${var.none}"', None),
        ('"x${var.none}"', "x"), ("concat(var.list, [1])", ["p", "q", 1]), ("tostring(true)", "true"),
    ],
)  # fmt: skip
def test_value(expression: str, value: object) -> None:
    assert evaluated(expression) == (value, [])


@pytest.mark.parametrize(
    "expression, value, what",
    [
        ('templatefile("a", {})', '${templatefile("a", {})}', "the function templatefile"),
        ("var.missing", "${var.missing}", "var.missing"),
        ('"x-${timestamp()}"', "x-${timestamp()}", "the function timestamp"),
        ("[for x in var.list : x]", None, "a for expression"),
        ("var.list[*].id", None, "a splat expression"),
        ('lower("${uuidv4()}")', None, "the function uuidv4"),
        ("var.list[7]", "${var.list[7]}", "an attribute or index that is not there"),
        ("data.amazon-ami.x.id", None, "data.amazon-ami"),
        ("var.a + 1", None, "the operator + between these values"),
    ],
)
def test_what_is_not_understood_is_named_and_left(expression: str, value: object, what: str) -> None:
    found, not_understood = evaluated(expression)
    assert not_understood == [what]
    assert found == value if value is not None else str(found).startswith("${")


def test_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPORT_X", "y")
    evaluator = Evaluator(lookup)
    assert evaluator.value(hcl2.parses('v = env("IMPORT_X")\n').body.children[0].expression) == "y"
    assert evaluator.environment == {"IMPORT_X"}


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


def test_what_a_step_carries_over_is_not_called_unused_and_the_rest_is_named(tmp_path: Path) -> None:
    """The same version was carried over and said to have no place; a token beside it was not mentioned."""
    words = ["EFA_INSTALLER_VERSION={{user `installer`}}", "REGISTRY_PASSWORD=open-sesame-99", "WHEELS=torch"]
    step = {"type": "shell", "inline": ["./x.sh"], "environment_vars": words}
    remarks = imported(tmp_path, step, installer="1.43.1", bucket="b-1").remarks
    assert [line for line in remarks if line.startswith(("installer", "bucket"))] == [
        "bucket: 'b-1' has no place in a recipe; not carried over"
    ]
    (line,) = [line for line in remarks if line.startswith("provisioners[0] (shell)")]
    assert "1 inline command with REGISTRY_PASSWORD, WHEELS: not carried over" in line
    assert "open-sesame-99" not in "".join(remarks)


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
