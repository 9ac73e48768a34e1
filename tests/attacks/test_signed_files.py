"""Attempts 3 and 11: files beside a certificate that were edited, deleted or added after it was signed."""

from __future__ import annotations

import datetime
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gpu_ami import cli, observe
from gpu_ami.release import verification_host
from tests.release import examples
from validator.file_account import read

WORDS = ("--key", "release.key.pub", "--offline")
BACKDOOR = examples.SMI | {"p": "/usr/bin/backdoor", "h": "cd" * 32, "m": 0o4755, "c": 99, "a": 99, "o": []}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    report = replace(examples.write_folder(Path("out/demo")), finished=f"{yesterday:%Y-%m-%dT%H:%M:%SZ}")
    role = Path("out/demo/site/roles/ours/meta")
    role.mkdir(parents=True)
    (role / "footprint.yml").write_text("files:\n  - {path: /etc/ours.conf}\n")
    return examples.signed_folder(Path("out/demo"), tmp_path, report)


def edit(name: str, before: str, after: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        text = (folder / name).read_text()
        assert before in text
        (folder / name).write_text(text.replace(before, after))

    return change


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "level in the certificate's text": (edit("certificate.md", "**certified**", "**CERTIFIED**"), "certificate.md"),
    "report.html": (edit("report.html", "certified", "certified for all"), "report.html"),
    "summary.md": (edit("summary.md", "certified", "certified for all"), "summary.md"),
    "junit.xml": (edit("junit.xml", "testcase", "testcases"), "junit.xml"),
    "evidence deleted": (lambda f: shutil.rmtree(f / "evidence"), "evidence/image-files/materials.json"),
    "footprint of a site's role": (
        edit("site/roles/ours/meta/footprint.yml", "/etc/ours.conf", "/usr/bin/backdoor"),
        "site/roles/ours/meta/footprint.yml",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_verify_names_the_file_that_was_changed(folder: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    change, file = CHANGES[name]
    change(folder)
    assert cli.main(["verify", str(folder), *WORDS]) == 6
    printed = capsys.readouterr().out
    assert file in printed and "REFUSED" in printed


def test_certifying_again_does_not_keep_the_signature_of_changed_files(folder: Path) -> None:
    edit("junit.xml", "testcase", "testcases")(folder)
    assert cli.main(["certify", str(folder)]) == 6
    assert not (folder / examples.ENVELOPE).exists() and not (folder / "certificate.json").exists()


def test_a_footprint_laid_beside_the_certificate_explains_no_backdoor(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours has no such path; the file is in a role of the plan, where `verify` looked before."""
    for role in ("event_parser", "ours"):
        laid = folder / "site/roles" / role / "meta" / "more.yml"
        laid.parent.mkdir(parents=True, exist_ok=True)
        laid.write_text("x: 1\n")
    laid = folder / "site/roles/event_parser/meta/footprint.yml"
    laid.write_text('files:\n  - {path: /usr/bin/backdoor, mode: "4755"}\n')
    monkeypatch.setattr(verification_host, "take", lambda _target: read(examples.inventory(examples.SMI, BACKDOOR)))
    monkeypatch.setattr(verification_host, "take_materials", lambda _target: set())
    monkeypatch.setattr(observe, "read_host", lambda _target, **_options: SimpleNamespace(found={}))
    assert cli.main(["verify", str(folder), *WORDS, "--host", "admin@10.0.0.7"]) == 6
    printed = capsys.readouterr().out
    assert "/usr/bin/backdoor (new" in printed
    assert "not signed and not used" in printed and "site/roles/event_parser/meta/footprint.yml" in printed
