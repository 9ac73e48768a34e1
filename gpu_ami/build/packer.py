"""Packer's command line, output and manifest: the only module that knows them. In: a plan's files; out: the AMI id."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import tempfile
import textwrap
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from gpu_ami.build.ansible import Converged, Play, ansible_playbook, ansible_settings, is_failure
from gpu_ami.cloud import Place, aws_errors, runs
from gpu_ami.errors import BuildError, GpuAmiError, MissingTool, UsageError
from gpu_ami.files import home_dir, read_json
from gpu_ami.plan import PACKER_FILE
from gpu_ami.process import describe, find_tool, run
from gpu_ami.progress import Progress
from validator.inputs import parse_json, read_text

_TAIL_LINES = 40
_ESCAPES = {"%!(PACKER_COMMA)": ",", "\\n": "\n", "\\r": ""}
_HEAD = re.compile(r"^(?:==>|-->)?\s*(?:[\w.-]+\.[\w-]+):\s?")
_BUILDER = re.compile(r"^Instance ID: (?P<id>i-[0-9a-f]+)$")
# In the log only: as progress they would hide the stages.
_DETAIL = re.compile(r"^(?:\s|Adding tag: |==> |AMIs were created|No volumes to clean up)")

# "Errors" of the plugins (amazon 1.8.2, ansible 1.1.7) after which they go on.
_HARMLESS = re.compile(r"Warning: |Error tagging source instance's network interface ")
# What the plug-in says of its own clean-up (amazon 1.8.2, Packer 1.6.6); it may be the only error of a build.
_LEFT = re.compile(r"may still be around|Please delete the \w+ manually")
_STATE_CHANGE = "Instance state change details: "


class Reader:
    """Reads lines as they come. `note` gets stages and slow tasks, `log` everything with the seconds since the start.

    on_builder: called with the builder's instance id; on_task: with number and name of each Ansible task that starts.
    play: the Ansible run within the build.
    """

    def __init__(
        self,
        log: IO[str],
        note: Callable[[str], None],
        on_builder: Callable[[str], None] | None = None,
        on_task: Callable[[int, str], None] | None = None,
    ) -> None:
        self._log, self._note, self._on_builder = log, note, on_builder
        self._started = time.monotonic()
        self._last: deque[str] = deque(maxlen=_TAIL_LINES)
        self._packer_errors: list[str] = []
        self.left: list[str] = []  # what Packer says it could not remove
        self.play = Play(note, on_task)

    def line(self, raw: str) -> None:
        """One line of Packer's output; a line that is not a record (a panic) is kept as it is."""
        kind, text = _record(raw)
        if kind in ("say", "message", "error", "plain"):
            lines = [_HEAD.sub("", line.rstrip(), count=1) for line in text.split("\n")]
            for line in lines:
                self._read(kind, line)
            first = next((line for line in lines if line.strip()), "")
            # What Ansible writes to stderr is an "error", too.
            if kind == "error" and _LEFT.search(text):
                self.left.append(" ".join(" ".join(lines).split()))
            elif kind == "error" and first and not is_failure(first) and not _HARMLESS.match(first):
                self._packer_errors.append(" ".join(" ".join(lines).split()))

    def end(self) -> None:
        """Packer has ended; closes the last task."""
        self.play.end()

    @property
    def reason(self) -> str:
        """The sentence that says best why the build failed.

        A failed task comes first. Where Ansible has finished without a failure, only what Packer reported counts: lines
        such as mitogen's `[ERROR]: [mux …]`, which it logs while it closes connections, did not stop the build.
        """
        if self.play.failed and self.play.failures:
            return self.play.failures[0]
        # Packer repeats a builder's error in its summary, "Build '…' errored after …"; the first one is the cause.
        reason = next(iter(self._packer_errors), "Packer exited without an error message")
        # Why EC2 terminated the builder is a line of its own.
        if details := next((each for each in self._packer_errors[1:] if each.startswith(_STATE_CHANGE)), ""):
            return f"{reason}; {details}"
        # "failed to handshake": why is what Ansible says of the host that it could not reach.
        return f"{reason}: {self.play.failures[0]}" if self.play.lost and self.play.failures else reason

    def tail(self) -> list[str]:
        """The last lines, as a person reads them."""
        return list(self._last)

    def _read(self, kind: str, text: str) -> None:
        if not text.strip():
            return
        self._log.write(f"{time.monotonic() - self._started:8.1f}  {text}\n")
        self._log.flush()
        self._last.append(text)
        playing = self.play.playing  # current Packers say Ansible's lines as if they were their own
        if not self.play.line(text) and kind == "say" and not playing and not _DETAIL.match(text):
            self.play.end()
            self._note(text)
        if (builder := _BUILDER.match(text.strip())) and self._on_builder:
            self._on_builder(builder["id"])


