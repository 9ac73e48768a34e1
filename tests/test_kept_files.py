"""Files that earlier versions wrote (tests/kept/<version>) are read; those of another schema say what to do.

A release adds a folder: what `plan`, `build`, `validate`, `certify --sign` and `publish` wrote with it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.build import image
from gpu_ami.errors import UsageError
from gpu_ami.plan import Plan
from gpu_ami.publish.record import Record, RegionRecord
from gpu_ami.report import certificate, document
from validator.plan import load_plan

KEPT = Path(__file__).with_name("kept")
VERSIONS = sorted(path.name for path in KEPT.iterdir())
READERS: dict[str, Callable[[Path], object]] = {
    "plan.json": Plan.load,
    "build.json": lambda path: image.load(path.parent),
    "report.json": document.load,
    "certificate.json": certificate.load,
}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", READERS)
def test_a_file_of_an_earlier_version_is_read(version: str, name: str) -> None:
    assert READERS[name](KEPT / version / name)


@pytest.mark.parametrize("version", VERSIONS)
def test_checks_read_a_plan_of_an_earlier_version(version: str) -> None:
    assert load_plan(KEPT / version / "plan.json")["image"] == "debian12-gpu"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_release_of_an_earlier_version_is_verified(version: str, capsys: pytest.CaptureFixture[str]) -> None:
    folder = KEPT / version
    words = ["--key", str(folder / "release.key.pub"), "--offline"]
    assert cli.main(["verify", str(folder), *words]) == 0, capsys.readouterr()


@pytest.mark.parametrize("version", VERSIONS)
def test_a_publication_of_an_earlier_version_goes_on(version: str, tmp_path: Path) -> None:
    file = tmp_path / "publication.json"
    shutil.copy(KEPT / version / file.name, file)
    kept = json.loads(file.read_text())
    regions = [RegionRecord(row["region"]) for row in kept["regions"]]
    Record("publish", kept["image"], "", regions, file).resume()
    assert [len(region.earlier) for region in regions] == [len(row["steps"]) for row in kept["regions"]]


@pytest.mark.parametrize("name", READERS)
def test_a_file_of_another_schema_is_refused_with_what_writes_it(name: str, tmp_path: Path) -> None:
    """As where 0.2 reads what a later version wrote, or a version before 0.1."""
    content = json.loads((KEPT / "0.1.0" / name).read_text())
    later = f"{content['schema'].rpartition('/')[0]}/99"
    (tmp_path / name).write_text(json.dumps(content | {"schema": later}))
    with pytest.raises(UsageError) as caught:
        READERS[name](tmp_path / name)
    assert f"expected schema '{content['schema']}', got '{later}'" in caught.value.message
    assert caught.value.hint.startswith("`gpu-ami ") and caught.value.hint.endswith("writes a new one")
