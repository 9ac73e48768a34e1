"""What is read as a template, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.importer.template import read_template


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
