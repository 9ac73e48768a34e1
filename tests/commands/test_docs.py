"""The walk through the commands prints what its page shows."""

from __future__ import annotations

import datetime
import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.cli import main
from tests.release import examples
from tests.release.test_verification import FORGERIES
from validator.file_account import merkle_root, read

PAGE = Path(__file__).parents[2] / "docs" / "tasks" / "walk-through.md"
# Digest of a plan (it holds the key of this machine's package mirror), and of the Xid tables.
_DIGESTS = re.compile(r"sha256:[0-9a-f]{64}|(?<=\d\d\.\d\d\.\d\d)\+[0-9a-f]{8}")


def blocks(page: Path) -> list[tuple[str, str]]:
    """(command, output) of each console block. Blocks of `text` need a machine."""
    found = re.findall(r"^```console\n\$ (.*?)\n(.*?)```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [(command, output) for command, output in found]


def write_if_shown(command: str, output: str) -> bool:
    """Writes the file that a block shows with `cat`; whether it is such a block."""
    if not command.startswith("cat "):
        return False
    path = Path(command.removeprefix("cat "))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(output, encoding="utf-8")
    return True


def without_digests(text: str) -> str:
    return _DIGESTS.sub("…", text)


@pytest.mark.slow
def test_commands_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    commands = blocks(PAGE)
    assert [shlex.split(command)[1] for command, _ in commands if command.startswith("gpu-ami")] == [
        "init", "plan", "plan", "checks", "events", "xid", "plan",
        "plan", "plan", "checks", "faults", "telemetry", "runbook",
    ]  # fmt: skip
    for command, output in commands:
        if write_if_shown(command, output):
            continue
        _, *arguments = shlex.split(command)
        main(arguments)
        printed = capsys.readouterr()
        assert without_digests(printed.err + printed.out) == without_digests(output), command
        if arguments[0] == "init":
            monkeypatch.chdir(tmp_path / arguments[1])


RELEASE = PAGE.parents[1] / "release.md"
_OF_THE_DAY = re.compile(r"[0-9a-f]{16}(?:[0-9a-f]{48})?(?![0-9a-f])|\d{4}-\d\d-\d\d")


def test_release_commands_print_what_the_page_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1, hours=1)
    root = merkle_root(read(examples.inventory(examples.SMI)))
    report = examples.certified_report(inventory_root=root, nvidia_driver={"version": "580.1"})
    examples.write_folder(Path("out/demo"), replace(report, finished=f"{yesterday:%Y-%m-%dT%H:%M:%SZ}"))
    old = examples.inventory(examples.SMI | {"h": "cd" * 32}, packages=(("nvidia-utils", "570.9"),))
    before = replace(examples.certified_report(nvidia_driver={"version": "570.9"}), image="ami-0fedcba9876543210")
    examples.write_folder(Path("out/old"), before, old)
    commands = blocks(RELEASE)
    assert [shlex.split(command)[1] for command, _ in commands] == ["key", "certify", "verify", "diff"]
    for command, output in commands:
        main(["--quiet" if word == "-q" else word for word in shlex.split(command)[1:]])
        assert _OF_THE_DAY.sub("0", capsys.readouterr().out) == _OF_THE_DAY.sub("0", output), command


@pytest.mark.parametrize("name", sorted({name for row in FORGERIES.values() for name in row[1].split(", ")}))
def test_the_page_lists_each_refusal(name: str) -> None:
    assert f"`{name}`" in RELEASE.read_text(encoding="utf-8")


def test_links_lead_to_files() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", PAGE.read_text(encoding="utf-8"))
    assert links and [link for link in links if not (PAGE.parent / link).is_file()] == []
