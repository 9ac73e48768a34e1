"""The replica's libcuda: what it compiles, what it refuses, and that its memory is no memory of the host."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onhost import provoke_xid
from tests.replicas.conftest import A100, VERSION, board
from tests.replicas.test_libraries import staged

pytestmark = pytest.mark.slow  # compiles the library

# Loads PTX for GPU 0, runs its kernel `test` on one thread, prints what the calls return and the word that it stored.
_RUN = """
import ctypes, json, sys
cuda = ctypes.CDLL(sys.argv[1])
device, context, module, kernel = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
said = [cuda.cuInit(0), cuda.cuDeviceGet(ctypes.byref(device), 0)]
said.append(cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
log = ctypes.create_string_buffer(256)
options, values = (ctypes.c_int * 2)(5, 6), (ctypes.c_void_p * 2)(ctypes.addressof(log), 256)
text = ctypes.c_char_p(sys.argv[2].encode())
load = cuda.cuModuleLoadDataEx(ctypes.byref(module), text, 2, options, values)
answer = {"setup": said, "load": load, "log": log.value.decode()}
if not load:
    memory, back = ctypes.c_uint64(), ctypes.c_uint64()
    cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(64))
    answer["function"] = cuda.cuModuleGetFunction(ctypes.byref(kernel), module, b"test")
    places = {"own": memory.value, "host": ctypes.addressof(back), "beyond": memory.value + 61}
    where = ctypes.c_uint64(places[sys.argv[3]])
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(where))
    if not answer["function"]:
        answer["launch"] = cuda.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)
        answer["end"] = cuda.cuCtxSynchronize()
        cuda.cuMemcpyDtoH_v2(ctypes.byref(back), memory, ctypes.c_size_t(8))
        answer["stored"] = back.value
