"""Writes a replica's content to a folder: trees, files, links and libraries of its row."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, cast

from gpu_ami.errors import CloudError
from gpu_ami.process import run
from gpu_ami.recipes import ARCHITECTURES as PLAN_ARCHITECTURES
from localregion.architectures import ARCHITECTURES, DEFAULT, Architecture
from localregion.mirror import debian_files
from localregion.mirror.table import SOURCE_DATE_EPOCH, Library, Needed, Package, Row, fill, substitute

# Independent of the build machine: no libc, no start files, no build id.
_LIBRARY = (
    "-shared", "-fPIC", "-O2", "-s", "-nostdlib", "-ffreestanding", "-fno-builtin", "-fno-stack-protector",
    "-Wall", "-Werror", "-Wl,--build-id=none", "-Wl,--hash-style=both",
)  # fmt: skip
_PROGRAM = (
    "-static", "-no-pie", "-fno-pie", "-O2", "-s", "-nostdlib", "-ffreestanding", "-fno-builtin",
    "-fno-stack-protector", "-Wall", "-Werror", "-Wl,--build-id=none",
)  # fmt: skip
Relation = Literal["depends", "provides", "conflicts"]
# Of a program that packs or indexes packages. One that works needs less: a busy machine packs 200 MB in minutes.
PACKING_SECONDS = 900.0
_IGNORED = shutil.ignore_patterns("__pycache__", "*.pyc", ".ruff_cache", ".mypy_cache")


def stage(
    row: Row, values: Mapping[str, str], tree: Path, architecture: str = DEFAULT, downloads: Path | None = None
) -> None:
    """Writes a row's content into the empty folder `tree`, with uniform modes and times.

    architecture: of libraries and of Debian's packages; downloads: where those are kept, of which some rows have files.
    """
    if "debian" in row.entry:
        if downloads is None:
            raise CloudError(f"replica {row.entry['name']} ({row.folder.name}): no folder for Debian's packages")
        debian = PLAN_ARCHITECTURES[architecture].deb
        debian_files.unpack(values["name"], row.entry["debian"], debian, tree, downloads)
    for source, target in row.entry.get("trees", {}).items():
        destination = tree / fill(target, values)
        shutil.copytree(row.folder / source, destination, ignore=_IGNORED, dirs_exist_ok=True)
    for name in row.entry.get("directories", ()):
        (tree / fill(name, values)).mkdir(parents=True, exist_ok=True)
    for name, target in row.entry.get("links", {}).items():
        _inside(tree, fill(name, values)).symlink_to(fill(target, values))
    for name, content in row.entry.get("files", {}).items():
        path = _inside(tree, fill(name, values))
        path.write_text(fill(content, values), encoding="utf-8")
        if content.startswith("#!"):
            path.chmod(0o755)
    for name in row.entry.get("templates", ()):
        for path in _matching(tree, fill(name, values), row):
            path.write_text(substitute(path.read_text(encoding="utf-8"), values), encoding="utf-8")
    for name, library in row.entry.get("libraries", {}).items():
        if _numbers(values["version"]) < _numbers(library.get("since", "0")):
            continue
        _compile(row, library, values, _inside(tree, fill(name, values)), ARCHITECTURES[architecture])
    for name, source in row.entry.get("programs", {}).items():
        _compile_program(row.folder / source, values, _inside(tree, fill(name, values)), ARCHITECTURES[architecture])
    for name in row.entry.get("setuid", ()):
        (tree / fill(name, values)).chmod(0o4755)
    normalise(tree)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _inside(tree: Path, name: str) -> Path:
    path = tree / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _matching(tree: Path, pattern: str, row: Row) -> list[Path]:
    paths = [path for path in sorted(tree.glob(pattern)) if path.is_file()]
    if not paths:
        raise CloudError(f"replica {row.entry['name']} ({row.folder.name}): no file matches {pattern}")
    return paths


def _compile(
    row: Row, library: Library | Needed, values: Mapping[str, str], path: Path, architecture: Architecture
) -> None:
    """Compiles a shared object; each value is a string macro of the source (VERSION, MAJOR, …).

    What it needs is compiled beside it for the linker alone, so that its versioned symbols are those of the real one.
    """
    command = [architecture.gcc(), *_LIBRARY, *architecture.options, f"-Wl,-soname,{fill(library['soname'], values)}"]
    source = row.folder / library["source"]
    if "exports" in library:
        command.append(f"-Wl,--version-script={row.folder / fill(library['exports'], values)}")
    with TemporaryDirectory() as folder:
        needed = cast("Needed | None", library.get("needs"))
        linked = [Path(folder) / needed["soname"]] if needed else []
        if needed:
            _compile(row, needed, values, linked[0], architecture)
        run(
            [*command, *_macros(values), "-o", path.absolute(), source.name, *linked],
            cwd=source.parent,
            timeout=600,
            error=CloudError,
        )
    path.chmod(0o755)


def _compile_program(source: Path, values: Mapping[str, str], path: Path, architecture: Architecture) -> None:
    """Compiles a program that needs no libc: it runs on every system of its architecture."""
    command = [architecture.gcc(), *_PROGRAM, *architecture.options, *_macros(values)]
    run([*command, "-o", path.absolute(), source.name], cwd=source.parent, timeout=600, error=CloudError)
    path.chmod(0o755)


def _macros(values: Mapping[str, str]) -> list[str]:
    return [f'-D{key.upper()}="{value}"' for key, value in sorted(values.items())]


def normalise(tree: Path) -> None:
    """Modes 755, 4755 and 644 and one time for everything."""
    for path in sorted(tree.rglob("*")):
        if not path.is_symlink():
            mode = path.stat().st_mode
            path.chmod(0o755 | mode & 0o4000 if path.is_dir() or mode & 0o111 else 0o644)
        os.utime(path, (SOURCE_DATE_EPOCH, SOURCE_DATE_EPOCH), follow_symlinks=False)
    tree.chmod(0o755)


def scripts(package: Package) -> dict[str, str]:
    """preinst, postinst, prerm, postrm: their text, filled in."""
    folder = package.row.entry.get("scripts")
    if not folder:
        return {}
    texts = {path.name: path.read_text(encoding="utf-8") for path in sorted((package.row.folder / folder).iterdir())}
    return {name: substitute(text, package.values) for name, text in texts.items()}


def relations(package: Package, key: Relation) -> list[str]:
    """depends, provides or conflicts, for the package's kind, filled in."""
    return [package.fill(item) for item in package.row.entry.get(key, {}).get(package.kind, ())]


