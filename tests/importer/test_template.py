"""What is read as a template, and what is refused; `{{user `x`}}` and `{{env `X`}}`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.importer.template import UserVariables, is_resolved, read_template, refers_to_variable, variables_in


def write(path: Path, document: object) -> Path:
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def test_files_of_variables_override_in_their_order(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", {"variables": {"a": "1", "b": None, "c": None}, "builders": [{"type": "x"}]})
    first = write(tmp_path / "first.json", {"_comment": "", "a": "2", "b": "{{user `a`}}"})
    second = write(tmp_path / "second.pkrvars.hcl", 'a = "3"\n')
    template = read_template(path, [first, second])
    assert template.variables == {"a": "3", "b": "3", "c": None}
    assert template.remarks == ["c: without a value here; --var-file FILE gives values, as Packer's -var-file does"]


def test_template_without_variables_is_read(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", {"builders": [{"type": "amazon-ebs", "instance_type": "p5.48xlarge"}]})
    assert read_template(path).builders == [{"type": "amazon-ebs", "instance_type": "p5.48xlarge"}]


def test_builder_is_chosen_by_name(tmp_path: Path) -> None:
    builders = [{"type": "amazon-ebs", "name": "a"}, {"type": "amazon-ebs", "name": "b"}]
    path = write(tmp_path / "x.json", {"variables": {}, "builders": builders})
    assert [read_template(path, only=only).builders for only in ("b", "amazon-ebs.a")] == [builders[1:], builders[:1]]
    with pytest.raises(UsageError, match="no builder c"):
        read_template(path, only="c")


def test_yaml_and_trailing_commas_are_read(tmp_path: Path) -> None:
    assert read_template(write(tmp_path / "x.yml", "variables: {a: 1}\n")).variables == {"a": 1}
    assert read_template(write(tmp_path / "y.json", '{"variables": {"a": "1",},}')).variables == {"a": "1"}


def test_hcl2_is_known_by_its_text(tmp_path: Path) -> None:
    path = write(tmp_path / "template", 'variable "a" {\n  default = "1"\n}\n')
    assert read_template(path).variables == {"a": "1"}


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("x.json", "[]", "no `variables` block"),
        ("x.json", "{}", "no `variables` block"),
        ("x.json", '{"variables": {"a": "b" "c"}}', "not JSON and not YAML: line 1"),
        ("x.yml", "a: [", "neither JSON nor HCL2, and not YAML: line"),
        ("x.pkr.json", '{"variable": {"a": {}}, "source": {}}', "HCL2 written as JSON"),
        ("x.pkr.hcl", 'variable "a" {', "not HCL2 that can be read"),
        ("x.json", '{"variables": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}", "nested too deeply"),
    ],
)
def test_what_is_no_template_is_refused(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        read_template(write(tmp_path / name, text))
    assert str(tmp_path / name) in caught.value.message


def test_file_of_variables_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "x.json", {"variables": {}})
    with pytest.raises(UsageError, match=r"missing\.json: cannot be read"):
        read_template(path, [tmp_path / "missing.json"])
    with pytest.raises(UsageError, match=r"bad\.json: not JSON: line 1"):
        read_template(path, [write(tmp_path / "bad.json", '{"a": ')])
    with pytest.raises(UsageError, match=r"no \*\.pkr\.hcl file"):
        (tmp_path / "empty").mkdir()
        read_template(tmp_path / "empty")


VALUES = {
    "a": "1", "b": "{{user `a`}}-{{ user \"a\" }}", "none": None, "loop": "{{user `loop`}}", "list": ["{{user `a`}}"],
    "env": "{{env `IMPORT_X`}}", "through": "{{user `env`}}",
}  # fmt: skip


@pytest.mark.parametrize(
    "raw, value",
    [
        ("{{user `a`}}", "1"),
        ("{{ user 'a' }}", "1"),
        ("{{user `b`}}", "1-1"),
        ("x-{{user `b`}}", "x-1-1"),
        ("{{user `none`}}", None),
        ("x{{user `none`}}", "x"),
        ("{{user `missing`}}", None),
        ("{{user `loop`}}", None),
        ("{{user `env`}}", "of the environment"),
        ({"k": ["{{user `a`}}", 2, True]}, {"k": ["1", 2, True]}),
        ("{{timestamp}}", "{{timestamp}}"),
    ],
)
def test_resolved_value(raw: object, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPORT_X", "of the environment")
    assert UserVariables(VALUES).resolved(raw) == value


def test_variables_that_come_from_the_environment_are_known() -> None:
    user = UserVariables(VALUES)
    for name in VALUES:
        user.value(name)
    assert user.environment == {"env": {"IMPORT_X"}, "through": {"IMPORT_X"}}


def test_what_refers_to_variables() -> None:
    assert refers_to_variable("{{user `a`}}") and refers_to_variable("${var.a}") and refers_to_variable(["${var.a}"])
    assert not refers_to_variable("x{{user `a`}}") and not refers_to_variable([]) and not refers_to_variable(3)
    assert variables_in({"x": ["{{user `a`}}", "${lower(var.b)}-${var.c}"]}) == {"a", "b", "c"}
    assert is_resolved("x") and is_resolved(None) and not is_resolved("{{timestamp}}") and not is_resolved("${uuid()}")
