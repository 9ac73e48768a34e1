"""Kernel modules on disk: which version each installed kernel would load at the next boot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from validator.observe import Observe, output

MISSING = "missing"
# Every kernel that can boot has an index of its modules; `modinfo` finds what that kernel's `modprobe` would load.
_LISTED = (
    'for k in $(ls -1 /lib/modules); do [ -e "/lib/modules/$k/modules.dep" ] || continue;'
    ' echo "$k $(modinfo -k "$k" -F version %s 2>/dev/null || echo missing)"; done'
)


def on_disk(host: Any, module: str) -> dict[str, str]:
    """Kernel release → version of `module` for it, "missing" where there is none."""
    listed = output(host, _LISTED, module)
    rows = (line.split(None, 1) for line in listed.splitlines() if line.strip())
    return {row[0]: row[1].strip() if len(row) > 1 else "" for row in rows}


def check_on_disk(
    host: Any, module: str, planned: str, observe: Observe, fits: Callable[[str], bool] | None = None
) -> None:
    """Fails unless every kernel has the module in the planned version (or in one that `fits`)."""
    __tracebackhide__ = True
    found = on_disk(host, module)
    observe(found, planned)
    wrong = [f"{kernel}: {version}" for kernel, version in found.items() if not (fits or planned.__eq__)(version)]
    if wrong or not found:
        observe.fail(f"module {module} on disk: {'; '.join(wrong) or 'no kernel is installed'}, expected {planned}")