def description(package: Package) -> tuple[str, list[str]]:
    """Summary, and the lines that name the real package."""
    entry = package.row.entry
    summary = f"{package.fill(entry['summary'])} (gpu-ami replica)"
    real = f"Stands in for the package of this name: {package.row.documentation}"
    return summary, [f"{package.fill(entry['does'])}.", real]


def sources_digest(row: Row) -> str:
    """Of everything that a row's content comes from."""
    sha = hashlib.sha256(json.dumps(row.entry, sort_keys=True).encode() + row.documentation.encode())
    for folder in _sources(row):
        for path in sorted(folder.rglob("*")):
            if path.is_file() and not {"__pycache__", ".ruff_cache", ".mypy_cache"} & set(path.parts):
                sha.update(f"{path.relative_to(row.folder)}\0{path.stat().st_mode & 0o111:o}\0".encode())
                sha.update(path.read_bytes())
    return sha.hexdigest()


def _sources(row: Row) -> Iterator[Path]:
    entry = row.entry
    yield from (row.folder / source for source in entry.get("trees", {}))
    if entry.get("scripts"):
        yield row.folder / entry["scripts"]
    if entry.get("header"):
        yield (row.folder / entry["header"]).parent
    compiled = [library["source"] for library in entry.get("libraries", {}).values()]
    compiled += entry.get("programs", {}).values()
    yield from sorted({folder for source in compiled for folder in compiled_folders(row.folder / source)})


def compiled_folders(source: Path) -> set[Path]:
    """A source may include files of its folder, and of those beside it."""
    included = re.findall(r'^#include "\.\./(\w+)/', source.read_text(encoding="utf-8"), re.MULTILINE)
    return {source.parent, *(source.parent.parent / name for name in included)}
