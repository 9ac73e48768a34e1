"""The proof of an AMI that others built, from its files to what is launched and certified."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami import cli, observe, pipeline
from gpu_ami.errors import UsageError
from gpu_ami.progress import Progress
from gpu_ami.region import Session
from gpu_ami.report import certificate
from tests.observe import foreign_images as foreign
from tests.regions import NotingRegion
from tests.report.examples import a_check, a_report
from tests.test_pipeline import AWS
from validator.results import Verdict

AMI = "ami-0123456789abcdef0"


def session(folder: Path, *amis: str) -> Session:
    known = {ami: {"ImageId": ami} for ami in amis}
    cloud, run = SimpleNamespace(place=AWS, image=known.get), SimpleNamespace(id="r-1")
    return Session(AWS, cloud, run, Progress("quiet"), NotingRegion(folder))  # type: ignore[arg-type]


def test_files_of_an_ami_are_observed_and_proven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "images" / AMI).mkdir(parents=True)
    (tmp_path / "images" / AMI / "disk.raw").write_bytes(b"")
    root = foreign.ecs_base(tmp_path / "root")
    read = observe.read_files
    monkeypatch.setattr(observe, "read_files", lambda _disk: read(root))
    proven: list[Any] = []

    def validate(plan: Any, ami: str, out: Path, _session: Any, decided: Any) -> Any:
        proven.append((plan.document["origin"], ami, decided.instance_types))
        return a_report(**plan.document)

    monkeypatch.setattr(pipeline, "validate_stage", validate)
    monkeypatch.setattr(pipeline, "open_session", lambda *_: nullcontext(session(tmp_path / "images", AMI)))
    out = tmp_path / "out"
    assert cli.main(["prove", "--ami", AMI, "-o", str(out), "--instance-type", "g5.12xlarge"]) == 1  # no host at all
    assert proven == [("observed", AMI, ("g5.12xlarge",))]
    assert {"observation.json", "plan.json", "recipe.yml"} <= {path.name for path in out.iterdir()}


def test_an_ami_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not in eu-central-1"):
        pipeline.observe_stage(AMI, session(tmp_path))


def test_options_of_a_build_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["prove", "--ami", AMI, "--fresh", "--set", "x=y"]) == 2
    assert "--set, --fresh: for a recipe, not for --ami" in capsys.readouterr().err
    assert cli.main(["prove", "--ami", AMI, "--layers", "auto", "--refresh", "--builder", "sandbox"]) == 2
    assert "--layers, --refresh, --builder: for a recipe, not for --ami" in capsys.readouterr().err
    assert cli.main(["prove"]) == 2
    assert "expected a recipe, or --ami or --manifest" in capsys.readouterr().err


def test_certificate_says_as_found() -> None:
    observed = {"absent": ["efa", "cudnn"], "absent_by": ["dpkg", "its files"]}
    report = a_report(roles=["nvidia_driver", "observed"], observed=observed)
    lines = certificate.certify(report).not_proven
    assert certificate.certify(report).basis == "as found"
    assert certificate.certify(a_report()).basis == "as planned"
    assert any(line.startswith("as found: no recipe promises anything") for line in lines)
    assert "not applicable, shown to be absent by dpkg and its files: EFA, cuDNN" in lines
    assert a_check("x").verdict == Verdict.PASS
