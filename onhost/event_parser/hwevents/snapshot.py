"""The GPUs' state at boot: remapped rows and recovery action, for faults before the service started.

nvidia-smi runs beside the reader with a deadline, so a driver that hangs cannot stop the reader. A value that is missing or an
error is unknown: it is named, counted as RecoveryUnknown, and published as no zero; a GPU that answers counts 0.
"""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Dict, List, Optional, Tuple

from . import readings
from .pci import normalise_pci

DEADLINE_S = 20.0
_LIMIT = 4 * 1024 * 1024
# Elements of `nvidia-smi -q -x` that say whether a GPU needs an action; names differ by schema version.
_ELEMENTS = {
    "uuid": "uuid", "serial": "serial", "remapped_row_corr": "remapped_correctable", "remapped_row_unc": "remapped_uncorrectable",
    "remapped_row_pending": "remap_pending", "remapped_row_failure": "remap_failure", "gpu_recovery_action": "recovery_action",
    "recovery_action": "recovery_action", "driver_version": "driver", "product_architecture": "architecture",
    "virtualization_mode": "virtualization", "current_mig": "mig", "current_ecc": "ecc", "channel_repair_pending": "channel_repair_pending",
    "tpc_repair_pending": "tpc_repair_pending", "unrepairable_memory": "unrepairable_memory", "reset_required": "reset_required",
    "drain_and_reset_recommended": "drain_and_reset_recommended", "bank_remapper_pending": "bank_remapper_pending",
}  # fmt: skip
_UNKNOWN = {"RecoveryUnknown": "Count"}
_NAMED = 5  # unknown values that a line names; `unknown_count` has their number


class Snapshot:
    """A running nvidia-smi. `fd`: its output, for poll."""

    def __init__(self, pid: int, fd: int) -> None:
        self.pid = pid
        self.fd = fd
        self.deadline = time.monotonic() + DEADLINE_S
        self._output = []  # type: List[bytes]

    @classmethod
    def start(cls, program: str, arguments: Tuple[str, ...] = ("-q", "-x")) -> Optional["Snapshot"]:
        """None if nvidia-smi is not installed."""
        if not os.access(program, os.X_OK):
            return None
        read_end, write_end = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        pid = os.fork()
        if pid == 0:
            _become(program, arguments, write_end)
        os.close(write_end)
        return cls(pid, read_end)

    def read(self) -> bool:
        """Reads the available output; True at its end."""
        try:
            while True:
                part = os.read(self.fd, 65536)
                if not part or sum(map(len, self._output)) > _LIMIT:
                    return True
                self._output.append(part)
        except BlockingIOError:
            return False

    def output(self) -> Tuple[Optional[bytes], str]:
        """What nvidia-smi printed; None with the reason where it failed or missed the deadline."""
        os.close(self.fd)
        late = time.monotonic() >= self.deadline
        if late:
            os.kill(self.pid, signal.SIGKILL)
        status = _reap(self.pid)
        if late or status != 0:
            return None, "no answer within %d s" % DEADLINE_S if late else "exit status %d" % status
        return b"".join(self._output), ""

    def finish(self) -> List[Tuple[Dict[str, Any], Dict[str, str]]]:
        """(fields, metrics) of each GPU; one entry with the reason where nvidia-smi failed or missed the deadline."""
        document, why = self.output()
        if document is None:
            return [unanswered("nvidia-smi: " + why)]
        found, whole = boards(document)
        lines = [with_metrics(board) for board in found]
        if not whole or not found:
            lines.append(
                unanswered("nvidia-smi -q -x: " + ("the document is incomplete" if found else "it names no GPU"))
            )
        return lines


def unanswered(why: str) -> Tuple[Dict[str, Any], Dict[str, str]]:
    return {"answered": False, "why": why, "RecoveryUnknown": 1}, dict(_UNKNOWN)


