"""Compressed files: each kind, damage, and bombs."""

from __future__ import annotations

import gzip
import lzma

import pytest

from gpu_ami.sources.http.errors import SourceError
from gpu_ami.sources.repositories.compression import inflate
from tests.sources.conftest import compress

TEXT = b"Package: a\n" * 100_000


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ""])
def test_each_kind_is_read(suffix: str) -> None:
    assert inflate(compress(TEXT, suffix), f"Packages{suffix}") == TEXT


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_bomb_is_stopped_at_the_limit(suffix: str) -> None:
    bomb = compress(b"\0" * (8 << 20), suffix)
    assert len(bomb) < 20_000
    with pytest.raises(SourceError, match=r"more than 1 MiB when decompressed, from \d+ bytes"):
        inflate(bomb, f"Packages{suffix}", limit=1 << 20)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_cut_off_file_is_named(suffix: str) -> None:
    with pytest.raises(SourceError, match="damaged or cut off"):
        inflate(compress(TEXT, suffix)[:-20], f"Packages{suffix}")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_other_content_is_named(suffix: str) -> None:
    with pytest.raises(SourceError, match="damaged or cut off"):
        inflate(b"<html>no index</html>", f"Packages{suffix}")


def test_several_members_are_one_content() -> None:
    assert inflate(gzip.compress(b"a") + gzip.compress(b"b"), "x.gz") == b"ab"
    assert inflate(lzma.compress(b"a") + lzma.compress(b"b"), "x.xz") == b"ab"
