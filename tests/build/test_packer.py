"""Packer's program: which template it gets, its plugins, its manifest, and what a failure becomes."""

from __future__ import annotations

import io
import json
import socket
import tempfile
from pathlib import Path

import pytest

from gpu_ami.build import packer
from gpu_ami.build.packer import Reader
from gpu_ami.cloud import Place, runs
from gpu_ami.errors import BuildError, CapacityError, CloudError, GpuAmiError, MissingTool
from gpu_ami.progress import Progress

TEMPLATE = Path(__file__).parents[2] / "packer"


@pytest.mark.parametrize(
    ("version", "folder"), [((1, 6, 6), "packer"), ((1, 7, 0), "current"), ((1, 16, 0), "current")]
)
def test_each_version_gets_the_template_that_it_understands(version: tuple[int, int, int], folder: str) -> None:
    assert packer.Packer("packer", version).template(TEMPLATE).name == folder


def program(folder: Path, script: str) -> Path:
    path = folder / "packer"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_another_program_of_that_name_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """cracklib installs a `packer`, too."""
    monkeypatch.setenv("PACKER", str(program(tmp_path, "echo 0 0")))
    with pytest.raises(MissingTool, match="is not Packer; version output: '0 0'"):
        packer.Packer.find()


def test_missing_plugins_name_the_way_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = 'case $1 in version) echo "Packer v1.16.0";; init) echo "could not get plugin" >&2; exit 1;; esac'
    monkeypatch.setenv("PACKER", str(program(tmp_path, script)))
    with pytest.raises(MissingTool) as caught:
        packer.validate(TEMPLATE, tmp_path, None)  # type: ignore[arg-type]  # not reached
    assert "packer plugins install --path BINARY github.com/hashicorp/amazon" in caught.value.hint
    assert any("could not get plugin" in line for line in caught.value.details)


def test_another_version_of_a_plugin_is_named_with_the_pinned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = "\n".join(
        f"/x/packer-plugin-{name}_x5.0_linux_amd64" for name in ("amazon_v1.7.0", "ansible_v1.1.7-dev")
    )
    script = f'case $1 in version) echo "Packer v1.16.0";; init) exit 1;; plugins) echo "{installed}";; esac'
    monkeypatch.setenv("PACKER", str(program(tmp_path, script)))
    with pytest.raises(MissingTool) as caught:
        packer.validate(TEMPLATE, tmp_path, None)  # type: ignore[arg-type]  # not reached
    assert (
        caught.value.details[0] == "expected amazon ~> 1.8, ansible ~> 1.1; installed: amazon 1.7.0, ansible 1.1.7-dev"
    )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Error launching source instance: api error VcpuLimitExceeded: You have requested more", CapacityError),
        ("Error creating AMI: UnauthorizedOperation: You are not authorized", CloudError),
        ("Timeout waiting for SSH.", BuildError),
    ],
)
def test_a_refusal_of_aws_is_not_a_failed_build(text: str, kind: type[GpuAmiError]) -> None:
    reader = Reader(io.StringIO(), lambda note: None)
    reader.line(f"1795266063,,ui,error,==> amazon-ebs.image: {text}")
    error = packer.build_failure(1, reader, Path("out/x/build.log"))
    assert type(error) is kind and text in str(error) and "out/x/build.log" in str(error)