def _record(raw: str) -> tuple[str, str]:
    """(kind, text) of one line: kind is say, message or error for what a person reads, else the record's own type."""
    fields = raw.split(",", 4)
    if len(fields) < 4 or not fields[0].isdigit():
        return "plain", raw
    text = ",".join(fields[4:]) if fields[2] == "ui" else ",".join(fields[3:])
    for escape, meant in _ESCAPES.items():
        text = text.replace(escape, meant)
    return (fields[3], text) if fields[2] == "ui" else (f"record {fields[2]}", text)


LAUNCHED = "launched"  # the template of a builder that gpu-ami launched
MANIFEST_FILE, LOG_FILE = "packer-manifest.json", "build.log"
BUILD_SECONDS = 2 * 3600.0
_POLL_SECONDS = 2
# Ctrl-C: Packer terminates its instance and deletes its key and group, which it waits for. The waiters of amazon
# 1.8.2 double the time between two polls up to 120 s: an instance that needs two minutes is seen as ended after four.
CLEANUP_SECONDS = 300.0
MITOGEN_SOCKET, _SOCKET_PATH_BYTES = "/mitogen_unix_12345678.sock", 107  # unix(7): sun_path, without its NUL
_FIRST_WITH_PLUGINS = (1, 7)
_ARTIFACT = re.compile(r"[a-z0-9-]{1,32}:ami-[0-9a-f]{8,17}")


@dataclass(frozen=True)
class Made:
    """What a build left: the AMI's id, its region, the manifest's record of it, and what Ansible did."""

    ami: str
    region: str
    record: Mapping[str, object]
    converged: Converged | None = None


@dataclass(frozen=True)
class Packer:
    """An installed Packer: its program and version."""

    program: str
    version: tuple[int, int, int]

    @staticmethod
    def find() -> Packer:
        """The one on the PATH (or $PACKER). MissingTool where there is none."""
        program = _named_program() or find_tool("packer", package="packer")
        shown = run([program, "version"], timeout=30, env={"CHECKPOINT_DISABLE": "1"}, error=BuildError).stdout
        release = re.search(r"Packer v(\d+)\.(\d+)\.(\d+)", shown)
        if not release:
            raise MissingTool(
                f"{program} is not Packer; version output: {shown.strip()!r}", hint="apt-get install packer"
            )
        return Packer(program, (int(release[1]), int(release[2]), int(release[3])))

    @property
    def has_plugins(self) -> bool:
        """Whether builders are plugins of their own (`packer init`), and with them newer settings known."""
        return self.version >= _FIRST_WITH_PLUGINS

    def plugins(self) -> list[str]:
        """Installed plugins with their versions, such as `amazon 1.8.2`. BuildError: Packer did not list them."""
        shown = run([self.program, "plugins", "installed"], timeout=30, env=_quiet(), error=BuildError).stdout
        return [f"{name} {version}" for name, version in re.findall(r"packer-plugin-(\w+?)_v([\d.]+(?:-\w+)?)_", shown)]

    def missing_plugins(self, root: Path) -> list[str]:
        """Plugins that the template requires in versions that are not installed, such as `amazon ~> 1.8`."""
        command: list[str | Path] = [self.program, "plugins", "required", self.template(root)]
        shown = run(command, timeout=30, env=_quiet(), check=False, error=BuildError).stdout
        required = re.findall(r'^(\w+) \S+ "([^"]+)"(.*)$', shown, re.MULTILINE)
        return sorted(f"{name} {versions}" for name, versions, installed in required if not installed.strip())

    def template(self, root: Path) -> Path:
        """The template's directory that this version understands; `root` is packer/."""
        return root / "current" if self.has_plugins else root


