"""Files that give a user the rights of another, and keys that let users in: found in one walk over the file system.

On a machine whose image's files were judged, directories in which nothing has changed since are not walked again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from validator.observe import SCAN_SECONDS, output
from validator.probes.since_image import SinceImage

# The checks that read the walk: a directory is left out only if all have passed on the image's files.
CHECKS = tuple(
    f"inventory::{name}"
    for name in (
        "test_setuid_programs_are_known",
        "test_file_capabilities_are_known",
        "test_nothing_is_world_writable",
        "test_authorized_keys_are_in_homes_only",
    )
)
_TO_BE_WRITTEN = ("/dev", "/run", "/tmp", "/var/tmp")
_WALK = (
    r"\( -type f -perm /6000 -printf 's%p\n'"
    r" , \( -type f -perm -0002 -o -type d -perm -0002 ! -perm -1000 \) -printf 'w%p\n'"
    r" , -type f -name 'authorized_keys*' -printf 'k%p\n' \)"
)
_PLAIN = re.compile(r"[\w./+-]+")  # -path takes a pattern


@dataclass(frozen=True)
class Rights:
    """setuid: programs, setgid ones among them; writable: by every user; keys: files authorized_keys.

    kept: directories that were not walked, since they are the image's own still.
    """

    setuid: list[str]
    writable: list[str]
    keys: list[str]
    kept: list[str]


def find(host: Any, since_image: SinceImage | None) -> Rights:
    """What is on the root file system."""
    kept = of_the_image(since_image)
    rows = output(host, f"{_walk(kept)} {_WALK}", timeout=SCAN_SECONDS, is_walk=True).splitlines()
    setuid, writable, keys = ([row[1:] for row in rows if row.startswith(kind)] for kind in "swk")
    open_to_all = tuple(f"{path}/" for path in _TO_BE_WRITTEN)
    writable = [path for path in writable if path not in _TO_BE_WRITTEN and not path.startswith(open_to_all)]
    return Rights(setuid, writable, keys, kept)


def capabilities(host: Any, since_image: SinceImage | None) -> tuple[list[str], list[str]]:
    """The lines of getcap, and the directories whose files it was not asked for, as in `Rights.kept`."""
    kept = of_the_image(since_image)
    folders = "getcap -r /usr /opt /etc /root /home /srv /var/lib"
    command = f"{_walk(kept)} -type f -exec getcap {{}} +" if kept else folders
    shown = host.run(f"PATH=$PATH:/usr/sbin:/sbin; {command} 2>/dev/null", timeout=SCAN_SECONDS).stdout
    return [line for line in shown.splitlines() if line.strip()], kept


def of_the_image(since_image: SinceImage | None) -> list[str]:
    """Directories in which all of these checks have passed on the image's files, and nothing has changed since."""
    if since_image is None or not all(since_image.passed(check) for check in CHECKS):
        return []
    return [path for path in since_image.unchanged(since_image.trees()) if _PLAIN.fullmatch(path)]


def _walk(kept: list[str]) -> str:
    skipped = " -o ".join(f"-path {path}" for path in ("/proc", "/sys", *kept))
    return f"find / -xdev \\( {skipped} \\) -prune -o"
