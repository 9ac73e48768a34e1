"""Each example of docs/pipelines-of-others.md is run, or parsed by what reads it."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import botocore.session
import pytest
import yaml

from gpu_ami import cli
from tests import forked_pytest
from tests.observe import foreign_images as foreign

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "pipelines-of-others.md").read_text(encoding="utf-8")
ACTION = yaml.safe_load((ROOT / "actions" / "prove-ami" / "action.yml").read_text(encoding="utf-8"))
# What a proof writes into its folder (docs/proof.md).
WRITTEN = {"report.json", "junit.xml", "ctrf.json", "summary.md", "certificate.json"}
MOST_COMPONENT = 64 * 1024  # quota "Size of a component document" of EC2 Image Builder

needs_packer = pytest.mark.skipif(shutil.which("packer") is None, reason="packer is not installed")


def section(title: str) -> str:
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    return str(text)


def blocks(title: str, language: str = "") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", section(title), re.DOTALL | re.MULTILINE)


def parsed(command: str) -> object:
    """A command line of gpu-ami, as its parser has it. It exits where it is wrong."""
    words = shlex.split(command)
    assert words[0].endswith("gpu-ami")
    return cli.make_parser().parse_args(words[1:])


def recorder(folder: Path) -> dict[str, str]:
    """An environment in which `gpu-ami` keeps its arguments, and fails where its manifest is not there."""
    folder.mkdir()
    program = folder / "gpu-ami"
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "arguments = sys.argv[1:]\n"
        "if '--manifest' in arguments: open(arguments[arguments.index('--manifest') + 1]).close()\n"
        f"open({str(folder / 'arguments')!r}, 'a').write(json.dumps(arguments) + chr(10))\n"
    )
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def recorded(folder: Path) -> list[list[str]]:
    return [json.loads(line) for line in (folder / "arguments").read_text().splitlines()]


@pytest.mark.slow
@needs_packer
def test_packer_proves_the_image_of_its_manifest(tmp_path: Path) -> None:
    (block,) = blocks("Packer", "hcl")
    template = (
        'source "null" "image" {\n  communicator = "none"\n}\nbuild {\n  sources = ["source.null.image"]\n%s\n}\n'
    )
    (tmp_path / "image.pkr.hcl").write_text(template % block)
    environment = recorder(tmp_path / "bin")
    command = ["packer", "build", "-color=false", "image.pkr.hcl"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1500:]
    (arguments,) = recorded(tmp_path / "bin")
    assert cli.make_parser().parse_args(arguments).manifest == Path("packer-manifest.json")


@pytest.mark.slow
@needs_packer
def test_template_of_testinfra_is_hcl_and_its_commands_are_ours(tmp_path: Path) -> None:
    (block,) = blocks("packer-plugin-testinfra", "hcl")
    (tmp_path / "image.pkr.hcl").write_text(f"build {{\n{block}}}\n")
    done = subprocess.run(["packer", "fmt", "-write=false", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (command,) = re.findall(r'"(gpu-ami observe .*)"', block)
    parsed(re.sub(r"\$\{build\.(\w+)\}", "1", command))


@pytest.mark.slow
def test_checks_run_as_the_plugin_starts_them(tmp_path: Path) -> None:
    """The plugin's command line (provisioner/command.go, communication.go at 1ad9f10), with the page's environment."""
    root = foreign.vendor_without_holds(tmp_path / "root")
    assert cli.main(["observe", "--root", str(root), "-o", str(tmp_path / "out" / "observed"), "-q"]) == 0
    (export,) = [line for line in blocks("packer-plugin-testinfra")[0].splitlines() if line.startswith("export ")]
    options = shlex.split(export)[1].partition("=")[2].replace("$PWD", str(tmp_path))
    (tmp_path / "key").write_text("")
    command = [
        "--hosts=ssh://admin@127.0.0.1:9", f"--ssh-identity-file={tmp_path / 'key'}",
        '--ssh-extra-args="-o StrictHostKeyChecking=no"', "-m", "not live", "--sudo", "-vv", "--collect-only",
        str(ROOT / "validator" / "checks" / "compute.py"),
    ]  # fmt: skip
    environment = {**os.environ, "PYTEST_ADDOPTS": options, "PYTEST_PLUGINS": ""}
    done = forked_pytest.run(command, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]
    assert "test_one_gpu_computes_right" in done.stdout


def test_component_of_image_builder_is_one_that_aws_takes(tmp_path: Path) -> None:
    first, second = (block.splitlines() for block in blocks("EC2 Image Builder"))
    made, copied, created = (shlex.split(line) for line in first)
    assert cli.main([*made[1:3], str(tmp_path / made[3]), *made[4:]]) == 0
    size = (tmp_path / made[3]).stat().st_size
    shape = (
        botocore.session.get_session().get_service_model("imagebuilder").operation_model("CreateComponent").input_shape
    )
    given = dict(zip(created[3::2], created[4::2], strict=True))
    names = {re.sub(r"-(\w)", lambda match: match[1].upper(), option.removeprefix("--")) for option in given}
    assert names <= shape.members.keys()
    assert set(shape.required_members) - {"clientToken"} <= names
    assert size <= (MOST_COMPONENT if "uri" in names else shape.members["data"].metadata["max"])
    assert given["--uri"] == copied[4]
    parsed(second[0].partition(" && ")[2])
    assert copied[3] == made[3]
    text = cli.verbs_of(cli.make_parser())["image-builder"].format_help()
    assert all(line in text for line in first[:2])


def test_action_is_called_with_its_inputs_and_calls_us(tmp_path: Path) -> None:
    (text,) = blocks("GitHub Actions", "yaml")
    document = yaml.safe_load(text)
    (step,) = [step for step in document["steps"] if "prove-ami" in step["uses"]]
    required = {name for name, row in ACTION["inputs"].items() if row.get("required")}
    assert required <= step["with"].keys() <= ACTION["inputs"].keys()
    (prove,) = [one for one in ACTION["runs"]["steps"] if "gpu-ami" in one.get("run", "") and "env" in one]
    environment = recorder(tmp_path / "bin")
    for name, value in prove["env"].items():
        key = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", r"\1", value)
        environment[name] = step["with"].get(key, ACTION["inputs"][key].get("default", ""))
    done = subprocess.run(["bash", "-eo", "pipefail", "-c", prove["run"]], env=environment, check=False, cwd=tmp_path)
    assert done.returncode == 0
    (arguments,) = recorded(tmp_path / "bin")
    args = cli.make_parser().parse_args(arguments)
    assert (args.ami, args.instance_type) == (step["with"]["ami"], [step["with"]["instance-type"]])
    (summary,) = [one["run"] for one in ACTION["runs"]["steps"] if "GITHUB_STEP_SUMMARY" in one.get("run", "")]
    assert f"{args.out}/summary.md" in summary


def test_build_of_codebuild_is_a_buildspec_and_calls_us() -> None:
    """https://docs.aws.amazon.com/codebuild/latest/userguide/build-spec-ref.html"""
    (text,) = blocks("CodeBuild", "yaml")
    document = yaml.safe_load(text)
    assert document["version"] == 0.2
    assert document.keys() <= {"version", "phases", "reports", "artifacts", "env", "cache", "run-as", "proxy", "batch"}
    assert document["phases"].keys() <= {"install", "pre_build", "build", "post_build"}
    (command,) = document["phases"]["build"]["commands"]
    args = parsed(command)
    (report,) = document["reports"].values()
    assert report["file-format"] in {"JUNITXML", "CUCUMBERJSON", "TESTNGXML", "VISUALSTUDIOTRX", "NUNITXML"}
    assert report["base-directory"] == str(args.out)  # type: ignore[attr-defined]
    assert set(report["files"]) <= WRITTEN
    assert len(document["phases"]["install"]["commands"]) == 2
