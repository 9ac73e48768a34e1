"""Shared libraries as a program would get them: where the loader finds one, and what the library itself answers."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from validator.observe import Observe, output

# One Python process loads the library as any program does and calls one function of it, which must take no arguments
# ("size"), a pointer to an int ("int*"), or a buffer and its length ("char*"). argv: soname, function, kind.
_ASK = """
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
        sys.exit("%s of %s ended with %d" % (function, soname, status))
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
    """What a library said of itself, and the file that the loader took for it (absolute, links resolved)."""

    value: Any
    file: str


def ask(host: Any, observe: Observe, soname: str, function: str, kind: str) -> Loaded:
    """Calls `function` of the library that a program outside any shell gets for `soname`; the check fails if it cannot.

    kind: "size", "int*" or "char*", the function's arguments.
    """
    __tracebackhide__ = True
    # Nothing of the environment: what a service gets, not what a login shell adds.
    done = host.run("env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin python3 -c %s %s %s %s", _ASK, soname, function, kind)
    if done.rc != 0:
        said = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        observe(said[-1])
        observe.fail(f"a program cannot use {soname} ({function}): {said[-1]}")
    answer = json.loads(done.stdout)
    return Loaded(answer["value"], str(answer["file"]))


def on_path(host: Any, soname: str) -> list[str]:
    """Files (links resolved) that the loader's cache has for a soname, the one it takes first; 64 bit alone."""
    cached = output(host, "ldconfig -p")
    found = re.findall(rf"^\s*{re.escape(soname)} \(([^)]*)\) => (\S+)$", cached, re.MULTILINE)
    paths = [path for flags, path in found if "x86-64" in flags or "AArch64" in flags]
    if not paths:
        return []
    # Two entries may be one file: a folder that is listed twice, or a link beside the file itself.
    resolved = output(host, f"readlink -f -- {' '.join(['%s'] * len(paths))}", *paths).splitlines()
    return list(dict.fromkeys(resolved))
