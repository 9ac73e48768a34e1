"""Programs get the planned CUDA toolkit, and the driver runs it: no other libcuda comes before its own."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator import loader, packages
from validator.environment import in_login_shell
from validator.observe import Observe

pytestmark = pytest.mark.planned("cuda")

_LOGIN = in_login_shell('command -v nvcc; printf %s "LD_LIBRARY_PATH=$LD_LIBRARY_PATH"')


def release(text: str) -> str:
    """The release in nvcc's own words; "" where it names none."""
    found = re.search(r"^Cuda compilation tools, release (\d+\.\d+), V", text, re.MULTILINE)
    return found[1] if found else ""


def version(code: int) -> tuple[int, int]:
    """Major and minor version of a code of CUDA's: 12040 is 12.4."""
    return code // 1000, code % 1000 // 10


def _planned(plan: Any) -> tuple[int, int]:
    major, minor = str(plan["cuda"]["version"]).split(".")[:2]
    return int(major), int(minor)


def _dotted(pair: tuple[int, int]) -> str:
    return f"{pair[0]}.{pair[1]}"


def _runtime(host: Any, plan: Any, observe: Observe) -> tuple[tuple[int, int], str]:
    # The soname is the major version from 12 on; before, it is the major and the first minor version of its ABI.
    major = _planned(plan)[0]
    soname = f"libcudart.so.{major}" if major >= 12 else f"libcudart.so.{major}.0"
    found = loader.ask(host, observe, soname, "cudaRuntimeGetVersion", "int*")
    return version(int(found.value)), found.file


def _driver(host: Any, observe: Observe) -> tuple[tuple[int, int], str]:
    found = loader.ask(host, observe, "libcuda.so.1", "cuDriverGetVersion", "int*")
    return version(int(found.value)), found.file


@pytest.mark.tier("T0")
def test_compiler_is_the_planned_release(host: Any, plan: Any, observe: Observe) -> None:
    """nvcc behind /usr/local/cuda is of the planned release: with another one, every build is for another runtime."""
    done = host.run("/usr/local/cuda/bin/nvcc --version")
    if done.rc != 0:
        observe.fail(f"/usr/local/cuda/bin/nvcc --version ended with {done.rc}: {(done.stderr or done.stdout).strip()}")
    observe.same(release(done.stdout), _dotted(_planned(plan)), "nvcc --version (/usr/local/cuda/bin)")


@pytest.mark.tier("T0")
def test_link_leads_to_the_planned_toolkit(host: Any, plan: Any, observe: Observe) -> None:
    """/usr/local/cuda is the planned toolkit, whatever others stand beside it."""
    found = host.run("readlink -f /usr/local/cuda").stdout.strip()
    observe.same(found, f"/usr/local/cuda-{_dotted(_planned(plan))}", "/usr/local/cuda")


def test_runtime_on_the_loader_path_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """A program finds the planned CUDA runtime without help, and it is the library itself that says so."""
    found, file = _runtime(host, plan, observe)
    observe.same(_dotted(found), _dotted(_planned(plan)), f"cudaRuntimeGetVersion of {file}")


def test_login_shells_find_the_toolkit(host: Any, observe: Observe) -> None:
    """A login shell has the toolkit on its PATH, and nothing before the driver's libraries on its LD_LIBRARY_PATH."""
    first, _, last = host.run(_LOGIN).stdout.rpartition("LD_LIBRARY_PATH=")
    compiler = first.strip().splitlines()[-1] if first.strip() else ""
    observe([compiler, last], ["/usr/local/cuda/bin/nvcc", ""])
    if compiler != "/usr/local/cuda/bin/nvcc":
        observe.fail(f"a login shell's nvcc: found {compiler or 'none'}, expected /usr/local/cuda/bin/nvcc")
    # Stubs and compat hold a libcuda of their own: it would be taken instead of the driver's.
    wrong = [name for name in last.split(":") if re.search(r"/(compat|stubs)/?$", name)]
    if wrong:
        observe.fail(f"a login shell's LD_LIBRARY_PATH puts {', '.join(wrong)} before the driver's libcuda")


def test_driver_runs_this_runtime(host: Any, plan: Any, observe: Observe) -> None:
    """The driver's libcuda supports this runtime as planned: natively, or by a version of the same major."""
    mode = plan["cuda"]["compatibility"]
    runtime, _ = _runtime(host, plan, observe)
    driver, file = _driver(host, observe)
    observe({"runtime": _dotted(runtime), "libcuda": _dotted(driver), "mode": mode}, f"runtime ≤ libcuda ({mode})")
    enough = driver[0] >= runtime[0] if mode == "minor" else driver >= runtime
    if not enough:
        observe.fail(
            f"{file} supports CUDA {_dotted(driver)}, the runtime is {_dotted(runtime)}: "
            f"it does not run, by {mode} compatibility as planned"
        )


def test_libcuda_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """libcuda is the driver's own, unless forward compatibility is planned: a newer one stops every CUDA program."""
    _, file = _driver(host, observe)
    found = re.sub(r"^libcuda\.so\.", "", file.rpartition("/")[2])
    cuda = plan["cuda"].plain()
    if cuda.get("compatibility") == "forward":
        compat = [full for name, full in cuda["packages"].items() if name.startswith("cuda-compat")]
        wanted = re.sub(r"^\d+:|-[^-]*$", "", compat[0]) if compat else "of a planned cuda-compat package"
    else:
        wanted = plan["nvidia_driver"]["version"]
    observe.same(found, wanted, f"libcuda that programs get ({file})")


@pytest.mark.tier("T0")
def test_no_unplanned_compat_library(host: Any, plan: Any, observe: Observe) -> None:
    """No cuda-compat package is there that the plan does not name: it waits to come before the driver's libcuda."""
    if plan["os"]["family"] == "debian":
        shown = host.run("dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n' 'cuda-compat-*'").stdout
        rows = [line.split() for line in shown.splitlines() if line.endswith(" installed")]
    else:
        shown = host.run("rpm -qa --qf '%{NAME} %{VERSION}\\n' 'cuda-compat-*'").stdout
        rows = [line.split() for line in shown.splitlines()]
    wanted = plan["cuda"].plain().get("packages", {})
    observe.nothing([f"{row[0]} {row[1]}" for row in rows if row[0] not in wanted], "unplanned compat packages")


@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: Any, observe: Observe) -> None:
    """The toolkit's packages have exactly the planned versions."""
    packages.check_installed(host, plan, "cuda", observe)


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: Any, observe: Observe) -> None:
    """An upgrade of the system does not move the toolkit."""
    packages.check_held(host, plan, "cuda", observe)