def _named_program() -> str:
    """The program of $PACKER, as it is named there; "" where the variable is not set."""
    program = os.environ.get("PACKER", "")
    if program and shutil.which(program) is None:
        hint = "PACKER names Packer's executable file; without it, gpu-ami takes the first packer in PATH"
        raise MissingTool(f"PACKER={program}: no such program", hint=hint)
    return program


def format_check(root: Path) -> None:
    """`packer fmt -check`. BuildError shows what it would change."""
    packer = Packer.find()
    for folder in (root, root / "current", root / LAUNCHED):
        run([packer.program, "fmt", "-check", "-diff", folder], timeout=60, env=_quiet(), error=BuildError)


def validate(root: Path, folder: Path, place: Place) -> None:
    """`packer validate` with the var-file in `folder`. BuildError says what Packer said."""
    packer = Packer.find()
    _initialise(packer, root)
    command = [packer.program, "validate", f"-var-file={folder / PACKER_FILE}"]
    command += [f"-var={name}={value}" for name, value in _ansible(place, folder).items()]
    run([*command, packer.template(root)], timeout=120, env=_quiet() | place.api.environment(), error=BuildError)


@dataclass(frozen=True)
class PackerRun:
    """One run of the template in `root` with the plan's files in `folder`.

    expires: RFC 3339. before_launch: called with the program before it is started; its error is the build's.
    on_builder: called with the builder's instance id as soon as it is known. variables: override the plan's, such as
    the source AMI that was looked up. records: folder of manifest and log, if another. template: a folder below `root`
    in place of that for this Packer; LAUNCHED makes no image, and `Made.ami` is "".
    """

    root: Path
    folder: Path
    place: Place
    run_id: str
    expires: str
    key_name: str
    progress: Progress
    poll_seconds: int = _POLL_SECONDS
    timeout: float = BUILD_SECONDS
    on_builder: Callable[[str], None] | None = None
    before_launch: Callable[[Packer], object] | None = None
    variables: Mapping[str, str] = field(default_factory=dict)
    records: Path | None = None
    template: str | None = None