print(json.dumps(answer))
"""
_PTX = """
.version {version}
.target {target}
.address_size 64
.visible .entry test(.param .u64 where)
{{
    .reg .u32 %r<8>;
    .reg .u64 %a, %b, %c;
    .reg .f32 %f<4>;
    .reg .f64 %d<4>;
    ld.param.u64 %a, [where];
    {code}
    st.global.{store} [%a], {value};
    ret;
}}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    name = f"libnvidia-compute-{VERSION.partition('.')[0]}"
    tree = staged(name, f"{VERSION}-0ubuntu1", tmp_path_factory.mktemp("libcuda"))
    return next(tree.rglob("libcuda.so.1"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "proc/driver/nvidia/gpus/0000:00:1b.0").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/gpus/0000:00:1b.0/board").write_text(board(A100, 0, "0000:00:1b.0"))
    (tmp_path / "proc/driver/nvidia/version").write_text(f"NVRM version: Kernel Module for x86_64  {VERSION}  Build\n")
    (tmp_path / "dev").mkdir()
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    return tmp_path


def run(library: Path, root: Path, ptx: str, where: str = "own") -> dict[str, Any]:
    command = [sys.executable, "-c", _RUN, str(library), ptx, where]
    done = subprocess.run(command, env={"GPU_AMI_ROOT": str(root)}, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    assert answer["setup"] == [0, 0, 0]
    return answer


def ptx(code: str = "", value: str = "7", store: str = "u32", version: str = "6.0", target: str = "sm_50") -> str:
    return _PTX.format(code=code, value=value, store=store, version=version, target=target)


@pytest.mark.parametrize(
    ("code", "value", "store", "stored"),
    [
        ("", "7", "u32", 7),
        ("", "0xFFFFFFFFFF", "u64", 0xFFFFFFFFFF),
        ("", "-1", "u32", 0xFFFFFFFF),
        ("mov.u32 %r1, 5; sub.u32 %r2, %r1, 7;", "%r2", "u32", 0xFFFFFFFE),
        ("mov.u32 %r1, 0x10001; mul.lo.u32 %r2, %r1, %r1;", "%r2", "u32", 0x20001),
        ("mov.u32 %r1, 0x10001; mul.wide.u32 %b, %r1, %r1;", "%b", "u64", 0x100020001),
        ("mov.u32 %r1, 3; mad.lo.u32 %r2, %r1, 4, 5;", "%r2", "u32", 17),
        ("mov.u32 %r1, 0xF0; and.b32 %r2, %r1, 0x3C; or.b32 %r3, %r2, 1; xor.b32 %r4, %r3, 0xFF;", "%r4", "u32", 0xCE),
        ("mov.u32 %r1, 0x80000001; shl.b32 %r2, %r1, 1; shr.u32 %r3, %r1, 31; add.u32 %r4, %r2, %r3;", "%r4", "u32", 3),
        ("mov.u32 %r1, 1; shl.b32 %r2, %r1, 32;", "%r2", "u32", 0),
        ("mov.u32 %r1, 16777217; cvt.rn.f32.u32 %f1, %r1; mov.b32 %r2, %f1;", "%r2", "u32", 0x4B800000),
        ("mov.u32 %r1, 0x3F800000; mov.b32 %f1, %r1; add.rn.f32 %f2, %f1, 0f40000000; mov.b32 %r2, %f2;", "%r2", "u32",
         0x40400000),
        ("mov.u32 %r1, 3; cvt.rn.f64.u32 %d1, %r1; mul.rn.f64 %d2, %d1, 0d3FE0000000000000; mov.b64 %b, %d2;", "%b",
         "u64", 0x3FF8000000000000),
        ("mov.u32 %r1, %ntid.x; mov.u32 %r2, %tid.x; mad.lo.u32 %r3, %r1, 10, %r2;", "%r3", "u32", 10),
        ("add.u64 %c, %a, 4; st.global.u32 [%c], 9; st.global.u32 [%a+4], 8;", "7", "u32", 8 << 32 | 7),
        ("// a comment; of two words\n    mov.u32 %r1, 4;", "%r1", "u32", 4),
    ],
)  # fmt: skip
def test_it_calculates_as_ptx_says(library: Path, root: Path, code: str, value: str, store: str, stored: int) -> None:
    answer = run(library, root, ptx(code, value, store))
    assert (answer["load"], answer["log"], answer["launch"], answer["end"]) == (0, "", 0, 0)
    assert answer["stored"] == stored


@pytest.mark.parametrize(
    ("text", "error", "log"),
    [
        (ptx(version="9.0"), 222, "line 2: cannot use '9.0'"),  # R550 compiles up to 8.4
        (ptx(version="8.4"), 0, ""),
        (ptx(target="sm_90"), 218, "line 3: cannot use 'sm_90'"),
        (ptx("bra.uni out;"), 218, "line 12: cannot use 'bra.uni'"),
        (ptx("mov.u32 %r9, 1;"), 218, "cannot use '%r9'"),
        (ptx("mov.u32 7, 1;"), 218, "cannot use 'the target is no register'"),
        (ptx("add.u32 %r1, %r2;"), 218, "cannot use ';'"),
        (ptx().replace("[where]", "[other]"), 218, "cannot use 'other'"),
        (ptx().replace("    ret;\n", ""), 218, "cannot use 'no ret at the end'"),
        (ptx().replace("64\n", "32\n"), 218, "cannot use '32'"),
        ("", 218, "line 1"),
        ("\x7fELF", 218, "line 1"),
    ],
)
def test_what_it_does_not_know_is_refused(library: Path, root: Path, text: str, error: int, log: str) -> None:
    answer = run(library, root, text)
    assert (answer["load"], log in answer["log"]) == (error, True), answer


@pytest.mark.parametrize("where", ["host", "beyond"])
def test_an_address_that_is_not_its_own_faults(library: Path, root: Path, where: str) -> None:
    """CUDA_ERROR_ILLEGAL_ADDRESS, told by the call that waits; nothing is stored."""
    answer = run(library, root, ptx(), where)
    assert (answer["launch"], answer["end"], answer["stored"]) == (0, 700, 0)


def test_another_name_is_not_found(library: Path, root: Path) -> None:
    assert run(library, root, ptx().replace("entry test(", "entry other("))["function"] == 500


def test_the_program_that_provokes_a_fault_is_compiled(library: Path, root: Path) -> None:
    answer = run(library, root, provoke_xid.PTX.decode())
    assert (answer["load"], answer["function"]) == (0, 500)  # its kernel has another name


def test_a_compatibility_library_takes_an_older_driver(tmp_path: Path, root: Path) -> None:
    compat = next(staged("cuda-compat-13-0", "580.95.05-1", tmp_path / "compat").rglob("libcuda.so.1"))
    assert run(compat, root, ptx())["stored"] == 7
