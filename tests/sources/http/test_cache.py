"""Kept answers: what is read again, and what is not trusted."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpu_ami.files import cache_dir
from gpu_ami.sources.http.cache import Cache, Kept

URL = "https://vendor.example/index"


def test_answer_is_kept_with_its_conditions(tmp_path: Path) -> None:
    Cache(tmp_path).put(Kept(URL, b"a\nb", '"1"', "yesterday"))
    kept = Cache(tmp_path).get(URL)
    assert kept == Kept(URL, b"a\nb", '"1"', "yesterday")
    assert kept.conditions == {"If-None-Match": '"1"', "If-Modified-Since": "yesterday"}
    assert Kept(URL, b"").conditions == {}
    assert Cache(tmp_path).get("https://vendor.example/other") is None


@pytest.mark.parametrize("content", [b"", b"{}", b"{}\nx", b"no json\nx", b"[]\nx"])
def test_damaged_file_is_no_answer(tmp_path: Path, content: bytes) -> None:
    Cache(tmp_path).put(Kept(URL, b"body"))
    file = next(tmp_path.iterdir())
    file.write_bytes(content)
    assert Cache(tmp_path).get(URL) is None


def test_body_that_was_cut_off_is_no_answer(tmp_path: Path) -> None:
    Cache(tmp_path).put(Kept(URL, b"body"))
    file = next(tmp_path.iterdir())
    file.write_bytes(file.read_bytes()[:-1])
    assert Cache(tmp_path).get(URL) is None


def test_old_answers_are_removed(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put(Kept(URL, b"old"))
    old = next(tmp_path.iterdir())
    os.utime(old, (time.time() - 40 * 86400,) * 2)
    cache.put(Kept("https://vendor.example/new", b"new"))
    cache.forget_old()
    assert cache.get(URL) is None and cache.get("https://vendor.example/new")


def test_folder_that_cannot_be_made_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    cache = Cache(tmp_path / "file" / "folder")
    cache.put(Kept(URL, b"body"))
    cache.forget_old()
    assert cache.get(URL) is None


def test_folder_is_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / "cache"
    monkeypatch.delenv("GPU_AMI_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert cache_dir() == tmp_path / "cache" / "gpu-ami"
