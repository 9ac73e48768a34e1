"""Shared libraries as this machine's loader has them: libc, called as the checks call CUDA's."""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path

import pytest
import testinfra

from tests.validator.checks.conftest import table_host
from validator.observe import Observe
from validator.probes import shared_libraries


@pytest.mark.parametrize(
    ("function", "kind", "value"),
    [
        ("getpagesize", "size", os.sysconf("SC_PAGESIZE")),
        ("gethostname", "char*", socket.gethostname()),
        ("pthread_barrierattr_init", "int*", 0),  # writes one int; -1 would be what was there before
    ],
)
def test_function_is_called_and_its_file_named(observe: Observe, function: str, kind: str, value: object) -> None:
    loaded = shared_libraries.call(testinfra.get_host("local://"), observe, "libc.so.6", function, kind)
    assert loaded.value == value
    assert Path(loaded.file).is_absolute() and Path(loaded.file).name.startswith("libc")
    ctypes.CDLL(loaded.file)


@pytest.mark.parametrize(
    ("soname", "function", "kind", "message"),
    [
        ("libnone.so.9", "f", "size", r"a program cannot use libnone\.so\.9 \(f\): .*cannot open shared object file"),
        ("libc.so.6", "no_such_function", "size", "undefined symbol: no_such_function"),
        ("libc.so.6", "wait", "int*", r"wait of libc\.so\.6 returned -1"),
    ],
)
def test_library_that_cannot_be_used(observe: Observe, soname: str, function: str, kind: str, message: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=message):
        shared_libraries.call(testinfra.get_host("local://"), observe, soname, function, kind)


def test_environment_of_the_caller_is_not_used(
    observe: Observe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    (tmp_path / "libc.so.6").symlink_to("/nonexistent")
    loaded = shared_libraries.call(testinfra.get_host("local://"), observe, "libc.so.6", "getpagesize", "size")
    assert not loaded.file.startswith(str(tmp_path))


CACHE = """\
3 libs found in cache `/etc/ld.so.cache'
\tlibcudart.so.13 (libc6,x86-64) => /usr/local/cuda/lib64/libcudart.so.13
\tlibcudart.so.13 (libc6) => /usr/lib/i386-linux-gnu/libcudart.so.13
\tlibcudart.so.13 (libc6,x86-64) => /usr/local/cuda-13.0/lib64/libcudart.so.13
\tlibcudart.so.130 (libc6,x86-64) => /usr/lib/libcudart.so.130
"""


def test_files_of_the_cache_are_64_bit_and_named_once() -> None:
    readlink = "readlink -f -- /usr/local/cuda/lib64/libcudart.so.13 /usr/local/cuda-13.0/lib64/libcudart.so.13"
    resolved = "/usr/local/cuda-13.0/lib64/libcudart.so.13.0.88\n" * 2
    host = table_host({"ldconfig -p": CACHE, readlink: resolved})
    assert shared_libraries.on_path(host, "libcudart.so.13") == ["/usr/local/cuda-13.0/lib64/libcudart.so.13.0.88"]
    assert shared_libraries.on_path(host, "libcudart.so.12") == []


def test_arm_libraries_count() -> None:
    table = {
        "ldconfig -p": "\tlibx.so.1 (libc6,AArch64) => /usr/lib/libx.so.1\n",
        "readlink*": "/usr/lib/libx.so.1.2\n",
    }
    assert shared_libraries.on_path(table_host(table), "libx.so.1") == ["/usr/lib/libx.so.1.2"]
