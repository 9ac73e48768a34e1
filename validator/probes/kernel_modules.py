"""Kernel modules on disk: the version that each installed kernel loads at the next boot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from validator.observe import Observe, output

MISSING = "missing"
# Every bootable kernel has an index of its modules; `modinfo -k` reads the file that `modprobe` would load.
LISTED = (
    'for k in $(ls -1 /lib/modules); do [ -e "/lib/modules/$k/modules.dep" ] || continue;'
    ' echo "$k $(modinfo -k "$k" -F version %s 2>/dev/null || echo missing)"; done'
)


def on_disk(host: Any, module: str) -> dict[str, str]:
    """Kernel release → version of its `module`; "missing" if it has none."""
    listed = output(host, LISTED, module)
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


# The module and the one whose symbols it needs, of each kernel: version magic, and symbols with their versions (CRCs).
_SYMBOLS = (
    'PATH="$PATH:/usr/sbin:/sbin"; for k in $(ls -1 /lib/modules); do [ -e "/lib/modules/$k/modules.dep" ] || continue;'
    ' echo "kernel $k"; for m in %s %s; do f=$(modinfo -k "$k" -n $m 2>/dev/null); [ -e "$f" ] || f=;'
    ' echo "module $m $f";'
    ' [ -n "$f" ] || continue; echo "magic $m $(modinfo -F vermagic "$f")";'
    ' modprobe --show-exports "$f" 2>/dev/null | sed "s/^/exports $m /";'
    ' modprobe --dump-modversions "$f" 2>/dev/null | sed "s/^/needs $m /"; done; done'
)


@dataclass
class Symbols:
    """A module of one kernel: its file ("" if there is none), version magic, and symbol → CRC of both kinds."""

    file: str = ""
    magic: str = ""
    exports: dict[str, str] = field(default_factory=dict)
    needs: dict[str, str] = field(default_factory=dict)


def symbols(host: Any, module: str, of: str) -> dict[str, dict[str, Symbols]]:
    """Kernel release → module → its symbols, for a module and the one that exports what it needs."""
    kernels: dict[str, dict[str, Symbols]] = {}
    modules: dict[str, Symbols] = {}
    for line in output(host, _SYMBOLS % (module, of)).splitlines():
        kind, _, rest = line.partition(" ")
        words = rest.split()
        if kind == "kernel":
            modules = kernels.setdefault(words[0], {module: Symbols(), of: Symbols()})
        elif kind == "module":
            modules[words[0]].file = " ".join(words[1:])
        elif kind == "magic":
            modules[words[0]].magic = " ".join(words[1:])
        elif kind in ("exports", "needs") and len(words) >= 3:
            getattr(modules[words[0]], kind)[words[2]] = words[1]
    return kernels


def misfit(module: Symbols, exporter: Symbols, prefix: str) -> str:
    """Why a module was not built against this exporter; "" if it was. prefix: of the exporter's symbols."""
    if not module.file:
        return "there is no module"
    if module.magic != exporter.magic:
        return f"built for {module.magic!r}, the other for {exporter.magic!r}"
    needs = {name: crc for name, crc in module.needs.items() if name.startswith(prefix)}
    if not needs:
        return f"built without the versions of {prefix}*"
    wrong = [f"{name} {crc}, exported: {exporter.exports.get(name, 'not')}" for name, crc in sorted(needs.items())
             if int(exporter.exports.get(name, "0"), 16) != int(crc, 16)]  # fmt: skip
    return f"built against other symbols: {'; '.join(wrong)}" if wrong else ""