def test_no_registry_of_the_caller_s_takes_part_in_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HCP Packer's variables would send the build's data there, and run the provisioners that the bucket enforces."""
    monkeypatch.setenv("HCP_PACKER_BUCKET_NAME", "images")
    monkeypatch.setenv("HCP_PACKER_REGISTRY", "on")
    asked = f'echo "$HCP_PACKER_REGISTRY" >{tmp_path}/$1'
    script = f'case $1 in version) echo "Packer v1.16.0";; init) ;; *) {asked}; exit 1;; esac'
    monkeypatch.setenv("PACKER", str(program(tmp_path, script)))
    place = Place("p", "us-east-1")
    with pytest.raises(BuildError):
        packer.validate(TEMPLATE, tmp_path, place)
    with pytest.raises(BuildError):
        packer.build(packer.PackerRun(
            TEMPLATE, tmp_path, place, run_id="r-1", expires="", key_name="k", progress=Progress("quiet"),
        ))  # fmt: skip
    assert [(tmp_path / command).read_text() for command in ("validate", "build")] == ["off\n", "off\n"]


NOT_CLEANED_UP = {  # packer-plugin-amazon 1.8.2 and Packer 1.6.6, where their steps clean up
    "instance": "Error terminating instance, may still be around: ExpiredToken: The security token is expired",
    "key": "Error cleaning up keypair. Please delete the key manually: RequestError: send request failed",
    "group": "Error cleaning up security group. Please delete the group manually: err: x; security group ID: sg-1",
}


@pytest.mark.parametrize("status", [0, 1])
@pytest.mark.parametrize("left", NOT_CLEANED_UP)
def test_what_packer_could_not_remove_is_kept_for_sweep(
    left: str, status: int, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when the credentials expire during a build: the record of the run is what `sweep` knows it by."""
    record = f"1795266061,,ui,error,==> amazon-ebs.image: {NOT_CLEANED_UP[left]}"
    script = f'case $1 in version) echo "Packer v1.16.0";; init) ;; *) echo "{record}"; exit {status};; esac'
    monkeypatch.setenv("PACKER", str(program(tmp_path, script)))
    with pytest.raises(GpuAmiError) as caught, runs.begin(home, "p") as run:
        packer.build(packer.PackerRun(
            TEMPLATE, tmp_path, Place("p", "us-east-1"), run_id=run.id, expires="", key_name="k",
            progress=Progress("quiet"),
        ))  # fmt: skip
    assert [one.id for one in runs.records(home)] == [run.id]
    assert "gpu-ami sweep" in str(caught.value)
    assert f"not removed: {NOT_CLEANED_UP[left]}" in caught.value.details or status == 0


def manifest(folder: Path, **changes: object) -> Path:
    record = {"artifact_id": "us-east-1:ami-1", "custom_data": {"run_id": "r-1"}} | changes
    path = folder / packer.MANIFEST_FILE
    path.write_text(json.dumps({"builds": [record]}))
    return path


def test_manifest_names_the_ami(tmp_path: Path) -> None:
    made = packer.read_manifest(manifest(tmp_path), "r-1")
    assert (made.ami, made.region) == ("ami-1", "us-east-1")


def test_manifest_of_another_run_or_broken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="is of run r-1, not of r-9"):
        packer.read_manifest(manifest(tmp_path), "r-9")
    (tmp_path / packer.MANIFEST_FILE).write_text('{"builds": []}')
    with pytest.raises(BuildError, match="not a manifest"):
        packer.read_manifest(tmp_path / packer.MANIFEST_FILE, "r-1")


def test_a_packer_that_had_to_be_killed_leaves_the_record_of_its_run(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has removed neither its builder nor its group: `gpu-ami sweep` finds them by the record."""
    script = "case $1 in version) echo 'Packer v1.6.6';; build) trap '' INT TERM; while :; do sleep 1; done;; esac"
    monkeypatch.setenv("PACKER", str(program(tmp_path, script)))
    monkeypatch.setattr(packer, "CLEANUP_SECONDS", 0.5)
    with pytest.raises(BuildError, match="did not complete") as caught, runs.begin(home, "local") as run:
        packer.build(packer.PackerRun(
            TEMPLATE, tmp_path, Place("p", "us-east-1"), run_id=run.id, expires=run.expires, key_name="k",
            progress=Progress("quiet"), timeout=0.5,
        ))  # fmt: skip
    assert "gpu-ami sweep" in str(caught.value)
    assert [record.id for record in runs.records(home)] == [run.id]


def test_sockets_have_a_short_path_below_a_long_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below a long home directory a build stood still, or Packer crashed."""
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", "/tmp")
    longest = "/" + "x" * (106 - len(packer.MITOGEN_SOCKET))
    with packer.short_folder(longest) as own:
        assert own == longest
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    with packer.short_folder(str(deep)) as short:
        assert len(short) < 60 and Path(short).resolve() == deep
        with socket.socket(socket.AF_UNIX) as opened:
            opened.bind(short + packer.MITOGEN_SOCKET)
        assert (deep / packer.MITOGEN_SOCKET[1:]).is_socket()
    assert not Path(short).exists() and deep.exists()
    with socket.socket(socket.AF_UNIX) as refused, pytest.raises(OSError, match="too long"):
        refused.bind(f"{deep}{packer.MITOGEN_SOCKET}")
