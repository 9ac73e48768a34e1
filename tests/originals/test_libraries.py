"""NVIDIA's own libraries and compiler, from its wheels, laid out as its packages have them.

The checks that read versions of libraries run over them, and the replicas are compared with them: names, sonames,
symbols, answers. `make real` (root for a mount namespace, network; the wheels are kept by version).
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import process
from localregion.mirror import staging
from localregion.mirror.table import Package, find_row
from tests.originals import fetch
from tests.originals.conftest import Installed
from tests.validator.checks.conftest import PLAN, Judge
from validator.checks import cuda, cudnn, gds, nccl
from validator.plan import as_plan

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [pytest.mark.real, pytest.mark.usefixtures("root_user")]

LIBRARIES = "usr/lib/x86_64-linux-gnu"
TOOLKIT = "usr/local/cuda-13.0"
TARGET = f"{TOOLKIT}/targets/x86_64-linux/lib"
# What variables/locks/debian12-gpu.json plans; parts of CUDA 13.0.2 have versions of their own (redistrib_13.0.2.json).
RUNTIME, COMPILER, CUFILE = "13.0.96", "13.0.88", "1.15.1.6"


def planned() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "variables/locks/debian12-gpu.json").read_text(encoding="utf-8"))
    return {name: document["plan"][name] for name in ("cuda", "cudnn", "nccl")}


@dataclass(frozen=True)
class Original:
    """A library: file in a wheel, and the package that has it with its version; functions of which checks ask."""

    wheel: str
    version: str
    file: str
    package: str
    package_version: str
    asked: tuple[tuple[str, str], ...]


def originals() -> dict[str, Original]:
    plan = planned()
    full = plan["cudnn"]["full"]
    ((cudnn_package, cudnn_version),) = plan["cudnn"]["packages"].items()
    ((nccl_package, nccl_version),) = plan["nccl"]["packages"].items()
    return {
        "cudart": Original(
            "nvidia-cuda-runtime", RUNTIME, "libcudart.so.13", "cuda-cudart-13-0", "13.0.2-1",
            (("cudaRuntimeGetVersion", "int*"),),
        ),
        "cudnn": Original(
            "nvidia-cudnn-cu13", full, "libcudnn.so.9", cudnn_package, cudnn_version,
            (("cudnnGetVersion", "size"), ("cudnnGetCudartVersion", "size")),
        ),
        "nccl": Original(
            "nvidia-nccl-cu13", plan["nccl"]["version"], "libnccl.so.2", nccl_package, nccl_version,
            (("ncclGetVersion", "int*"),),
        ),
        "cufile": Original(
            "nvidia-cufile", CUFILE, "libcufile.so.0", "libcufile-13-0", f"{CUFILE}-1", (("cuFileGetVersion", "int*"),),
        ),
    }  # fmt: skip


def found(original: Original) -> Path:
    (file,) = fetch.wheel(original.wheel, original.version).rglob(original.file)
    return file


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Files of the wheels under the names of the packages: a file with its full version, and the soname as a link."""
    root = tmp_path_factory.mktemp("originals")
    known = originals()
    for name, folder in {"cudart": TARGET, "cufile": TARGET, "nccl": LIBRARIES, "cudnn": LIBRARIES}.items():
        (root / folder).mkdir(parents=True, exist_ok=True)
        for file in sorted(found(known[name]).parent.glob("*.so*")):
            target = root / folder / re.sub(r"\.so\..*", f".so.{known[name].version}", file.name)
            target.symlink_to(file)
            (root / folder / file.name).symlink_to(target.name)
    shutil.copytree(fetch.wheel("nvidia-cuda-nvcc", COMPILER) / "nvidia/cu13/bin", root / TOOLKIT / "bin")
    for program in (root / TOOLKIT / "bin").iterdir():
        program.chmod(0o755)
    (root / "usr/local/cuda").symlink_to("cuda-13.0")
    made = Installed(root)
    made.index(TARGET, LIBRARIES)
    return made


