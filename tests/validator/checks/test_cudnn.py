"""Each cuDNN check, once green and once red with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from validator.checks import cudnn
from validator.plan import as_plan

FILE = "/usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0"
CACHE = "1 libs found in cache\n\tlibcudnn.so.9 (libc6,x86-64) => /lib/x86_64-linux-gnu/libcudnn.so.9\n"
TWO = CACHE + "\tlibcudnn.so.9 (libc6,x86-64) => /opt/cudnn/lib/libcudnn.so.9\n"
PLAN = as_plan(
    {
        "os": {"family": "debian"},
        "cuda": {"version": "12.4"},
        "cudnn": {"version": "9.1.0", "packages": {"libcudnn9-cuda-12": "9.1.0.70-1"}},
    }
)


def said(value: int) -> str:
    return json.dumps({"value": value, "file": FILE})


CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (cudnn.test_library_is_the_planned_version, {"*cudnnGetVersion*": said(90100)}, "PASS", ""),
    (
        cudnn.test_library_is_the_planned_version,
        {"*libcudnn.so.9 cudnnGetVersion*": said(90201)},
        "FAIL",
        "libcudnn.so.9.1.0: expected '9.1.0', got '9.2.1'",
    ),
    (
        cudnn.test_library_is_the_planned_version,
        {"*": (1, "", "OSError: libcudnn.so.9: cannot open shared object file")},
        "FAIL",
        "a program cannot use libcudnn.so.9 (cudnnGetVersion): OSError",
    ),
    (cudnn.test_only_one_is_on_the_loader_path, {"ldconfig*": CACHE, "readlink*": f"{FILE}\n"}, "PASS", ""),
    (
        cudnn.test_every_library_can_be_opened,
        {"ldconfig*": CACHE, "env*": '{"libcudnn.so.9": "opened"}'},
        "PASS",
        "",
    ),
    (
        cudnn.test_every_library_can_be_opened,
        {"ldconfig*": CACHE, "env*": '{"libcudnn.so.9": "file too short"}'},
        "FAIL",
        "the loader does not open libcudnn.so.9: file too short",
    ),
    (
        cudnn.test_only_one_is_on_the_loader_path,
        {"ldconfig*": TWO, "readlink*": f"{FILE}\n/opt/cudnn/lib/libcudnn.so.9.2.1\n"},
        "FAIL",
        "libcudnn.so.9 on the loader path: expected one file, got /usr/lib/x86_64-linux-gnu/libcudnn.so.9.1.0, /opt",
    ),
    (
        cudnn.test_only_one_is_on_the_loader_path,
        {"ldconfig*": "0 libs found\n"},
        "FAIL",
        "libcudnn.so.9 on the loader path: expected one file, got none",
    ),
    (cudnn.test_library_is_made_for_the_planned_cuda, {"*Cudart*": said(12030)}, "PASS", ""),
    (
        cudnn.test_library_is_made_for_the_planned_cuda,
        {"*Cudart*": said(13000)},
        "FAIL",
        "was built for: expected '12', got '13'",
    ),
    (
        cudnn.test_packages_are_the_planned_ones,
        {"dpkg-query*": "libcudnn9-cuda-12 installed 9.1.0.70-1\n"},
        "PASS",
        "",
    ),
    (
        cudnn.test_packages_are_the_planned_ones,
        {"dpkg-query*": "libcudnn9-cuda-12 installed 9.2.1.18-1\n"},
        "FAIL",
        "got {'libcudnn9-cuda-12': '9.2.1.18-1'}",
    ),
    (cudnn.test_packages_are_held, {"apt-mark*": "libcudnn9-cuda-12\n"}, "PASS", ""),
    (cudnn.test_packages_are_held, {"apt-mark*": ""}, "FAIL", "would change them: libcudnn9-cuda-12"),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_cudnn(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(("code", "version"), [(8700, "8.7.0"), (8907, "8.9.7"), (90100, "9.1.0"), (91002, "9.10.2")])
def test_version_codes(code: int, version: str) -> None:
    assert cudnn.version(code) == version
