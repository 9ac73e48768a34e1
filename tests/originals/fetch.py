"""Vendors' own programs and libraries: NVIDIA's wheels, Go modules of NVIDIA and AWS. Kept by version."""

from __future__ import annotations

import functools
import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.files import home_dir, locked
from gpu_ami.process import run
from localregion.kubernetes import programs

_MODULE = "github.com/NVIDIA/nvidia-container-toolkit"
_METADATA_MOCK = "github.com/aws/amazon-ec2-metadata-mock/cmd/ec2-metadata-mock"
PROGRAMS = ("nvidia-ctk", "nvidia-container-runtime", "nvidia-cdi-hook", "nvidia-container-runtime-hook")
_PLATFORMS = ("manylinux_2_27_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_18_x86_64")
_SECONDS = 1200.0


def wheel(name: str, version: str) -> Path:
    """The folder of an unpacked wheel. Skips the test where the index of Python packages does not serve it."""

    def fill(folder: Path, work: Path) -> None:
        words = [sys.executable, "-Pm", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        words += [option for platform in _PLATFORMS for option in ("--platform", platform)]
        run([*words, "--dest", str(work), f"{name}=={version}"], timeout=_SECONDS, error=CloudError)
        (file,) = work.glob("*.whl")
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)

    return _kept(f"{name}-{version}", fill)


def toolkit(version: str) -> Path:
    """The folder of NVIDIA's own nvidia-ctk and its sisters, built from the Go module as NVIDIA's Makefile does.

    Skips the test where the Go module proxy does not serve the module.
    """

    def fill(folder: Path, work: Path) -> None:
        go = programs.go_toolchain(root() / "go")
        environment = programs.go_environment(go, root() / "go") | {"CGO_ENABLED": "1", "PATH": os.environ["PATH"]}
        module = work / "module"
        module.mkdir()
        (module / "go.mod").write_text("module originals\n", encoding="utf-8")
        run(
            [str(go), "get", *(f"{_MODULE}/cmd/{name}@v{version}" for name in PROGRAMS)],
            timeout=_SECONDS,
            cwd=module,
            env=environment,
            error=CloudError,
        )
        named = {"version": version, "gitCommit": "original"}
        flags = " ".join(f"-X {_MODULE}/internal/info.{name}={value}" for name, value in named.items())
        # go-nvml's symbols are those of libnvidia-ml, which is opened at run time.
        flags = f"-s -w {flags} '-extldflags=-Wl,-z,lazy'"
        for name in PROGRAMS:
            words = [
                str(go),
                "build",
                "-trimpath",
                "-ldflags",
                flags,
                "-o",
                str(folder / name),
                f"{_MODULE}/cmd/{name}",
            ]
            run(words, timeout=_SECONDS, cwd=module, env=environment, error=CloudError)

    return _kept(f"nvidia-container-toolkit-{version}", fill)


def metadata_mock(version: str) -> Path:
    """amazon-ec2-metadata-mock, built from its Go module. Skips the test where the proxy does not serve it."""

    def fill(folder: Path, work: Path) -> None:
        go = programs.go_toolchain(root() / "go")
        environment = programs.go_environment(go, root() / "go") | {"GOBIN": str(folder)}
        words = [str(go), "install", "-trimpath", "-ldflags", "-s -w", f"{_METADATA_MOCK}@v{version}"]
        run(words, timeout=_SECONDS, cwd=work, env=environment, error=CloudError)

    return _kept(f"amazon-ec2-metadata-mock-{version}", fill) / "ec2-metadata-mock"


@functools.cache
def root() -> Path:
    """Where they are kept. First asked before a test has a home of its own (fixture kept_originals)."""
    folder = home_dir() / "originals"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _kept(name: str, fill: object) -> Path:
    place = root() / name
    with locked(root() / f".{name}.lock"):
        if not place.is_dir():
            with tempfile.TemporaryDirectory(dir=root(), prefix=f".{name}-") as temporary:
                fresh, work = Path(temporary) / "folder", Path(temporary) / "work"
                fresh.mkdir()
                work.mkdir()
                try:
                    fill(fresh, work)  # type: ignore[operator]
                except CloudError as error:
                    pytest.skip(f"{name} cannot be had: {error}")
                shutil.move(fresh, place)
    return place
