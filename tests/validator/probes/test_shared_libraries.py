"""Shared libraries as this machine's loader has them: libc, called as the checks call CUDA's."""

from __future__ import annotations

import ctypes
import os
import socket
from pathlib import Path

import pytest
import testinfra

from gpu_ami import process
from tests.scripted_host import table_host
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


def compiled(folder: Path, version: str) -> str:
    """A plugin that needs `call` in this version of a library beside it, which has LIB_1.6."""
    (folder / "lib.c").write_text("void call(void) {}\n")
    (folder / "plugin.c").write_text("extern void call(void);\nvoid (*const pointer)(void) = call;\n")
    for name, output in (("LIB_1.6", "libone.so.1"), (version, "built.so")):  # found later, and linked to
        (folder / "lib.map").write_text(f"{name} {{ global: call; }};\n")
        _gcc(folder, "-Wl,--version-script=lib.map", "-Wl,-soname,libone.so.1", "-o", output, "lib.c")
    _gcc(folder, f"-Wl,-rpath,{folder}", "-o", "plugin.so", "plugin.c", "built.so")
    return str(folder / "plugin.so")


def _gcc(folder: Path, *words: str) -> None:
    process.run(["gcc", "-shared", "-fPIC", "-nostdlib", *words], cwd=folder, timeout=60)


@pytest.mark.slow
def test_library_whose_needs_are_there_is_opened(observe: Observe, tmp_path: Path) -> None:
    host, plugin = testinfra.get_host("local://"), compiled(tmp_path, "LIB_1.6")
    shared_libraries.check_opened(host, observe, [plugin, "libc.so.6"])
    assert shared_libraries.unresolved(host, plugin) == []


@pytest.mark.slow
def test_missing_symbol_version_is_found_by_opening_and_by_ldd(observe: Observe, tmp_path: Path) -> None:
    """awsome-distributed-ai#292: ldd prints the version and exits with 0."""
    host, plugin = testinfra.get_host("local://"), compiled(tmp_path, "LIB_1.7")
    with pytest.raises(
        pytest.fail.Exception, match=r"the loader does not open .*plugin\.so: .*version `LIB_1\.7' not found"
    ):
        shared_libraries.check_opened(host, observe, [plugin])
    text, *_ = shared_libraries.unresolved(host, plugin)
    assert text.startswith("version `LIB_1.7' not found (required by ")


@pytest.mark.slow
def test_missing_library_and_symbol_are_found(observe: Observe, tmp_path: Path) -> None:
    host, plugin = testinfra.get_host("local://"), compiled(tmp_path, "LIB_1.6")
    (tmp_path / "lib.c").write_text("void other(void) {}\n")
    (tmp_path / "lib.map").write_text("LIB_1.6 { global: other; };\n")
    _gcc(tmp_path, "-Wl,--version-script=lib.map", "-Wl,-soname,libone.so.1", "-o", "libone.so.1", "lib.c")
    assert any("call" in text for text in shared_libraries.unresolved(host, plugin))
    with pytest.raises(pytest.fail.Exception, match="undefined symbol: call"):
        shared_libraries.check_opened(host, observe, [plugin])
    (tmp_path / "libone.so.1").unlink()
    assert shared_libraries.unresolved(host, plugin) == ["libone.so.1"]
    with pytest.raises(pytest.fail.Exception, match=r"libone\.so\.1: cannot open shared object file"):
        shared_libraries.check_opened(host, observe, [plugin])


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((127, "", "env: 'python3': No such file"), "cannot open libraries: status 127: env: 'python3'"),
        ('{"a.so": "the process ended with status 11"}', "does not open a.so: the process ended with status 11"),
        ("{}", "does not open a.so: no answer"),
    ],
)
def test_no_answer_is_not_opened(observe: Observe, reply: object, message: str) -> None:
    with pytest.raises(pytest.fail.Exception, match=message):
        shared_libraries.check_opened(table_host({"env*": reply}), observe, ["a.so"])  # type: ignore[dict-item]


def test_no_library_is_not_opened(observe: Observe) -> None:
    with pytest.raises(pytest.fail.Exception, match="any library: none is on its path"):
        shared_libraries.check_opened(table_host({"env*": "{}"}), observe, [])


def test_file_that_ldd_refuses_is_unresolved() -> None:
    host = table_host({"env*": (1, "\tnot a dynamic executable\n", "")})
    assert shared_libraries.unresolved(host, "/x") == ["ldd exited with status 1: not a dynamic executable"]


def test_names_on_path() -> None:
    rows = "".join(
        f"\t{name} (libc6,x86-64) => /lib/{name}\n" for name in ("libcudnn.so.9", "libcudnn_ops.so.9", "libcudnn.so.8")
    )
    host = table_host({"ldconfig*": rows})
    assert shared_libraries.names_on_path(host, r"libcudnn\w*\.so\.9") == ["libcudnn.so.9", "libcudnn_ops.so.9"]