@pytest.mark.parametrize(
    "check",
    [
        nccl.test_library_is_the_planned_version, nccl.test_only_one_is_on_the_loader_path,
        nccl.test_library_can_be_opened,
        cudnn.test_library_is_the_planned_version, cudnn.test_only_one_is_on_the_loader_path,
        cudnn.test_every_library_can_be_opened, cudnn.test_library_is_made_for_the_planned_cuda,
        cuda.test_compiler_is_the_planned_release, cuda.test_link_leads_to_the_planned_toolkit,
        cuda.test_runtime_on_the_loader_path_is_the_planned_one,
        gds.test_library_is_the_planned_one,
    ],
    ids=lambda check: f"{check.__module__.rpartition('.')[2]}::{check.__name__}",
)  # fmt: skip
def test_checks_accept_the_originals(installed: Installed, judge: Judge, check: Any) -> None:
    plan = as_plan(PLAN | planned() | {"gds": {"version": "2.27.3", "tools": CUFILE}})
    judged = judge(check, installed.run, plan=plan)
    print(f"\n{check.__name__}: {judged.verdict} {judged.message} {judged.check.observed}")
    assert (judged.verdict, judged.message) == ("PASS", "")


def dynamic(file: Path) -> str:
    return process.run(["readelf", "--wide", "-d", str(file)], timeout=60).stdout


def exported(file: Path) -> set[str]:
    """Functions and data that the library defines, with their versions."""
    shown = process.run(["nm", "-D", "--defined-only", str(file)], timeout=60).stdout
    return {line.split()[-1] for line in shown.splitlines() if line.strip()}


def staged(original: Original, tree: Path) -> Path:
    """The replica of the same package and version."""
    row = find_row("packages", original.package, kind="deb", asked_by="test")
    package = Package(original.package, original.package_version, "deb", "x86_64", row)
    staging.stage(row, package.values, tree)
    return tree


def answer(file: Path, function: str, kind: str) -> int:
    """What a function of a library says."""
    from validator.probes import shared_libraries

    words = ["/usr/bin/python3", "-IS", "-c", shared_libraries.PROGRAM, str(file), function, kind]
    return int(json.loads(process.run(words, timeout=120).stdout)["value"])


@pytest.mark.parametrize("name", ["cudart", "cudnn", "nccl", "cufile"])
def test_replica_has_the_original_s_names(name: str, tmp_path: Path) -> None:
    original = originals()[name]
    (link,) = [path for path in staged(original, tmp_path).rglob(original.file) if path.is_symlink()]
    pattern = r"\(SONAME\).*\[(.+)\]"
    assert re.findall(pattern, dynamic(link)) == re.findall(pattern, dynamic(found(original))) == [original.file]
    assert {symbol for symbol in exported(link) if not symbol.startswith("gpu_ami")} <= exported(found(original))


def test_replica_has_every_library_of_cudnn(tmp_path: Path) -> None:
    original = originals()["cudnn"]
    real = sorted(path.name for path in found(original).parent.glob("*.so.9"))
    assert sorted(path.name for path in staged(original, tmp_path).rglob("*.so.9")) == real


@pytest.mark.parametrize("name", ["cudart", "cudnn", "nccl", "cufile"])
def test_replica_answers_as_the_original(name: str, tmp_path: Path) -> None:
    original = originals()[name]
    (link,) = [path for path in staged(original, tmp_path).rglob(original.file) if path.is_symlink()]
    for function, kind in original.asked:
        real, ours = answer(found(original), function, kind), answer(link, function, kind)
        print(f"\n{function}: {real}, {ours}")
        if function == "cudnnGetCudartVersion":  # the package's name has the major version alone: 13020 of cuDNN 9.20.0
            real, ours = real // 1000, ours // 1000
        assert ours == real


def forms(text: str) -> list[str]:
    """Lines without what differs between builds."""
    return [re.sub(r"\d[\d.]*|replica|[A-Z][a-z]{2}_.*$", "#", line) for line in text.splitlines()]


@pytest.mark.parametrize("words", [("--version",), ("-V",), (), ("a.cu",), ("--no-such-option",)])
def test_replica_of_nvcc_says_what_the_original_says(
    installed: Installed, tmp_path: Path, words: tuple[str, ...]
) -> None:
    row = find_row("packages", "cuda-nvcc-13-0", kind="deb", asked_by="test")
    package = Package("cuda-nvcc-13-0", "13.0.2-1", "deb", "x86_64", row)
    staging.stage(row, package.values, tmp_path)
    results = []
    for program in (installed.root / TOOLKIT / "bin/nvcc", tmp_path / TOOLKIT / "bin/nvcc"):
        done = process.run([str(program), *words], timeout=60, check=False, cwd=tmp_path)
        results.append((done.returncode, forms(done.stdout), forms(done.stderr)))
        print(f"\n{program.name} {words}: {done.returncode}\n{done.stdout}{done.stderr}")
    if words in (("a.cu",), ("--no-such-option",)):  # the replica says that it compiles nothing
        results = [result[:1] for result in results]
    assert results[1] == results[0]
