"""What a machine still has of its image, byte for byte: for checks that were made of the image's files already.

A file whose inode has not changed since the image was made has the content that was judged there: writing, replacing,
renaming or linking a file, its mode and its attributes all set the inode's time (ctime) to the clock's.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validator import remote
from validator.evidence import INODES_FILE
from validator.observe import SCAN_SECONDS, Observe
from validator.probes.machine import MachineUnderTest
from validator.results import CheckRecord, HostResults, InvalidRecord, Verdict

APT, DPKG = "/etc/apt", "/var/lib/dpkg"
_LINKS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")  # into /usr, where it is merged


@dataclass(frozen=True)
class ImageFiles:
    """What the image's files were judged as. passed: checks that passed, by id; newest: last change of an inode."""

    passed: Mapping[str, CheckRecord]
    newest: float
    inodes: Mapping[str, int]


def load(folder: Path) -> ImageFiles | None:
    """What a pass over the image's files has left in its folder; None where that is incomplete."""
    try:
        records = HostResults.load(folder / "checks.json").checks
        document = json.loads((folder / INODES_FILE).read_text(encoding="utf-8"))
        inodes = {str(path): int(inode) for path, inode in document["inodes"].items()}
        newest = float(document["newest"])
    except (OSError, ValueError, LookupError, TypeError, AttributeError, InvalidRecord):
        return None
    return ImageFiles({record.id: record for record in records if record.verdict == Verdict.PASS}, newest, inodes)


class SinceImage:
    """A machine that was launched from an image whose files were judged."""

    def __init__(self, image: ImageFiles, machine: MachineUnderTest) -> None:
        self._image, self.machine = image, machine
        self._same: frozenset[str] | None = None

    def passed(self, check: str) -> CheckRecord | None:
        """The record of the image's files, if this check passed there."""
        return self._image.passed.get(check)

    def unchanged(self, paths: Collection[str]) -> list[str]:
        """Those of the paths below which nothing has changed since the image, neither file nor directory."""
        if self._same is None:
            self._same = frozenset(self._ask())
        return [path for path in paths if path in self._same]

    def trees(self) -> list[str]:
        """Directories that hold most files of packages: /usr, /boot and those of /opt, with the links into /usr."""
        return [path for path in self._image.inodes if path in ("/usr", "/boot", *_LINKS) or _is_below(path, "/opt")]

    def _ask(self) -> Iterable[str]:
        """Every named path that is the image's own still; none where the machine's clock was behind the image."""
        named = [*self.trees(), "/etc/dkms", "/var/lib/dkms", APT, DPKG]
        since = int(self._image.newest) + 1
        started = min(self.machine.boot_time, self.machine.first_boot_time)
        command = remote.with_arguments("changed_since", str(since), *named)
        shown = self.machine.host.run(f"(\n{command})", pure=True, timeout=SCAN_SECONDS)
        parts = shown.stdout.split("//\n")
        if started <= since or shown.rc != 0 or len(parts) != 5 or parts[4] != "end\n":
            return
        inodes = {path: int(inode) for inode, _, path in (row.partition(" ") for row in parts[1].splitlines())}
        changed = [*parts[3].splitlines(), *(point for point in parts[2].splitlines() if point != "/")]
        for path in named:
            same = path in inodes and inodes[path] == self._image.inodes.get(path)
            if same and not any(row == path or row.startswith(f"{path}/") for row in changed):
                yield path


def _is_below(path: str, folder: str) -> bool:
    return path.rpartition("/")[0] == folder


def verify_partly(trees: Iterable[str]) -> str:
    """`dpkg --verify` of all files but those below the trees, paths of `SinceImage.trees` that are unchanged."""
    kept = list(trees)
    names = [path[1:] for path in kept if path not in _LINKS or "/usr" in kept]
    escaped = ("".join(f"[{letter}]" if letter in ".+*?^$(){}|" else letter for letter in name) for name in names)
    return f"(\n{remote.with_arguments('verify_partly', f'({chr(124).join(escaped)})/')})"


def still_holds(since_image: SinceImage | None, check: str, inputs: Collection[str], observe: Observe) -> bool:
    """Whether a check need not ask again: it passed on the image's files, and none of its inputs has changed since.

    inputs: paths from which its answer follows; none: unknown. Its record is then observed again.
    """
    judged = since_image.passed(check) if since_image else None
    if since_image is None or judged is None or not inputs or since_image.unchanged(inputs) != list(inputs):
        return False
    observe(unchanged_since_image(inputs, judged.observed), judged.planned)
    return True


def unchanged_since_image(paths: Iterable[str], what: Any) -> dict[str, object]:
    """What a check has observed, for the report: `what`, and which paths are the image's own."""
    return {"observed": what, "unchanged since the image, as judged in its files": sorted(paths)}
