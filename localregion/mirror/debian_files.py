"""Files of Debian's own packages for replicas of programs that Debian has, too: they run what Debian built.

apt fetches the packages from the archive that base images are made of, and verifies them with Debian's keys; nothing of
this host's own package lists is read or written.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from gpu_ami.errors import CloudError
from gpu_ami.process import find_tool, run
from localregion.debian import BOOKWORM
from localregion.host import archive_sources, proxies

# In the replica: which packages of Debian its programs are from. Their licences are in its folder of usr/share/doc.
RECORD = "usr/libexec/gpu-ami/{name}.debian-packages"
KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SECONDS = 300.0
_ONE_FETCH = threading.Lock()


def unpack(name: str, wanted: Mapping[str, Mapping[str, str]], architecture: str, tree: Path, downloads: Path) -> None:
    """Puts files of Debian's packages into a replica's tree.

    wanted: package → pattern of its paths → place in the replica ("": the same).

    CloudError: a package is not in the archive, or has no file of a pattern.
    """
    record = tree / RECORD.format(name=name)
    record.parent.mkdir(parents=True, exist_ok=True)
    with record.open("a", encoding="utf-8") as text:
        for package, file in zip(wanted, fetch(wanted, architecture, downloads), strict=True):
            text.write(f"{file.name.removesuffix('.deb').replace('%3a', ':')}\n")
            with TemporaryDirectory(dir=downloads) as folder:
                run(
                    [find_tool("dpkg-deb", package="dpkg"), "--extract", file, folder],
                    timeout=_SECONDS,
                    error=CloudError,
                )
                _copy(Path(folder), wanted[package], tree, file.name)
                _copy_licence(Path(folder), package, tree / "usr/share/doc" / name)


def _copy(source: Path, patterns: Mapping[str, str], tree: Path, name: str) -> None:
    for pattern, place in patterns.items():
        paths = sorted(path for path in source.glob(pattern) if path.is_symlink() or path.is_file())
        if not paths:
            raise CloudError(f"Debian's package {name}: no file matches {pattern}")
        for path in paths:
            target = tree / (place or path.relative_to(source))
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)


def _copy_licence(source: Path, package: str, folder: Path) -> None:
    licence = source / "usr/share/doc" / package / "copyright"
    if licence.is_file():  # of some packages it is a link to another's folder
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(licence, folder / f"copyright.{package}")


def fetch(packages: Iterable[str], architecture: str, downloads: Path) -> list[Path]:
    """The packages as files, in order; those that are in `downloads` are not fetched again.

    architecture: Debian's name of it.
    """
    names = list(packages)
    with _ONE_FETCH:
        missing = [name for name in names if not _downloaded(name, architecture, downloads)]
        if missing:
            downloads.mkdir(parents=True, exist_ok=True)
            with TemporaryDirectory(dir=downloads, prefix="apt-") as state:
                _download(missing, architecture, Path(state), downloads)
        os.utime(downloads)
    files = {name: _downloaded(name, architecture, downloads) for name in names}
    absent = [name for name, found in files.items() if not found]
    if absent:
        raise CloudError(f"apt fetched no package {', '.join(absent)} ({architecture})")
    return [found[-1] for found in files.values()]


def _downloaded(name: str, architecture: str, downloads: Path) -> list[Path]:
    return sorted(downloads.glob(f"{name}_*_{architecture}.deb"))


def _download(packages: Sequence[str], architecture: str, state: Path, downloads: Path) -> None:
    prepare(state, archive_sources(BOOKWORM.suite))
    for words in (["update"], ["download", *packages]):
        apt(words, state, architecture, downloads)


def prepare(state: Path, sources: Sequence[str]) -> None:
    """Makes a state folder for `apt`. sources: lines of sources.list."""
    (state / "lists/partial").mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    (state / "sources.list").write_text("\n".join([*sources, ""]), encoding="utf-8")


def apt(words: Sequence[str], state: Path, architecture: str, folder: Path) -> None:
    """Runs apt-get with a state folder of its own in `folder`. CloudError, with what apt printed."""
    settings = {
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",
        "Acquire::GzipIndexes": "false",
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Dir::Etc::SourceList": state / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::Etc::Trusted": KEYS,
        "Dir::State::Lists": state / "lists",
        "Dir::State::Status": state / "status",
        "Dir::Cache": state / "cache",
    }
    options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
    apt_get = find_tool("apt-get", package="apt")
    run([apt_get, "-q", *options, *words], timeout=_SECONDS, cwd=folder, env=proxies(), error=CloudError)
