"""`python -m pytest` in a process of its own, forked by one that has imported what most runs need.

It has a folder, an environment (PYTHONPATH, too) and an end of its own. Python has started already: a test of its
options, its other variables or of what is imported late needs a subprocess.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The validator but for its plugin and checks, whose assertions pytest rewrites while it imports them.
_PRELOADED = (
    "pytest", "testinfra.plugin", "testinfra.host", "testinfra.modules", "_hypothesis_pytestplugin", "xdist.plugin",
    "platformdirs.pytest_plugin", "paramiko", "yaml", "boto3", "jinja2", "validator.cloudwatch", "validator.evidence",
    "validator.file_account", "validator.observe", "validator.plan", "validator.probes",
    "validator.results", "validator.schema", "validator.selection", "validator.transport.backend",
    "validator.transport.ssh", "validator.transport.transcript", "validator.waivers",
)  # fmt: skip


def run(
    words: Sequence[str | Path], *, cwd: Path = ROOT, env: Mapping[str, str] | None = None, timeout: float = 120
) -> subprocess.CompletedProcess[str]:
    """`python -m pytest WORDS`: its exit code and output. env: default: this process's. subprocess.TimeoutExpired."""
    command = [str(word) for word in words]
    with tempfile.TemporaryDirectory(prefix="pytest") as folder:
        streams = [Path(folder, name) for name in ("stdout", "stderr")]
        asked = {
            "words": command, "folder": str(cwd), "environment": dict(os.environ if env is None else env),
            "streams": [str(path) for path in streams],
        }  # fmt: skip
        code = _ask(asked, timeout)
        output, errors = (path.read_text(errors="replace") for path in streams)
    return subprocess.CompletedProcess(["pytest", *command], code, output, errors)


def _ask(asked: Mapping[str, object], timeout: float) -> int:
    process = _forks()
    assert process.stdin and process.stdout
    try:
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        pid = int(process.stdout.readline())
        if not select.select([process.stdout], [], [], timeout)[0]:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired("pytest", timeout)
        return int(process.stdout.readline())
    except BaseException:  # the next one would read this one's answer
        process.kill()
        process.wait()
        _forks.cache_clear()
        raise


@functools.cache
def _forks() -> subprocess.Popen[bytes]:
    """The process that forks; it ends with its input. Unbuffered: `select` sees what is there to be read."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.forked_pytest"], cwd=ROOT, bufsize=0,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    atexit.register(process.communicate)
    return process


def main() -> int:
    for name in _PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin.buffer:
        pid = os.fork()
        if pid == 0:
            return _pytest(json.loads(line))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
    return 0


def _pytest(asked: Mapping[str, list[str]]) -> int:
    """In the forked process: what `python -m pytest` does."""
    import pytest

    os.chdir(str(asked["folder"]))
    os.environ.clear()
    os.environ.update(asked["environment"])
    for number, path in zip((1, 2), asked["streams"], strict=True):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.path[:1] = [str(Path.cwd()), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]  # as -m has it
    # Plugins that are imported already are not rewritten, which has no effect here.
    sys.argv = ["pytest", "-W", "ignore::pytest.PytestAssertRewriteWarning", *asked["words"]]
    return int(pytest.console_main())


if __name__ == "__main__":
    sys.exit(main())
