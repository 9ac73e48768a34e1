"""A version in the text of a variable: a version, a package, a file name or `latest`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpu_ami.recipes.facts import NEWEST, parts

_LATEST = ("latest", "newest", "*", "current")


@dataclass(frozen=True)
class Understood:
    """The recipe's version (None: not understood), what is said of it, and words that were not understood."""

    version: str | None
    remarks: tuple[str, ...] = ()
    others: tuple[str, ...] = ()


def understood(component: str, text: str) -> Understood:
    """What a variable's text says of a component."""
    return _READ.get(component, _plain)(text)


def _latest(text: str) -> Understood:
    return Understood(NEWEST, (f"{text!r} becomes {NEWEST}; the lock will pin it",))


def _driver(text: str) -> Understood:
    """`515.86.01`, `580`, `NVIDIA-Linux-x86_64-515.86.01.run`, `cuda-drivers-fabricmanager-520`, `latest`."""
    exact = re.search(r"(?<![\d.])\d{3}(?:\.\d+){1,2}", text)
    package = re.search(r"(?:^|-)(\d{3})(?:-\w+)?$", text)
    if text in _LATEST:
        return _latest(text)
    if exact:
        return Understood(exact[0])
    if not package:
        return Understood(None, others=(text,))
    if text == package[1]:
        return Understood(text)
    remarks = [f"package {text} becomes branch {package[1]}; the lock will pin a release of it"]
    if "fabricmanager" in text:
        remarks.append("fabric manager comes by itself where an instance type has an NVSwitch")
    return Understood(package[1], tuple(remarks))


def _cuda(text: str) -> Understood:
    """`cuda-toolkit-11-8 nvidia-gds-11-8`: several packages in one string."""
    versions, others = [], []
    for word in text.split():
        toolkit = re.fullmatch(r"cuda(?:-toolkit)?-(\d+)-(\d+)", word) or re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", word)
        if toolkit:
            versions.append(f"{toolkit[1]}.{toolkit[2]}")
        elif re.fullmatch(r"\d{1,2}", word):
            versions.append(word)
        elif word in (*_LATEST, "cuda", "cuda-toolkit"):
            versions.append(NEWEST)
        else:
            others.append(word)
    if not versions:
        return Understood(None, others=tuple(others))
    chosen = max(versions, key=lambda version: (version == NEWEST, parts(version)))
    remarks: tuple[str, ...] = ()
    if len(versions) > 1:
        left = ", ".join(version for version in versions if version != chosen)
        remarks = (f"several toolkits; {chosen} is carried over, {left} is not",)
    return Understood(chosen, remarks, tuple(others))


def _cudnn(text: str) -> Understood:
    """`libcudnn8`, `libcudnn8=8.6.0.163-1+cuda11.8`, `libcudnn9-cuda-12`, `8.6.0`, `9`."""
    full, package = re.search(r"(\d+\.\d+\.\d+)", text), re.match(r"libcudnn(\d+)", text)
    if full:
        return Understood(full[1])
    if package:
        return Understood(
            package[1], (f"package {text} becomes branch {package[1]}; the lock will pin a release of it",)
        )
    return _plain(text)


def _nccl(text: str) -> Understood:
    """A git tag (`v2.12.7-1`) or a package (`libnccl2=2.18.5-1+cuda12.2`)."""
    tag = re.search(r"(?<![\d.])v?(\d+\.\d+\.\d+)", text)
    return Understood(tag[1]) if tag else _plain(text)


def _efa(text: str) -> Understood:
    """A file name: `aws-efa-installer-1.25.1.tar.gz`, `aws-efa-installer-latest.tar.gz`."""
    version = re.search(r"(\d+\.\d+\.\d+)", text)
    if version:
        return Understood(version[1])
    return (
        Understood(NEWEST, (f"'latest' becomes {NEWEST}; the lock will pin it",)) if "latest" in text else _plain(text)
    )


def _mkl(text: str) -> Understood:
    version = re.search(r"(\d{4}\.\d+-\d+)", text)
    if version:
        return Understood(version[1], ("carried over, although no template of the former pipeline installed it",))
    return Understood(None, others=(text,))


def _plain(text: str) -> Understood:
    """`4.4.2`, `v2.5`, `4`, `1.18.1-1`, `latest`."""
    if text in _LATEST:
        return _latest(text)
    version = re.fullmatch(r"v?(\d+(?:\.\d+){0,3})(?:-\d+)?(?:-aws)?\*?", text)
    return Understood(version[1]) if version else Understood(None, others=(text,))


_READ: Mapping[str, Callable[[str], Understood]] = {
    "nvidia_driver": _driver,
    "cuda": _cuda,
    "cudnn": _cudnn,
    "nccl": _nccl,
    "efa": _efa,
    "mkl": _mkl,
}
