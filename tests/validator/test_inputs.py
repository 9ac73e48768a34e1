"""Files that a person names: what is no regular file is refused at once, and nothing waits for a writer."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from validator import inputs


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(path))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (_pipe, "expected a regular file, got a named pipe"),
        (_socket, "expected a regular file, got a socket"),
        (Path.mkdir, "Is a directory"),
        (lambda path: path.symlink_to("/dev/zero"), "expected a regular file, got a device"),
        (lambda path: path.symlink_to(path), "Too many levels of symbolic links"),
        (lambda path: None, "No such file or directory"),
    ],
)
def test_what_is_no_regular_file_is_refused(tmp_path: Path, make: object, message: str) -> None:
    make(tmp_path / "x")  # type: ignore[operator]
    with pytest.raises(OSError) as failure:
        inputs.read_text(tmp_path / "x")
    assert failure.value.strerror == message


def test_size_is_limited(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x" * 1001)
    assert len(inputs.read_bytes(tmp_path / "x", 1001)) == 1001
    with pytest.raises(OSError) as failure:
        inputs.read_bytes(tmp_path / "x", 1000)
    assert (failure.value.errno, failure.value.strerror) == (errno.EFBIG, "expected at most 1,000 bytes, got 1,001")


def test_lines_end_as_text_files_do(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"a\r\nb\rc\n")
    assert inputs.read_text(tmp_path / "x") == "a\nb\nc\n"
