"""Each MKL check, once green and once red with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from validator.checks import mkl
from validator.plan import as_plan

FILE = "/opt/intel/compilers_and_libraries_2020.0.166/linux/mkl/lib/intel64_lin/libmkl_rt.so"
TEXT = "Intel(R) Math Kernel Library Version 2020.0.{} Product Build 20191122 for Intel(R) 64 architecture applications"
CACHE = "\tlibmkl_rt.so (libc6,x86-64) => /opt/intel/mkl/lib/intel64/libmkl_rt.so\n"
TWO = CACHE + "\tlibmkl_rt.so (libc6,x86-64) => /lib/x86_64-linux-gnu/libmkl_rt.so\n"
PLAN = as_plan({"os": {"family": "debian"}, "mkl": {"version": "2020.0-088", "package": "intel-mkl-2020.0-088"}})


def said(update: int) -> str:
    return json.dumps({"value": TEXT.format(update), "file": FILE})


CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (mkl.test_library_is_the_planned_version, {"*libmkl_rt.so MKL_Get_Version_String*": said(0)}, "PASS", ""),
    (
        mkl.test_library_is_the_planned_version,
        {"*libmkl_rt.so MKL_Get_Version_String*": said(4)},
        "FAIL",
        "libmkl_rt.so: expected '2020.0', got '2020.4'",
    ),
    (
        mkl.test_library_is_the_planned_version,
        {"*": (1, "", "OSError: libmkl_rt.so: cannot open shared object file")},
        "FAIL",
        "a program cannot use libmkl_rt.so (MKL_Get_Version_String): OSError",
    ),
    (mkl.test_only_one_is_on_the_loader_path, {"ldconfig*": CACHE, "readlink*": f"{FILE}\n"}, "PASS", ""),
    (
        mkl.test_only_one_is_on_the_loader_path,
        {"ldconfig*": TWO, "readlink*": f"{FILE}\n/usr/lib/x86_64-linux-gnu/libmkl_rt.so\n"},
        "FAIL",
        "/usr/lib/x86_64-linux-gnu/libmkl_rt.so",
    ),
    (mkl.test_package_is_the_planned_one, {"dpkg-query*": "intel-mkl-2020.0-088 installed 2020.0-088\n"}, "PASS", ""),
    (
        mkl.test_package_is_the_planned_one,
        {"dpkg-query*": (1, "", "no packages found matching intel-mkl-2020.0-088")},
        "FAIL",
        "got {'intel-mkl-2020.0-088': 'missing'}",
    ),
    (mkl.test_package_is_held, {"apt-mark*": "intel-mkl-2020.0-088\n"}, "PASS", ""),
    (mkl.test_package_is_held, {"apt-mark*": "\n"}, "FAIL", "would change them: intel-mkl-2020.0-088"),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_mkl(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("text", "version"), [(TEXT.format(0), "2020.0"), (TEXT.format(4), "2020.4"), ("no such library", "")]
)
def test_version_of_mkl_version_text(text: str, version: str) -> None:
    assert mkl.version(text) == version
