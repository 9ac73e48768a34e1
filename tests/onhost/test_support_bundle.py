"""The bundle for AWS Support: complete, readable by its owner alone, and it names what it lacks."""

from __future__ import annotations

import stat
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from onhost import support_bundle as program


def answer(command: Sequence[str], seconds: float) -> tuple[int, bytes, bytes]:
    """A machine whose nvidia-smi hangs, and which has no dkms."""
    assert 0 < seconds <= program.BUG_REPORT_SECONDS
    text = " ".join(command)
    if "bug_report.sh" in text:
        return (0, b"\x1f\x8breport", b"last words\n") if Path(command[1]).is_file() else (127, b"", b"")
    return (124, b"half", b"") if text.startswith("sh -c nvidia-smi") else (0, command[-1].encode(), b"")


def test_bundle_is_complete_and_private(tmp_path: Path) -> None:
    path = tmp_path / "bundle.tar.gz"
    missing = program.write(str(path), {"diagnosis.json": "{}"}, answer, 5.0)
    assert missing == ["nvidia-smi.txt: no end before the deadline", "nvidia-smi.xml: no end before the deadline"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    files = read_all(path)
    assert files.keys() == program.FILES.keys() | {"diagnosis.json", "missing.txt", program.BUG_REPORT}
    assert files["nvidia-smi.txt"] == b"half" and files[program.BUG_REPORT] == b"\x1f\x8breport"
    assert files["missing.txt"] == "".join(f"{line}\n" for line in missing).encode() + b"last words\n"


def read_all(path: Path) -> dict[str, bytes]:
    """File of the bundle → its content."""
    files = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file and member.name.startswith(program.FOLDER)
            files[member.name.removeprefix(program.FOLDER)] = file.read()
    return files


def test_machine_without_the_vendors_script(tmp_path: Path) -> None:
    def without(command: Sequence[str], seconds: float) -> tuple[int, bytes, bytes]:
        return (127, b"", b"") if "bug_report.sh" in command[1] else answer(command, seconds)

    missing = program.write(str(tmp_path / "b.tar.gz"), {}, without, 5.0)
    assert missing[-1] == "nvidia-bug-report.log.gz: not installed"


def test_a_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "b.tar.gz"
    path.write_text("kept")
    with pytest.raises(FileExistsError):
        program.write(str(path), {}, answer, 5.0)
    assert path.read_text() == "kept"
