"""Bare git repositories of replicas: one commit for each tag, served over plain HTTP (which does not support --depth).

The objects are written here, byte for byte as git would (gitformat: blob, tree, commit), so a tag's commit is known
without a repository. A plan of the local region names this commit instead of the vendor's.
"""

from __future__ import annotations

import hashlib
import tempfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from localregion.mirror import staging
from localregion.mirror.table import SOURCE_DATE_EPOCH, Row, find_row, version_values

_AUTHOR = f"gpu-ami <gpu-ami@localhost> {SOURCE_DATE_EPOCH} +0000"


class _Objects:
    """Objects by their hash (40 hex digits), as git stores them: header, NUL, content."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}

    def add(self, kind: str, content: bytes) -> str:
        whole = f"{kind} {len(content)}\0".encode() + content
        name = hashlib.sha1(whole, usedforsecurity=False).hexdigest()
        self.stored[name] = whole
        return name

    def add_folder(self, folder: Path) -> str:
        """The tree object of a folder."""
        entries = []
        for path in folder.iterdir():
            if path.is_symlink():
                mode, name = "120000", self.add("blob", str(path.readlink()).encode())
            elif path.is_dir():
                mode, name = "40000", self.add_folder(path)
            else:
                executable = path.stat().st_mode & 0o111
                mode, name = "100755" if executable else "100644", self.add("blob", path.read_bytes())
            # git sorts a folder as if its name ended with a slash.
            entries.append((path.name + "/" * (mode == "40000"), f"{mode} {path.name}".encode(), bytes.fromhex(name)))
        return self.add("tree", b"".join(head + b"\0" + name for _, head, name in sorted(entries)))

    def add_commit(self, tree: str, message: str) -> str:
        text = f"tree {tree}\nauthor {_AUTHOR}\ncommitter {_AUTHOR}\n\n{message}\n"
        return self.add("commit", text.encode())


def commit(url: str, tag: str) -> str | None:
    """The commit that the mirror's repository has for that tag; None where the vendor's address has no replica."""
    name = name_of(url)
    row = next((row for row in _rows() if row.match(name)), None)
    return None if row is None else _add_tag(_Objects(), row, name, tag)


def _rows() -> Iterator[Row]:
    from localregion.mirror import table

    return (row for row in table.load_rows(table.REPLICAS) if row.sort == "git")


def name_of(path: str) -> str:
    """github.com/NVIDIA/gdrcopy.git → gdrcopy."""
    return path.rstrip("/").rpartition("/")[2].removesuffix(".git")


def _add_tag(objects: _Objects, row: Row, name: str, tag: str) -> str:
    version = tag.removeprefix("v")
    values = version_values(version) | {"full_version": version, "name": name, "tag": tag}
    with tempfile.TemporaryDirectory(prefix="gpu-ami-git-") as folder:
        staging.stage(row, values, Path(folder))
        tree = objects.add_folder(Path(folder))
    return objects.add_commit(tree, f"{name} {tag} (gpu-ami replica)")


def write_repository(folder: Path, tags: Iterable[str], asked_by: str) -> dict[str, str]:
    """A bare repository with those tags, ready for `git clone http://…`; tag → commit."""
    name = name_of(folder.as_posix())
    row = find_row("git", name, asked_by=asked_by)
    objects = _Objects()
    commits = {tag: _add_tag(objects, row, name, tag) for tag in sorted(tags)}
    for digest, whole in objects.stored.items():
        path = folder / "objects" / digest[:2] / digest[2:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(zlib.compress(whole))
    newest = list(commits.values())[-1]
    refs = {"refs/heads/main": newest} | {f"refs/tags/{tag}": digest for tag, digest in commits.items()}
    for ref, digest in refs.items():
        path = folder / ref
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{digest}\n", encoding="ascii")
    (folder / "info").mkdir()
    lines = "".join(f"{digest}\t{ref}\n" for ref, digest in refs.items())
    (folder / "info" / "refs").write_text(lines, encoding="ascii")
    (folder / "objects" / "info").mkdir()
    (folder / "objects" / "info" / "packs").write_text("\n", encoding="ascii")
    (folder / "HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")
    (folder / "config").write_text("[core]\n\trepositoryformatversion = 0\n\tbare = true\n", encoding="ascii")
    return commits
