"""Kernel modules on disk: the version that each installed kernel loads at the next boot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from validator.observe import Observe, output

MISSING = "missing"
# Every bootable kernel has an index of its modules; `modinfo -k` reads the file that `modprobe` would load.
_LISTED = (
    'for k in $(ls -1 /lib/modules); do [ -e "/lib/modules/$k/modules.dep" ] || continue;'
    ' echo "$k $(modinfo -k "$k" -F version %s 2>/dev/null || echo missing)"; done'
)


def on_disk(host: Any, module: str) -> dict[str, str]:
    """Kernel release → version of its `module`; "missing" if it has none."""
    listed = output(host, _LISTED, module)
    rows = (line.split(None, 1) for line in listed.splitlines() if line.strip())
    return {row[0]: row[1].strip() if len(row) > 1 else "" for row in rows}


def check_on_disk(
    host: Any, module: str, planned: str, observe: Observe, fits: Callable[[str], bool] | None = None
) -> None:
    """Fails unless every kernel has the planned version of the module, or one for which `fits` is true."""
    __tracebackhide__ = True
    versions = on_disk(host, module)
    observe(versions, planned)
    wrong = [f"{kernel}: {version}" for kernel, version in versions.items() if not (fits or planned.__eq__)(version)]
    if wrong or not versions:
        observe.fail(f"module {module} on disk: expected {planned}, got {'; '.join(wrong) or 'no installed kernel'}")
