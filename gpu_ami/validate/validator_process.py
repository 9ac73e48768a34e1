"""The validator as a process: one a host and pass, its command line, and what it leaves.

A process each (`python -m pytest -p validator.plugin …`), so that a check that hangs or crashes takes nothing else with
it. It writes checks.json at its end and a line of checks.jsonl after each check.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami import process
from gpu_ami.errors import GpuAmiError, MachineError
from gpu_ami.files import data_dir
from gpu_ami.plan import site_folder
from gpu_ami.validate.machines import deadlines
from validator import isolation
from validator.file_account import KEPT_FILE
from validator.results import (
    CheckRecord,
    HostResults,
    InvalidRecord,
    Verdict,
    journal_of,
    read_journal,
    read_running,
    running_of,
)

if TYPE_CHECKING:
    from subprocess import Popen

    from gpu_ami.cloud import Place

# Other plugins and options that happen to be installed or set would change the results (validator/isolation.py).
PYTEST = (
    sys.executable, *isolation.PYTHON_ARGUMENTS, "-m", "pytest", *isolation.ARGUMENTS,
    "-p", "validator.plugin", "-p", "no:cacheprovider", "-q", "--color=no", "--tb=short",
)  # fmt: skip
_COMPLETED = (0, 1)  # pytest's exit status: all passed, or some failed; with any other the run did not complete
HOST_SECONDS = 1800.0  # one host's checks, all together: metrics may take 15 minutes to arrive
_COLLECT_SECONDS = 120.0
_STOPPED = (-signal.SIGTERM, -signal.SIGKILL)  # by this program, at a deadline or as the machine is gone
RESULTS_FILE = "checks.json"
LOG_FILE = "validator.log"


class ChecksIncomplete(MachineError):
    """The validator did not complete. results: the checks that had ended."""

    def __init__(self, message: str, results: HostResults, *, hint: str = "", details: Sequence[str] = ()) -> None:
        super().__init__(message, hint=hint, details=details)
        self.results = results


@dataclass(frozen=True)
class Target:
    """What a validator process needs to know of one host. name: its evidence folder, if not the instance type's.

    log_group_suffix: what its agent appends to the plan's log groups (gpu_ami.cloud.log_groups); "": nothing.
    """

    url: str
    instance_type: str = ""
    instance_id: str = ""
    key_file: Path | None = None
    known_hosts: Path | None = None
    name: str = ""
    log_group_suffix: str = ""
    proxy_command: str = ""


def run_checks(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    target: Target,
    folder: Path,
    on_start: Callable[[Popen[bytes]], object] | None = None,
    *,
    on_line: Callable[[str], object] = lambda _line: None,
    more_seconds: float = 0.0,
) -> HostResults:
    """Runs a validator to its end and reads its results.

    folder: where checks.json and validator.log are. on_start: gets the process, so that another thread can stop it.
    on_line: gets each line of output, too. more_seconds: added to the deadline of all checks.
    ChecksIncomplete: it was stopped, exceeded its deadline or crashed. MachineError: it left nothing at all.
    """
    results = folder / RESULTS_FILE
    for old in (results, journal_of(results), running_of(results), folder / KEPT_FILE):
        old.unlink(missing_ok=True)  # never judge an earlier run's results
    hint = f"see {folder / LOG_FILE}"
    try:
        done = _run(command, environment, folder / LOG_FILE, on_start, on_line, more_seconds=more_seconds)
    except GpuAmiError as error:  # its deadline is over
        raise _incomplete(error.message, target, results, hint, error.details) from error
    except OSError as error:  # this machine's disk is full
        raise _incomplete(f"{error.filename or folder}: {error.strerror}", target, results, hint) from error
    details = process.describe(done)
    if done.returncode not in (*_COMPLETED, *_STOPPED) and (crashed := read_running(running_of(results))):
        raise _crashed(done, crashed, target, results, details)
    if done.returncode not in _COMPLETED:
        raise _incomplete(f"the validator did not run all checks on {target.url}", target, results, hint, details)
    try:
        host_results = HostResults.load(results)
    except (OSError, InvalidRecord) as error:
        message = f"the validator left no results for {target.url}"
        raise _incomplete(message, target, results, hint, [*details, str(error)]) from error
    if not host_results.checks:
        raise MachineError(f"no check ran on {target.url}", details=details)
    return host_results


def _run(
    command: Sequence[str | Path],
    environment: Mapping[str, str],
    log_file: Path,
    on_start: Callable[[Popen[bytes]], object] | None,
    on_line: Callable[[str], object],
    *,
    more_seconds: float,
) -> process.Completed:
    with log_file.open("w", encoding="utf-8", errors="backslashreplace", buffering=1) as log:

        def keep(line: str) -> None:
            print(line, file=log)
            on_line(line)

        return process.run(
            command,
            timeout=HOST_SECONDS + more_seconds,
            env=environment,
            without=isolation.CALLERS_VARIABLES,
            check=False,
            on_line=keep,
            error=MachineError,
            on_start=on_start,
        )


A_MACHINE, IMAGE_FILES_ALONE = "ssh://nobody@127.0.0.1:9", "image:///"  # addresses of `collect`


def collect(options: Sequence[str], checks: Sequence[Path], hosts: Sequence[str] = (A_MACHINE,)) -> process.Completed:
    """A validator that lists checks and runs none. hosts: addresses for what asks for a host; nothing connects."""
    named = f"--hosts={','.join(hosts)}"
    command = [*PYTEST, "--collect-only", named, *options, *(str(path.absolute()) for path in checks)]
    without = isolation.CALLERS_VARIABLES
    return process.run(command, timeout=_COLLECT_SECONDS, env=isolation.VARIABLES, without=without, check=False)


def why_not_collected(done: process.Completed) -> list[str]:
    """What pytest says of the files that it could not collect, without the list of those that it could."""
    lines = done.stdout.splitlines()
    errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR: ")]
    begin = next((number + 1 for number, line in enumerate(lines) if line.strip("= ") == "ERRORS"), None)
    if begin is not None:
        end = next((number for number in range(begin, len(lines)) if lines[number].startswith("===")), len(lines))
        told = (line.strip("_ ") if line.startswith("___") else line for line in lines[begin:end])
        errors = [line for line in told if not line.startswith(_NO_NEWS)] + errors
    return [line.removeprefix("ERROR: ") for line in errors][:40] or process.describe(done)


_NO_NEWS = ("Hint: ", "Traceback:", "ERROR collecting test session")


def partial_results(folder: Path, host: str) -> HostResults:
    """What a validator that is still running, or was cut off, has judged so far."""
    return HostResults(host, read_journal(journal_of(folder / RESULTS_FILE)))


def _incomplete(
    message: str, target: Target, results: Path, hint: str, details: Sequence[str] = ()
) -> ChecksIncomplete:
    host_results = partial_results(results.parent, target.url)
    return ChecksIncomplete(message, host_results, hint=hint, details=details)


def _crashed(
    done: process.Completed, check: CheckRecord, target: Target, results: Path, details: Sequence[str]
) -> ChecksIncomplete:
    """The validator ended within a check, which is an error of that check; those that had ended keep their results."""
    running_of(results).unlink(missing_ok=True)
    status = done.returncode
    how = f"exit status {status}" if status >= 0 else signal.strsignal(-status) or f"signal {-status}"
    message = f"the check ended the validator's process ({how})"
    judged = [one for one in partial_results(results.parent, target.url).checks if one.id != check.id]
    crashed = replace(check, verdict=Verdict.ERROR, message=message)
    return ChecksIncomplete(
        f"{check.id} ended the validator's process on {target.url} ({how}): checks that had not ended have no result",
        HostResults(target.url, (*judged, crashed)),
        hint=f"correct that check, or leave it out (-k); see {results.parent / LOG_FILE}",
        details=details,
    )


def command_line(
    target: Target,
    folder: Path,
    plan_file: Path | None,
    place: Place | None,
    options: Sequence[str] = (),
    *,
    checks: Sequence[Path] = (),
) -> list[str | Path]:
    """The validator's command line: our checks and the user's `checks`, on one host."""
    import validator

    values = {
        "--hosts": target.url,
        "--results": folder / RESULTS_FILE,
        "--evidence": folder,
        "--plan": plan_file,
        "--instance-id": target.instance_id,
        "--instance-type": target.instance_type,
        "--ssh-identity-file": target.key_file,
        "--known-hosts": target.known_hosts,
        "--log-group-suffix": target.log_group_suffix,
        "--arrival-seconds": f"{deadlines(target.instance_type, place).arrival_seconds:g}",
        "--proxy-command": target.proxy_command,
        "--aws-region": place.region if place else None,
        "--aws-endpoint": place.api.endpoint if place else None,
        "--aws-profile": place.api.profile if place else None,
    }
    # -vv: a line a check, for CheckOutput.
    named = [f"{option}={value}" for option, value in values.items() if value]
    named += [f"--roles-path={path}" for path in roles_folders(plan_file)]
    own = Path(validator.__file__).parent / "checks"
    return [*PYTEST, "-vv", *named, *options, own, *(path.absolute() for path in checks)]


def roles_folders(plan_file: Path | None) -> list[Path]:
    """Folders with the roles of a plan: those of the site beside it, and ours."""
    site = site_folder(plan_file.parent, "roles") if plan_file else None
    return [*([site] if site and site.is_dir() else []), data_dir("roles")]


def environment(place: Place | None) -> dict[str, str]:
    """The environment of a validator: pytest's, and the place's own keys where it has some."""
    return isolation.VARIABLES | (place.api.keys() if place else {})
