"""Shared libraries as a program loads them: the file that the loader selects, and its version."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from validator.observe import Observe, output

# One Python process loads the library as any program does and calls one function of it, which must take no arguments
# ("size"), a pointer to an int ("int*"), or a buffer and its length ("char*"). argv: soname, function, kind.
_PROGRAM = """
import ctypes, json, os, sys
soname, function, kind = sys.argv[1:]
call = getattr(ctypes.CDLL(soname), function)
if kind == "size":
    call.restype = ctypes.c_size_t
    value = call()
elif kind == "int*":
    number = ctypes.c_int(-1)
    status = call(ctypes.byref(number))
    if status != 0:
        sys.exit("%s of %s returned %d" % (function, soname, status))
    value = number.value
else:
    text = ctypes.create_string_buffer(256)
    call(text, 255)
    value = text.value.decode(errors="replace").strip()
stem = soname.partition(".so")[0] + ".so"
maps = [line.split(None, 5)[-1].strip() for line in open("/proc/self/maps")]
files = [name for name in maps if os.path.basename(name).startswith(stem)]
print(json.dumps({"value": value, "file": os.path.realpath(files[0]) if files else ""}))
"""


@dataclass(frozen=True)
class Loaded:
    """The value that a library returned, and the file that the loader selected (absolute, links resolved)."""

    value: Any
    file: str


def call(host: Any, observe: Observe, soname: str, function: str, kind: str) -> Loaded:
    """Calls `function` of the library that a program loads for `soname`; the check fails if it cannot.

    kind: "size", "int*" or "char*", the arguments of the function.
    """
    __tracebackhide__ = True
    # With an empty environment, as for a service: without the settings of a login shell.
    program = "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin python3 -IS -c %s %s %s %s"
    done = host.run(program, _PROGRAM, soname, function, kind, pure=True)
    if done.rc != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        observe(lines[-1])
        observe.fail(f"a program cannot use {soname} ({function}): {lines[-1]}")
    printed = json.loads(done.stdout)
    return Loaded(printed["value"], str(printed["file"]))


def on_path(host: Any, soname: str) -> list[str]:
    """The 64-bit files for a soname in the loader's cache (links resolved); the loader selects the first."""
    cached = output(host, "ldconfig -p")
    entries = re.findall(rf"^\s*{re.escape(soname)} \(([^)]*)\) => (\S+)$", cached, re.MULTILINE)
    paths = [path for flags, path in entries if "x86-64" in flags or "AArch64" in flags]
    if not paths:
        return []
    # Two entries can be the same file: a directory that is listed twice, or a link to the file.
    resolved = output(host, f"readlink -f -- {' '.join(['%s'] * len(paths))}", *paths).splitlines()
    return list(dict.fromkeys(resolved))