def build(packer_run: PackerRun) -> Made:
    """Runs Packer; leaves packer-manifest.json and build.log.

    On Ctrl-C and on a deadline Packer removes what it created before it ends. BuildError: Packer or Ansible failed.
    CapacityError, CloudError: AWS refused a call.
    """
    packer = Packer.find()
    if packer_run.before_launch is not None:
        packer_run.before_launch(packer)
    folder, place = packer_run.folder.resolve(), packer_run.place
    records = (packer_run.records or folder).resolve()
    _initialise(packer, packer_run.root)
    (records / MANIFEST_FILE).unlink(missing_ok=True)
    values = {
        "run_id": packer_run.run_id,
        "expires": packer_run.expires,
        "key_pair_name": packer_run.key_name,
        "manifest_file": str(records / MANIFEST_FILE),
        **_ansible(place, folder),
        **packer_run.variables,
    }
    command: list[str | Path] = [packer.program, "build", "-machine-readable", "-color=false"]
    command += [f"-var-file={folder / PACKER_FILE}", *(f"-var={name}={value}" for name, value in values.items())]
    run_folder = _run_folder(packer_run.run_id)
    # A Packer that was killed has left its builder, key and group: the run's record stays for `sweep`.
    on_kill = functools.partial(runs.leave_behind, run_folder) if run_folder else None
    with (
        tempfile.TemporaryDirectory(prefix="packer-", dir=run_folder) as private,
        short_folder(private) as temporary,
        (records / LOG_FILE).open("w", encoding="utf-8") as log,
    ):
        reader = Reader(
            log,
            packer_run.progress.note,
            packer_run.on_builder,
            lambda number, task: packer_run.progress.update(task, step=number),
        )
        try:
            done = run(
                [
                    *command,
                    packer_run.root / packer_run.template if packer_run.template else packer.template(packer_run.root),
                ],
                timeout=packer_run.timeout,
                # The second names the run's folder, by which `sweep` finds what a killed run has left.
                env=_quiet()
                | place.api.environment()  # the plugin ignores custom_endpoint_ec2 for some calls, not AWS_ENDPOINT_URL
                | _polling(packer_run.poll_seconds, packer_run.timeout)
                | {"TMPDIR": temporary, "GPU_AMI_BUILD": f"{private}/"},
                # The caller's AWS_ENDPOINT_URL_EC2 would have precedence over the place's own endpoint.
                without=tuple(place.api.environment().keys() & {"AWS_ENDPOINT_URL"}),
                check=False,
                on_line=reader.line,
                stop_with=signal.SIGINT,
                grace=CLEANUP_SECONDS,
                on_kill=on_kill,
                error=BuildError,
            )
        finally:
            reader.end()
            for text in reader.left:
                packer_run.progress.note(f"not removed: {text}")
                if run_folder:
                    runs.leave_behind(run_folder)
    if done.returncode != 0:
        error = build_failure(done.returncode, reader, records / LOG_FILE)
        error.details = (*error.details, *(f"not removed: {text}" for text in reader.left))
        raise error
    converged = reader.play.converged
    if converged:
        packer_run.progress.note(f"Ansible: {converged.text()}")
    return dataclasses.replace(read_manifest(records / MANIFEST_FILE, packer_run.run_id), converged=converged)


def build_failure(returncode: int, reader: Reader, log: Path) -> GpuAmiError:
    """CapacityError or CloudError where AWS refused a call of Packer's; else BuildError with the reason."""
    hint = f"the complete output of Packer and Ansible: {log}"
    refused = None if reader.play.failed and reader.play.failures else aws_errors.from_text("Packer", reader.reason)
    if refused is not None:
        refused.details = (*refused.details, hint)
        return refused
    return BuildError(f"Packer failed (exit code {returncode}): {reader.reason}", details=reader.tail(), hint=hint)


