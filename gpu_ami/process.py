"""Starts processes; no other module does.

Commands are lists, with a deadline, an explicit environment and a closed stdin. A child never outlives us: the kernel
signals it when the thread that started it is gone (PR_SET_PDEATHSIG), and a deadline ends its whole process group.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpu_ami import environment
from gpu_ami.errors import CloudError, GpuAmiError, MissingTool

if TYPE_CHECKING:
    from concurrent.futures import Future

_PR_SET_PDEATHSIG = 1
_GRACE_SECONDS = 5.0
ChildProcess = subprocess.Popen[bytes]
# Every process of `run` that has not ended: what Ctrl-C in the main thread must end although other threads wait for it.
running_processes: set[subprocess.Popen[bytes]] = set()
_interrupted: set[subprocess.Popen[bytes]] = set()  # those of them that `stop_all` has ended
# Resolved once in the parent: looking it up between fork and exec could take a lock another thread holds.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


@dataclass(frozen=True)
class ProcessIdentity:
    """A process by pid and start time: pids are reused, the pair is not. started: "<boot id>/<clock ticks>"."""

    pid: int
    started: str

    def alive(self) -> bool:
        return identify(self.pid) == self

    @staticmethod
    def from_json(data: object) -> ProcessIdentity | None:
        """From `{"pid": 1, "started": "…"}`; None for anything else."""
        if isinstance(data, dict) and isinstance(data.get("pid"), int) and isinstance(data.get("started"), str):
            return ProcessIdentity(data["pid"], data["started"])
        return None


def identify(pid: int) -> ProcessIdentity | None:
    """The identity of a running process; None if it does not run (a zombie does not)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    # proc(5): `fields` starts at field 3 (state); field 22 is the start time in clock ticks since boot.
    return None if fields[0] in "ZX" else ProcessIdentity(pid, f"{boot}/{fields[19]}")


def below(folder: Path) -> dict[str, list[ProcessIdentity]]:
    """Other processes of this user by the folder in `folder` that an environment variable or an argument names.

    A run's private folder has a name of its own: whoever was given it belongs to the run, also after its parent died.
    """
    path = re.compile(re.escape(os.fsencode(folder.resolve())) + rb"/([^/\0]+)/")
    found: dict[str, list[ProcessIdentity]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            given = (entry / "environ").read_bytes() + b"\0" + (entry / "cmdline").read_bytes()
        except OSError:  # ended meanwhile, or another user's
            continue
        identity = identify(int(entry.name))
        if identity and identity.pid != os.getpid():
            for name in set(path.findall(given)):
                found.setdefault(os.fsdecode(name), []).append(identity)
    return found


def end(identity: ProcessIdentity, grace: float = 5.0, *, first: int = signal.SIGTERM) -> bool:
    """Ends a process: `first`, and SIGKILL after `grace` seconds. False if it is still there."""
    for signum in (first, signal.SIGKILL):
        if not identity.alive():
            return True
        with contextlib.suppress(ProcessLookupError):
            os.kill(identity.pid, signum)
        deadline = time.monotonic() + grace
        while identity.alive() and time.monotonic() < deadline:
            time.sleep(0.02)
    return not identity.alive()


@dataclass(frozen=True)
class Completed:
    """How a command ended: exit status, both outputs as text, seconds it took."""

    command: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float


def clean_environment(extra: Mapping[str, str] | None = None, without: tuple[str, ...] = ()) -> dict[str, str]:
    """This process's environment, without what changes a tool's output or programs (environment.py), plus `extra`.

    without: beginnings of further variables that are not passed on.
    """
    kept = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("LC_", "LANG", *without)) and not environment.is_left_out(key)
    }
    return kept | {"LC_ALL": "C.UTF-8"} | dict(extra or {})


def find_tool(name: str, *, package: str) -> str:
    """Absolute path of a program; MissingTool names the Debian package that has it."""
    path = shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin:/usr/local/sbin")
    if path is None:
        raise MissingTool(f"{name} is not installed", hint=f"apt-get install {package} (or: gpu-ami doctor)")
    return path


def _die_with_parent(signum: int) -> Callable[[], None]:
    def before_exec() -> None:
        _prctl(_PR_SET_PDEATHSIG, signum)

    return before_exec


def spawn(  # noqa: PLR0913
    command: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | None = subprocess.DEVNULL,
    stderr: int | None = subprocess.STDOUT,
    death_signal: int | None = signal.SIGTERM,
    new_session: bool = True,
    pass_fds: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """A process of its own group that is signalled when the *thread* that called this ends (`death_signal`).

    `death_signal=None` lets it live on: only for the local region's daemon.
    """
    words = [str(word) for word in command]
    try:
        return subprocess.Popen(
            words,
            env=clean_environment(env, without),
            cwd=cwd,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=new_session,
            pass_fds=tuple(pass_fds),
            preexec_fn=None if death_signal is None else _die_with_parent(death_signal),
        )
    except FileNotFoundError as error:
        raise MissingTool(f"{words[0]} is not installed", hint="gpu-ami doctor says how to get it") from error


def stop(
    process: subprocess.Popen[bytes],
    *,
    first: int = signal.SIGTERM,
    grace: float = _GRACE_SECONDS,
    on_kill: Callable[[], object] | None = None,
) -> None:
    """Ends the process's group: `first`, then SIGKILL after `grace` seconds or at another interrupt.

    on_kill: called before SIGKILL, which leaves the process no time to clean up.
    """
    interrupt: KeyboardInterrupt | None = None
    for signum in (first, signal.SIGKILL):
        if process.poll() is not None:
            break
        if on_kill and signum == signal.SIGKILL:
            on_kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signum)
        try:
            process.wait(grace)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt as again:  # a second Ctrl-C: it is not left running
            interrupt = again
    # Also what outlived the group's leader: no other group has this number while a member lives.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    if interrupt:
        raise interrupt


