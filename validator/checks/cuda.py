"""The planned CUDA toolkit is installed, and the loaded driver supports it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.observe import Observe
from validator.plan_document import Cuda, PlanDocument, section
from validator.probes import MachineUnderTest, base_driver, in_login_shell, packages, shared_libraries

pytestmark = [pytest.mark.planned("cuda"), pytest.mark.beside_live]

_LOGIN = in_login_shell('command -v nvcc; printf %s "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"')


def release(text: str) -> str:
    """The release in the output of `nvcc --version`; "" if there is none."""
    match = re.search(r"^Cuda compilation tools, release (\d+\.\d+), V", text, re.MULTILINE)
    return match[1] if match else ""


def version(code: int) -> tuple[int, int]:
    """Major and minor version of a CUDA version number: 12040 is 12.4."""
    return code // 1000, code % 1000 // 10


def _planned(plan: PlanDocument) -> tuple[int, int]:
    major, minor = str(section(plan, "cuda", Cuda)["version"]).split(".")[:2]
    return int(major), int(minor)


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def _runtime(host: Any, plan: PlanDocument, observe: Observe) -> tuple[tuple[int, int], str]:
    # From 12 on the soname has the major version; before, the major version and the first minor version of its ABI.
    major = _planned(plan)[0]
    soname = f"libcudart.so.{major}" if major >= 12 else f"libcudart.so.{major}.0"
    library = shared_libraries.call(host, observe, soname, "cudaRuntimeGetVersion", "int*")
    return version(int(library.value)), library.file


def _login(host: Any) -> tuple[str, str]:
    """Path of nvcc, "" if there is none, and LD_LIBRARY_PATH of a login shell."""
    first, _, last = host.run(_LOGIN).stdout.rpartition("LD_LIBRARY_PATH=")
    return first.strip().splitlines()[-1] if first.strip() else "", last


def _driver(host: Any, observe: Observe) -> tuple[tuple[int, int], str]:
    library = shared_libraries.call(host, observe, "libcuda.so.1", "cuDriverGetVersion", "int*")
    return version(int(library.value)), library.file


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_compiler_is_the_planned_release(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """nvcc in /usr/local/cuda is the planned release. Another one compiles for another runtime."""
    done = host.run("/usr/local/cuda/bin/nvcc --version")
    if done.rc != 0:
        observe.fail(
            f"/usr/local/cuda/bin/nvcc --version exited with status {done.rc}: {(done.stderr or done.stdout).strip()}"
        )
    observe.same(release(done.stdout), _dotted(_planned(plan)), "nvcc --version (/usr/local/cuda/bin)")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_link_leads_to_the_planned_toolkit(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """/usr/local/cuda points to the planned toolkit, although others may be installed."""
    target = host.run("readlink -f /usr/local/cuda").stdout.strip()
    observe.same(target, f"/usr/local/cuda-{_dotted(_planned(plan))}", "/usr/local/cuda")


@pytest.mark.needs("promise")
def test_runtime_on_the_loader_path_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The CUDA runtime on the loader path reports the planned version, without LD_LIBRARY_PATH."""
    runtime, file = _runtime(host, plan, observe)
    observe.same(_dotted(runtime), _dotted(_planned(plan)), f"cudaRuntimeGetVersion of {file}")


@pytest.mark.needs("promise")
def test_login_shells_find_the_toolkit(host: Any, observe: Observe) -> None:
    """A login shell has the toolkit in PATH."""
    compiler, _ = _login(host)
    observe(compiler, "/usr/local/cuda/bin/nvcc")
    if compiler != "/usr/local/cuda/bin/nvcc":
        observe.fail(f"nvcc of a login shell: expected /usr/local/cuda/bin/nvcc, got {compiler or 'none'}")


def test_login_shells_find_the_driver_s_libcuda(host: Any, observe: Observe) -> None:
    """A login shell has no stub or compat libraries in LD_LIBRARY_PATH. Their libcuda would replace the driver's."""
    _, last = _login(host)
    observe(last, "neither compat nor stubs")
    shadowing = [name for name in last.split(":") if re.search(r"/(compat|stubs)/?$", name)]
    if shadowing:
        observe.fail(f"LD_LIBRARY_PATH of a login shell: {', '.join(shadowing)} precedes the driver's libcuda")


@pytest.mark.needs("observed")
def test_driver_runs_this_runtime(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The driver's libcuda supports this runtime, natively or by minor version compatibility as planned."""
    mode = section(plan, "cuda", Cuda)["compatibility"]
    runtime, _ = _runtime(host, plan, observe)
    driver, file = _driver(host, observe)
    observe({"runtime": _dotted(runtime), "libcuda": _dotted(driver), "mode": mode}, f"runtime ≤ libcuda ({mode})")
    is_supported = driver[0] >= runtime[0] if mode == "minor" else driver >= runtime
    if not is_supported:
        observe.fail(
            f"{file} supports CUDA {_dotted(driver)}, the runtime is {_dotted(runtime)}: "
            f"not supported with {mode} compatibility as planned"
        )


@pytest.mark.needs("promise")
def test_libcuda_is_the_planned_one(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """libcuda is the driver's, unless forward compatibility is planned. With a newer one no CUDA program runs."""
    _, file = _driver(host, observe)
    libcuda_version = re.sub(r"^libcuda\.so\.", "", file.rpartition("/")[2])
    cuda = section(plan, "cuda", Cuda)
    if cuda.get("compatibility") == "forward":
        compat = [full for name, full in cuda["packages"].items() if name.startswith("cuda-compat")]
        expected = re.sub(r"^\d+:|-[^-]*$", "", compat[0]) if compat else "of a planned cuda-compat package"
    else:
        expected = base_driver.version(plan, machine)
    observe.same(libcuda_version, expected, f"libcuda on the loader path ({file})")


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_no_unplanned_compat_library(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """No unplanned cuda-compat package is installed. Its libcuda could replace the driver's."""
    if plan["os"]["family"] == "debian":
        shown = host.run("dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n' 'cuda-compat-*'").stdout
        rows = [line.split() for line in shown.splitlines() if line.endswith(" installed")]
    else:
        shown = host.run("rpm -qa --qf '%{NAME} %{VERSION}\\n' 'cuda-compat-*'").stdout
        rows = [line.split() for line in shown.splitlines()]
    if not rows:  # none, or nothing can be read
        packages.require_readable(host, plan["os"]["family"])
    planned = section(plan, "cuda", Cuda).get("packages", {})
    observe.nothing([f"{row[0]} {row[1]}" for row in rows if row[0] not in planned], "unplanned compat packages")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed packages of the toolkit have exactly the planned versions."""
    packages.check_installed(host, plan, "cuda", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The packages of the toolkit are held, so a system upgrade does not change them."""
    packages.check_held(host, plan, "cuda", observe)
