"""Shared libraries as a program loads them: the file that the loader selects, and its version."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from validator.observe import Observe, output

# One Python process loads the library as any program does and calls one function of it, which must take no arguments
# ("size"), a pointer to an int ("int*"), or a buffer and its length ("char*"). argv: soname, function, kind.
PROGRAM = """
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


# Opens each library in a process of its own, with RTLD_NOW: every symbol is bound, in the version that is needed.
_OPEN = """
import ctypes, json, os, sys
answers = {}
for path in sys.argv[1:]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            ctypes.CDLL(path, mode=os.RTLD_NOW)
            text = "opened"
        except OSError as error:
            text = str(error) or "no error text"
        os.write(writing, text.encode(errors="replace")[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read().decode(errors="replace")
    status = os.waitpid(pid, 0)[1]
    answers[path] = text if text else "the process ended with status %d" % status
print(json.dumps(answers))
"""
# `ldd -r` exits with 0 for all of these; it prints the versions on standard error.
_UNRESOLVED = re.compile(
    r"^\s*(\S+) => not found$|(version `[^']+' not found \(required by .*\))$"
    r"|^((?:undefined symbol|symbol lookup error).*)$|(symbol .* version .* not defined .*)$",
    re.MULTILINE,
)


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
    done = host.run(program, PROGRAM, soname, function, kind, pure=True)
    if done.rc != 0:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["no output"]
        observe(lines[-1])
        observe.fail(f"a program cannot use {soname} ({function}): {lines[-1]}")
    printed = json.loads(done.stdout)
    return Loaded(printed["value"], str(printed["file"]))


def check_opened(host: Any, observe: Observe, paths: Sequence[str]) -> None:
    """Fails unless a program can open each library (absolute paths, or sonames), with all that it needs."""
    __tracebackhide__ = True
    program = f"env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin python3 -IS -c %s {' '.join(['%s'] * len(paths))}"
    done = host.run(program, _OPEN, *paths, pure=True)
    if done.rc != 0 or not done.stdout.strip():
        observe.fail(f"cannot open libraries: status {done.rc}: {(done.stderr or done.stdout).strip()[-300:]}")
    answers: dict[str, str] = json.loads(done.stdout)
    observe(answers, "opened")
    wrong = [f"{path}: {answers.get(path, 'no answer')}" for path in paths if answers.get(path) != "opened"]
    if wrong or not paths:
        observe.fail(f"the loader does not open {'; '.join(wrong) or 'any library: none is on its path'}")


def unresolved(host: Any, path: str) -> list[str]:
    """What the loader does not find for a file: libraries, versions of symbols, symbols. [] if it finds everything.

    Without the environment of a login shell, as in a service.
    """
    done = host.run("env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin ldd -r %s", path)
    printed = f"{done.stdout}\n{done.stderr}"
    found = [next(text for text in match.groups() if text) for match in _UNRESOLVED.finditer(printed)]
    if done.rc != 0 and not found:
        found = [f"ldd exited with status {done.rc}: {(done.stderr or done.stdout).strip()[-200:] or 'no output'}"]
    return [" ".join(text.split()) for text in found]


def names_on_path(host: Any, pattern: str) -> list[str]:
    """The sonames in the loader's cache that match a regular expression as a whole, sorted."""
    names = re.findall(r"^\s*(\S+) \([^)]*(?:x86-64|AArch64)[^)]*\) => ", output(host, "ldconfig -p"), re.MULTILINE)
    return sorted({name for name in names if re.fullmatch(pattern, name)})


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