def read_manifest(path: Path, run_id: str) -> Made:
    """The last build in Packer's manifest. BuildError where it is missing, not JSON, or of another run."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))["builds"][-1]
        region, _, ami = record["artifact_id"].rpartition(":") if record.get("builder_type") != "null" else ("", "", "")
        built_by = (record.get("custom_data") or {}).get("run_id")
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise BuildError(f"{path}: not a manifest of Packer's ({error})", hint="is `manifest` last?") from error
    if built_by != run_id:
        raise BuildError(f"{path}: is of run {built_by}, not of {run_id}", hint="do two builds share one folder?")
    return Made(ami, region, record)


def ami_of_manifest(path: Path, region: str) -> str:
    """The AMI of the last run in the manifest of any Packer template. region: "" for any.

    UsageError: it is no manifest (of the post-processor `manifest`), or the run wrote none or several AMIs there.
    """
    hint = 'the post-processor writes it: post-processor "manifest" { output = "packer-manifest.json" }'
    try:
        document = parse_json(read_text(path))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a manifest of Packer's ({error})", hint=hint) from error
    if not (isinstance(document, dict) and isinstance(document.get("builds"), list)):
        raise UsageError(f"{path}: not a manifest of Packer's (expected an object with a list `builds`)", hint=hint)
    builds = [build for build in document["builds"] if isinstance(build, dict)]
    last = document.get("last_run_uuid")
    of_last = [build for build in builds if build.get("packer_run_uuid") == last]
    builds = of_last if last is not None else builds[-1:]
    artifacts = [part for build in builds for part in str(build.get("artifact_id", "")).split(",")]
    amis = dict.fromkeys(part.strip() for part in artifacts if _ARTIFACT.fullmatch(part.strip()))
    fitting = [artifact.partition(":")[2] for artifact in amis if not region or artifact.startswith(f"{region}:")]
    if len(dict.fromkeys(fitting)) == 1:
        return fitting[0]
    others = textwrap.shorten(", ".join(filter(None, artifacts)), 200)
    found = ", ".join(amis) or (f"no AMI ({others})" if others else "no AMI")
    where = f" in {region}" if region else ""
    raise UsageError(f"{path}: expected one AMI of the last run{where}, got {found}", hint="name one with --ami")


def _run_folder(run_id: str) -> Path | None:
    """The registered run's private folder: Packer's SSH key lies there, so that it goes with a run that was killed."""
    return next((record.folder for record in runs.records(home_dir()) if record.id == run_id), None)


@contextlib.contextmanager
def short_folder(folder: str) -> Iterator[str]:
    """A path of a folder that is short enough for sockets in it: its own, or one by a link.

    Packer's plugins and Ansible's strategy have their sockets in TMPDIR. Where the path is too long, as below a long
    home directory, Packer crashes, or Ansible prints a traceback and waits without end.
    """
    if len(os.fsencode(folder)) + len(MITOGEN_SOCKET) <= _SOCKET_PATH_BYTES:
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as place:
        link = Path(place, "run")
        link.symlink_to(folder)
        yield str(link)


def _initialise(packer: Packer, root: Path) -> None:
    """Plugins of Packer 1.7 and later: does nothing where the pinned ones are installed."""
    if not packer.has_plugins:
        return
    command: list[str | Path] = [packer.program, "init", packer.template(root)]
    done = run(command, timeout=600, env=_quiet(), check=False, error=BuildError)
    if done.returncode != 0:
        raise MissingTool(
            "`packer init` could not install the pinned plugins",
            details=[_pinned(packer, packer.template(root)), *describe(done)[:12]],
            hint="without a network: `packer plugins install --path BINARY github.com/hashicorp/amazon`, "
            "and the same for github.com/hashicorp/ansible",
        )


def _pinned(packer: Packer, template: Path) -> str:
    """The plugins that the template requires, and those that are installed."""
    text = (template / "build.pkr.hcl").read_text(encoding="utf-8")
    required = re.findall(r'(\w+) = \{\s*source\s*=\s*"[^"]+"\s*version\s*=\s*"([^"]+)"', text)
    expected = ", ".join(f"{name} {version}" for name, version in required)
    return f"expected {expected}; installed: {', '.join(packer.plugins()) or 'none'}"


def _ansible(place: Place, folder: Path) -> dict[str, str]:
    """Variables for our own ansible-playbook, which was found here; its environment is the plan's and the place's."""
    variables = {"ansible_command": ansible_playbook(), "skip_ansible_check": "true"}
    settings = [
        *(read_json(folder / PACKER_FILE) or {}).get("ansible_env_vars", []),
        *ansible_settings(slow_python=place.machines.slow_python),
    ]
    return variables | ({"ansible_env_vars": json.dumps(settings)} if settings else {})


def _quiet() -> dict[str, str]:
    """No look for newer versions, no debug log (it would hold every variable), no colour, no HCP Packer.

    HCP Packer, which variables of the caller turn on, gets a build's data, and runs the provisioners that it enforces.
    """
    return {
        "CHECKPOINT_DISABLE": "1",
        "HCP_PACKER_REGISTRY": "off",
        "PACKER_LOG": "0",
        "PACKER_NO_COLOR": "1",
        "ANSIBLE_NOCOLOR": "1",
    }


def _polling(seconds: int, timeout: float) -> dict[str, str]:
    return {"AWS_POLL_DELAY_SECONDS": str(seconds), "AWS_MAX_ATTEMPTS": str(int(timeout / seconds) + 1)}
