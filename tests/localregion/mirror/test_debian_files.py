"""Files of Debian's packages: from which package, where they are put, and what is said where one is missing."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.process import Completed
from localregion.mirror import debian_files

VERSION = "1.6~ds1-1"


def make_package(folder: Path, name: str = "tool", version: str = VERSION) -> Path:
    tree = folder / f"{name}-tree"
    for path, text in {"usr/sbin/toold": "daemon", "usr/lib/x/a.so": "a", "usr/lib/x/b.so": "b"}.items():
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        (tree / path).write_text(text)
    (tree / "usr/sbin/toold").chmod(0o755)
    (tree / "usr/lib/x/b.so.1").symlink_to("b.so")
    (tree / "usr/share/doc" / name).mkdir(parents=True)
    (tree / "usr/share/doc" / name / "copyright").write_text("Apache-2.0")
    (tree / "DEBIAN").mkdir()
    control = f"Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: x <x@x>\nDescription: x\n"
    (tree / "DEBIAN/control").write_text(control)
    deb = folder / "downloads" / f"{name}_{version}_amd64.deb"
    deb.parent.mkdir(exist_ok=True)
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, deb], check=True, capture_output=True)
    return deb


def unpack(tmp_path: Path, wanted: dict[str, dict[str, str]]) -> Path:
    tree = tmp_path / "tree"
    tree.mkdir(exist_ok=True)
    debian_files.unpack("replica", wanted, "amd64", tree, tmp_path / "downloads")
    return tree


@pytest.mark.slow
def test_files_are_those_of_the_package(tmp_path: Path) -> None:
    make_package(tmp_path)
    tree = unpack(tmp_path, {"tool": {"usr/sbin/toold": "usr/bin/toold", "usr/lib/*/b.so*": ""}})
    files = sorted(path.relative_to(tree).as_posix() for path in tree.rglob("*") if not path.is_dir())
    assert files == [
        "usr/bin/toold",
        "usr/lib/x/b.so",
        "usr/lib/x/b.so.1",
        "usr/libexec/gpu-ami/replica.debian-packages",
        "usr/share/doc/replica/copyright.tool",
    ]
    assert (tree / "usr/bin/toold").stat().st_mode & 0o111 and (tree / "usr/lib/x/b.so.1").is_symlink()
    record = tree / debian_files.RECORD.format(name="replica")
    assert record.read_text(encoding="utf-8") == f"tool_{VERSION}_amd64\n"


@pytest.mark.slow
def test_a_file_that_the_package_lacks_is_named(tmp_path: Path) -> None:
    make_package(tmp_path)
    with pytest.raises(CloudError, match=r"Debian's package tool_1.6~ds1-1_amd64.deb: no file matches usr/bin/toold"):
        unpack(tmp_path, {"tool": {"usr/bin/toold": ""}})


def test_a_package_is_fetched_once_from_the_base_image_s_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[list[str]] = []

    def run(command: list[Any], **options: Any) -> Completed:
        calls.append([str(word) for word in command])
        if "download" in command:
            (options["cwd"] / "tool_2_arm64.deb").write_bytes(b"deb")
        return Completed(tuple(calls[-1]), 0, "", "", 0.0)

    monkeypatch.setattr(debian_files, "run", run)
    monkeypatch.setattr(debian_files, "find_tool", lambda name, **_: name)
    monkeypatch.setattr(debian_files, "archive_sources", lambda suite: [f"deb http://mirror.example {suite} main"])
    for _ in range(2):
        assert [path.name for path in debian_files.fetch(["tool"], "arm64", tmp_path)] == ["tool_2_arm64.deb"]
    assert [call[-1] for call in calls] == ["update", "tool"]
    assert {"APT::Architecture=arm64", f"Dir::Etc::Trusted={debian_files.KEYS}"} <= set(calls[0])


def test_a_package_that_apt_does_not_fetch_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_files, "run", lambda *_, **__: Completed((), 0, "", "", 0.0))
    monkeypatch.setattr(debian_files, "find_tool", lambda name, **_: name)
    monkeypatch.setattr(debian_files, "archive_sources", lambda suite: [f"deb http://mirror.example {suite} main"])
    with pytest.raises(CloudError, match=r"apt fetched no package other \(amd64\)"):
        debian_files.fetch(["other"], "amd64", tmp_path)