def stop_all() -> None:
    """Ends every process that some thread's `run` waits for; those calls then raise."""
    for process in tuple(running_processes):
        _interrupted.add(process)
        stop(process)


def run(  # noqa: PLR0913
    command: Sequence[str | Path],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
    cwd: Path | None = None,
    check: bool = True,
    on_line: Callable[[str], object] | None = None,
    stop_with: int = signal.SIGTERM,
    grace: float = _GRACE_SECONDS,
    error: type[GpuAmiError] = CloudError,
    on_start: Callable[[subprocess.Popen[bytes]], object] | None = None,
    on_kill: Callable[[], object] | None = None,
) -> Completed:
    """Runs a command to its end.

    `env`, `without`: as clean_environment has them. `on_start` gets the process, so that another thread can `stop` it.
    `on_line` gets every line of output as it comes (stderr joined into stdout). With `check`, a non-zero end raises
    `error` with the copy-pasteable command and the last lines. After `timeout` seconds or Ctrl-C:
    `stop_with` to the process group; after `grace` seconds or another Ctrl-C: `on_kill()`, then SIGKILL.
    `error` also where `stop_all` has ended it: how it ended then says nothing about what it was run for.
    """
    words = tuple(str(word) for word in command)
    started = time.monotonic()
    expired = threading.Event()

    def expire() -> None:
        expired.set()
        stop(process, first=stop_with, grace=grace, on_kill=on_kill)

    watchdog = threading.Timer(timeout, expire)
    watchdog.daemon = True
    process = spawn(
        words,
        env=env,
        without=without,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT if on_line else subprocess.PIPE,
        death_signal=stop_with,
    )
    try:
        running_processes.add(process)
        if on_start:
            on_start(process)
        watchdog.start()
        if on_line:
            out, err = "".join(_echo(process, on_line)), ""
        else:
            raw_out, raw_err = process.communicate()
            out, err = raw_out.decode(errors="replace"), raw_err.decode(errors="replace")
        process.wait()
    except BaseException:
        stop(process, first=stop_with, grace=grace, on_kill=on_kill)
        raise
    finally:
        watchdog.cancel()
        running_processes.discard(process)
        interrupted = process in _interrupted
        _interrupted.discard(process)
    done = Completed(words, process.returncode, out, err, time.monotonic() - started)
    if interrupted:
        raise error(f"{Path(words[0]).name} was ended: the run was interrupted", details=describe(done))
    if expired.is_set():
        raise error(f"{words[0]} did not complete within {timeout:.0f} s", details=describe(done))
    if check and done.returncode != 0:
        raise error(f"{Path(words[0]).name} ended with {done.returncode}", details=describe(done))
    return done


def _echo(process: subprocess.Popen[bytes], on_line: Callable[[str], object]) -> Iterator[str]:
    assert process.stdout is not None
    for raw in process.stdout:
        line = raw.decode(errors="replace")
        on_line(line.rstrip("\r\n"))
        yield line


def describe(done: Completed, lines: int = 20) -> list[str]:
    """The command as it can be pasted, and the last lines of its output."""
    tail = (done.stdout + done.stderr).strip().splitlines()[-lines:]
    return [f"$ {shlex.join(done.command)}", *tail]


_Result = TypeVar("_Result")


class UnderWay:
    """Counts the jobs of a pool that have begun and not ended, in their own threads.

    Ctrl-C while the pool starts a thread leaves a thread that the pool does not know, and no future of its job: the
    run would end before that job has cleaned up.
    """

    def __init__(self) -> None:
        self._lock, self._jobs = threading.Lock(), 0

    def __bool__(self) -> bool:
        return self._jobs > 0

    def run(self, job: Callable[..., _Result], *arguments: object) -> _Result:
        """Calls the job in this thread."""
        with self._lock:
            self._jobs += 1
        try:
            return job(*arguments)
        finally:
            with self._lock:
                self._jobs -= 1

    def end(self) -> None:
        """Ends the processes that the jobs wait for, until no job runs. They know by then that the run is cancelled."""
        while self:  # a thread that only starts now sees that the run is cancelled, and starts nothing
            stop_all()  # again, for a thread may have been about to start one
            time.sleep(0.1)


@contextlib.contextmanager
def job_pool(workers: int, name: str) -> Iterator[Callable[..., Future[Any]]]:
    """Submits jobs to threads of their own: a function and its arguments. All have ended after the block.

    An error in the block cancels the jobs that have not begun; Ctrl-C also ends the processes of the others, which the
    threads would else wait for.
    """
    from concurrent.futures import ThreadPoolExecutor  # takes longer than all of this module

    jobs = UnderWay()
    with ThreadPoolExecutor(workers, thread_name_prefix=name) as pool:
        try:
            yield lambda job, *arguments: pool.submit(jobs.run, job, *arguments)
        except Exception:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            jobs.end()
            raise