def _become(program: str, arguments: Tuple[str, ...], write_end: int) -> None:
    """Runs in the child: nvidia-smi with its output in the pipe. Does not return."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(write_end, 1)
        os.dup2(null, 2)
        os.set_blocking(1, True)
        signal.set_wakeup_fd(-1)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(signum, signal.SIG_DFL)
        os.execve(program, [program, *arguments], {"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
    finally:
        os._exit(127)


def _reap(pid: int) -> int:
    """The exit status, or 128 + signal. A process that hangs in the driver is not waited for."""
    for _ in range(50):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
        time.sleep(0.01)
    return 255


def with_metrics(board: Dict[str, Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """A metric of each flag that is known. A GPU that cannot show remapped rows has none to publish: one without a row
    remapper (before Ampere, or a vGPU), and one in MIG mode."""
    unknown = board.pop("unknown")  # type: Dict[str, str]
    remaps = readings.row_remapper(*(board.pop(key, "") for key in ("architecture", "virtualization", "ecc")))
    remaps = remaps and not readings.read_flag(board.pop("mig", "")).is_set()
    for name in (*readings.REPAIRS, "reset_required", "drain_and_reset_recommended"):
        if not readings.read_flag(board.get(name)).is_set():
            board.pop(name, None)  # only what asks for something is in the line
    metrics = {}  # type: Dict[str, str]
    for key, name in (("remap_pending", "RowRemapPending"), ("remap_failure", "RowRemapFailure")):
        flag = readings.read_flag(board.get(key))
        if flag.state == readings.KNOWN:
            board[name], metrics[name] = int(flag.is_set()), "Count"
        elif remaps and not any(path.startswith("remapped_rows") for path in unknown):
            unknown.setdefault(key, board.pop(key, ""))
    if not unknown:
        board.update(answered=True, RecoveryUnknown=0)  # ends the alarm of an earlier boot
        return board, dict(metrics, **_UNKNOWN)
    named = ["%s: %s" % (name, text or "no value") for name, text in list(unknown.items())[:_NAMED]]
    why = "%d values are unknown: %s" % (len(unknown), "; ".join(named))
    board.update(answered=False, why=why, unknown=named, unknown_count=len(unknown), RecoveryUnknown=1)
    return board, dict(metrics, **_UNKNOWN)


def boards(document: bytes) -> Tuple[List[Dict[str, Any]], bool]:
    """One entry for each GPU of `nvidia-smi -q -x`, and whether the document is whole; else the GPUs read so far.

    `unknown` of an entry: element → text of each value that is an error, wherever it stands.
    """
    from pyexpat import ExpatError, ParserCreate  # imported only where needed: saves the idle service memory

    gpus = []  # type: List[Dict[str, Any]]
    path = []  # type: List[str]
    text = []  # type: List[str]
    driver = {}  # type: Dict[str, str]

    def start(name: str, attributes: Dict[str, str]) -> None:
        path.append(name)
        text.clear()
        if name == "gpu" and len(path) == 2:
            gpus.append({"pci": _pci(attributes.get("id", "")), "driver": driver.get("driver"), "unknown": {}})

    def end(name: str) -> None:
        value = "".join(text).strip()
        key = _ELEMENTS.get(name)
        if key == "driver":
            driver["driver"] = value.partition(" ")[0]  # R610 adds that the element is deprecated
        elif (
            gpus
            and value
            and not any(part in readings.FREE_TEXT for part in path)
            and "/".join(path[2:]) != readings.OF_THE_HOST
        ):
            if readings.is_error(value):
                if value != "Insufficient Permissions" or key:
                    gpus[-1]["unknown"]["/".join(path[2:])] = value[:64]
            elif key and (key == "ecc" or readings.read_word(value).state == readings.KNOWN):
                gpus[-1].setdefault(key, int(value) if value.isdigit() and key.startswith("remapped") else value[:64])
        text.clear()
        path.pop()

    parser = ParserCreate()
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text.append
    try:
        parser.Parse(document, True)
    except ExpatError:
        if path[1:2] == ["gpu"]:
            gpus[-1]["unknown"].setdefault("gpu", "incomplete")
        return gpus, False
    return gpus, True


def _pci(printed: str) -> str:
    try:
        return normalise_pci(printed)
    except ValueError:
        return printed[:32]
