"""validator.foreign_names: names of others lead to files below our folder alone."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from validator import foreign_names
from validator.foreign_names import NameRefused


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b", "a\nb", "ü", "x" * 201, "a b"])
def test_a_name_that_is_not_one_file_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(NameRefused, match="expected one name of letters"):
        foreign_names.join(tmp_path, "a", name)


def test_links_and_devices_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "file").write_text("x")
    assert list(foreign_names.files_below(tmp_path)) == [Path("a/file")]
    assert foreign_names.read_bytes(tmp_path / "a/file", 9) == b"x"
    with pytest.raises(NameRefused, match="at most 0 bytes"):
        foreign_names.read_bytes(tmp_path / "a/file", 0)
    (tmp_path / "link").symlink_to("/etc")
    joined = lambda: foreign_names.join(tmp_path, "link", "passwd")  # noqa: E731
    for call in (joined, lambda: list(foreign_names.files_below(tmp_path))):
        with pytest.raises(NameRefused, match="a symbolic link"):
            call()
    (tmp_path / "link").unlink()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(NameRefused, match="not a regular file"):
        list(foreign_names.files_below(tmp_path))
