"""The reading program's own arithmetic: versions of libraries' numbers, links within the root, locks of dnf."""

from __future__ import annotations

import gzip
import lzma
import os
import subprocess
from pathlib import Path

import pytest

from onhost import materials
from onhost import observation as program


@pytest.mark.parametrize(
    ("number", "rule", "version"),
    [(12090, "cuda", "12.9"), (22105, "nccl", "2.21.5"), (2708, "nccl", "2.7.8"), (90100, "cudnn", "9.1.0"),
     (8906, "cudnn", "8.9.6")],
)  # fmt: skip
def test_numbers_of_libraries_are_versions(number: int, rule: str, version: str) -> None:
    assert program.decoded(number, rule) == version


def test_links_are_followed_within_the_root(tmp_path: Path) -> None:
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "out").symlink_to("../../../../../etc/passwd")
    tree = program.Tree(str(tmp_path / "root"))
    assert tree.resolve("/etc/out") == str(tmp_path / "root" / "etc" / "passwd")
    assert tree.text("/etc/out") is None


@pytest.mark.parametrize(
    ("line", "package", "locked"),
    [
        ("nvidia-driver-3:580.178.04-1.*", "nvidia-driver", True),
        ("kmod-nvidia-open-dkms-0:580.178.04-1.amzn2023.*", "kmod-nvidia-open-dkms", True),
        ("nvidia-driver-3:580.178.04-1.*", "nvidia-driver-libs", False),
        ("!nvidia-driver-3:580.178.04-1.*", "nvidia-driver", False),
    ],
)
def test_locks_of_dnf_are_read(line: str, package: str, locked: bool, tmp_path: Path) -> None:
    path = tmp_path / "etc" / "dnf" / "plugins" / "versionlock.list"
    path.parent.mkdir(parents=True)
    path.write_text(f"# added\n{line}\n")
    assert materials.is_locked(package, materials.locks(program.Tree(str(tmp_path)))) is locked


@pytest.mark.parametrize("name", ["nvidia.ko", "nvidia.ko.gz", "nvidia.ko.xz", "nvidia.ko.zst"])
def test_a_module_is_read_up_to_a_limit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sparse file of a TiB, or a few KiB that unpack to GiB."""
    monkeypatch.setattr(program, "MODULE_BYTES", 1 << 20)
    content = b"\x7fELF\0license=NVIDIA\0srcversion=AB\0notversion=9\0version=580.1\0"
    pack = {".ko": bytes, ".gz": gzip.compress, ".xz": lzma.compress, ".zst": _zstd}[Path(name).suffix]
    (tmp_path / name).write_bytes(pack(content))
    assert program.modinfo(str(tmp_path / name)) == {"license": "NVIDIA", "srcversion": "AB", "version": "580.1"}
    os.truncate(tmp_path / name, 1 << 40)
    with pytest.raises(ValueError, match="more than 1 MiB"):
        program.modinfo(str(tmp_path / name))
    (tmp_path / name).write_bytes(pack(content + bytes(1 << 20)))
    with pytest.raises(ValueError, match="more than 1 MiB"):
        program.modinfo(str(tmp_path / name))


def _zstd(content: bytes) -> bytes:
    return subprocess.run(["zstd", "-q"], input=content, stdout=subprocess.PIPE, check=True).stdout
