"""`gpu-ami observe`: what it prints and writes, differences from a recipe, and a Packer manifest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.build import ami_of_manifest
from gpu_ami.errors import UsageError
from gpu_ami.plan import Plan
from tests.observe import foreign_images as foreign

RECIPE = Path(__file__).parents[2] / "variables" / "recipes" / "debian12-distribution.yml"


def test_files_are_observed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, out = foreign.distribution_driver(tmp_path / "root"), tmp_path / "out"
    assert cli.main(["observe", "--root", str(root), "-o", str(out), "--against", str(RECIPE)]) == 0
    shown = capsys.readouterr().out
    assert "driver" in shown
    assert "535.309.01 proprietary" in shown
    assert "this image does not capture Xids" in shown
    assert "log /var/log/gpuevent.log: expected group" in shown
    assert Plan.load(out / "plan.json").document["origin"] == "observed"
    recipe = (out / "recipe.yml").read_text()
    assert "source: distribution" in recipe
    assert cli.main(["plan", str(out / "recipe.yml"), "-o", str(tmp_path / "again")]) == 0


def test_two_targets_and_none_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["observe", "--root", "/x", "--host", "local://"]) == 2
    assert cli.main(["observe"]) == 2
    assert "expected one of --ami, --manifest, --host, --root and --read" in capsys.readouterr().err


def test_a_folder_that_is_no_system_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["observe", "--root", str(tmp_path)]) == 2
    assert "not the root of a system" in capsys.readouterr().err


def test_strict_fails_on_a_problem(tmp_path: Path) -> None:
    root, out = foreign.mixed_parts(tmp_path / "root"), tmp_path / "out"
    assert cli.main(["observe", "--root", str(root), "-o", str(out)]) == 0
    assert cli.main(["observe", "--root", str(root), "-o", str(out), "--strict"]) == 1


def manifest(*artifacts: str, last: str = "b") -> dict[str, object]:
    """A manifest as Packer's post-processor writes it: of an earlier run, then of the last one."""
    builds = [{"name": "old", "artifact_id": "us-east-1:ami-0000000000000000a", "packer_run_uuid": "a"}]
    builds += [{"name": "new", "artifact_id": one, "packer_run_uuid": "b"} for one in artifacts]
    return {"builds": builds, "last_run_uuid": last}


@pytest.mark.parametrize(
    ("artifacts", "region", "expected"),
    [
        (["us-east-1:ami-0000000000000000b"], "us-east-1", "ami-0000000000000000b"),
        (["us-east-1:ami-0000000000000000b"], "", "ami-0000000000000000b"),
        (["us-east-1:ami-0000000000000000b,eu-west-1:ami-0000000000000000c"], "eu-west-1", "ami-0000000000000000c"),
        (["us-east-1:ami-0000000000000000b"], "eu-west-1", "expected one AMI of the last run in eu-west-1, got"),
        (["us-east-1:ami-0000000000000000b", "us-east-1:ami-0000000000000000c"], "us-east-1", "expected one AMI"),
        ([], "us-east-1", "got no AMI"),
    ],
)
def test_manifest_of_any_template_names_the_ami(
    artifacts: list[str], region: str, expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "packer-manifest.json"
    path.write_text(json.dumps(manifest(*artifacts)))
    if expected.startswith("ami-"):
        assert ami_of_manifest(path, region) == expected
        return
    with pytest.raises(UsageError, match=expected):
        ami_of_manifest(path, region)


@pytest.mark.parametrize(
    "text, message",
    [
        ("{}", "not a manifest of Packer's"),
        ("[" * 100_000, "nested too deeply"),
        ('{"builds": [' + "[" * 100_000, "nested too deeply"),
        ('{"builds": "x"}', "expected an object with a list `builds`"),
        ("[]", "expected an object with a list `builds`"),
        ('{"builds": [{"artifact_id": "sha256:abc"}]}', r"got no AMI \(sha256:abc\)"),
        ('{"builds": [{"artifact_id": "us-east-1:ami-' + "a" * 5000 + '"}]}', "got no AMI"),
        ('{"builds": [{"artifact_id": "us-east-1:ami-../../../x"}]}', "got no AMI"),
    ],
    ids=["empty", "deep", "deep-builds", "text", "list", "docker", "long", "path"],
)
def test_what_is_no_manifest_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "packer-manifest.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=message):
        ami_of_manifest(path, "")
