"""The replicas' shared objects: real ones, under their sonames, that say what the checks ask the real libraries."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import process
from localregion.mirror import staging
from localregion.mirror.table import Package, find_row
from validator.checks import cuda, cudnn, gds, mkl, nccl
from validator.probes import shared_libraries

pytestmark = pytest.mark.slow

# What is asked: function, how it is called, and what the check makes of the answer.
NCCL = ("ncclGetVersion", "int*", nccl.version)
CUDNN = ("cudnnGetVersion", "size", cudnn.version)
BUILT_FOR = ("cudnnGetCudartVersion", "size", cuda.version)
CUDART = ("cudaRuntimeGetVersion", "int*", cuda.version)
CUDA = ("cuDriverGetVersion", "int*", cuda.version)
CUFILE = ("cuFileGetVersion", "int*", gds.version)
MKL = ("MKL_Get_Version_String", "char*", mkl.version)

# package, version, its library, soname, what it is asked, the answer
CASES: list[tuple[str, str, str, str, tuple[str, str, Any], Any]] = [
    ("libnccl2", "2.21.5-1+cuda12.4", "libnccl.so.2.21.5", "libnccl.so.2", NCCL, "2.21.5"),
    ("libnccl", "2.28.7-1+cuda13.0", "libnccl.so.2.28.7", "libnccl.so.2", NCCL, "2.28.7"),
    ("libnccl2", "2.8.4-1+cuda11.2", "libnccl.so.2.8.4", "libnccl.so.2", NCCL, "2.8.4"),
    ("libcudnn9-cuda-12", "9.1.0.70-1", "libcudnn.so.9.1.0", "libcudnn.so.9", CUDNN, "9.1.0"),
    ("libcudnn8", "8.7.0.84-1+cuda11.8", "libcudnn.so.8.7.0", "libcudnn.so.8", CUDNN, "8.7.0"),
    ("libcudnn9-cuda-13", "9.28.0.42-1", "libcudnn.so.9.28.0", "libcudnn.so.9", BUILT_FOR, (13, 0)),
    ("libcudnn8", "8.7.0.84-1+cuda11.8", "libcudnn.so.8.7.0", "libcudnn.so.8", BUILT_FOR, (11, 8)),
    ("cuda-cudart-12-4", "12.4.1-1", "libcudart.so.12.4.1", "libcudart.so.12", CUDART, (12, 4)),
    ("cuda-cudart-11-8", "11.8.0-1", "libcudart.so.11.8.0", "libcudart.so.11.0", CUDART, (11, 8)),
    ("cuda-compat-13-0", "580.95.05-1", "libcuda.so.580.95.05", "libcuda.so.1", CUDA, (13, 0)),
    ("cuda-compat-12-4", "550.54.15-1", "libcuda.so.550.54.15", "libcuda.so.1", CUDA, (12, 4)),
    ("libcufile-13-3", "1.18.1.6-1", "libcufile.so.1.18.1.6", "libcufile.so.0", CUFILE, "1.18"),
    ("intel-mkl-2020.0-088", "2020.0-088", "libmkl_rt.so", "libmkl_rt.so", MKL, "2020.0"),
    ("intel-mkl-2020.4-912", "2020.4-912", "libmkl_rt.so", "libmkl_rt.so", MKL, "2020.4"),
]


def staged(name: str, version: str, tree: Path, kind: str = "deb") -> Path:
    row = find_row("packages", name, kind=kind, asked_by="a test")
    staging.stage(row, Package(name, version, kind, "x86_64", row).values, tree)
    return tree


@pytest.mark.parametrize(("name", "version", "library", "soname", "asked", "expected"), CASES)
def test_library_says_its_version(
    tmp_path: Path, name: str, version: str, library: str, soname: str, asked: tuple[str, str, Any], expected: Any
) -> None:
    found = list(staged(name, version, tmp_path).rglob(library))
    assert len(found) == 1, name
    shown = process.run(["readelf", "-d", found[0]], timeout=30).stdout
    assert re.findall(r"\(SONAME\).*\[(.+)\]", shown) == [soname]
    assert "(NEEDED)" not in shown  # not even a libc
    function, kind, read = asked
    answer = process.run(
        [sys.executable, "-c", shared_libraries.PROGRAM, str(found[0]), function, kind], timeout=30
    ).stdout
    assert read(json.loads(answer)["value"]) == expected


def test_soname_leads_to_the_library(tmp_path: Path) -> None:
    for kind, folder in (("deb", "usr/lib/x86_64-linux-gnu"), ("rpm", "usr/lib64")):
        tree = tmp_path / kind
        tree.mkdir()
        link = staged("libnccl2", "2.21.5-1+cuda12.4", tree, kind) / folder / "libnccl.so.2"
        assert (str(link.readlink()), link.resolve().exists()) == ("libnccl.so.2.21.5", True)


def test_compiler_says_its_release_as_nvcc_does(tmp_path: Path) -> None:
    program = staged("cuda-nvcc-12-4", "12.4.1-1", tmp_path) / "usr/local/cuda-12.4/bin/nvcc"
    assert cuda.release(process.run([program, "--version"], timeout=30).stdout) == "12.4"
    assert process.run([program, "a.cu"], timeout=30, check=False).returncode == 1


def test_mkl_is_where_the_role_looks(tmp_path: Path) -> None:
    root = staged("intel-mkl-2020.0-088", "2020.0-088", tmp_path) / "opt/intel"
    assert (root / "mkl/lib/intel64/libmkl_rt.so").is_file()
    assert (root / "lib/intel64").is_dir()


def test_a_buffer_that_is_too_short_is_not_overrun(tmp_path: Path) -> None:
    import ctypes

    library = next(staged("intel-mkl-2020.0-088", "2020.0-088", tmp_path).rglob("libmkl_rt.so"))
    buffer = ctypes.create_string_buffer(b"x" * 64, 64)
    ctypes.CDLL(str(library)).MKL_Get_Version_String(buffer, 16)
    assert (buffer.value, buffer.raw[16:17]) == (b"Intel(R) Math K", b"x")
