"""The command line: parses, calls one command, prints its outcome, and turns errors into messages and exit codes."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import re
import signal
import sys
import traceback
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn

from gpu_ami import __version__, commands, environment, foreign_text, out_lock
from gpu_ami.errors import CloudError, GpuAmiError, InternalError, UsageError, end_as_by_ctrl_c
from gpu_ami.progress import Display, Progress
from gpu_ami.region import provider
from validator.schema import did_you_mean

_EPILOG = """\
all stages:     gpu-ami prove debian12-gpu                     in the local region: no AWS account, no GPU
stage by stage: gpu-ami plan debian12-gpu; gpu-ami build; gpu-ami validate; gpu-ami certify
on AWS:         gpu-ami prove debian12-gpu --where aws.yml
your own files: gpu-ami init my-images

exit codes: 0 all that was asked for is proven · 1 the image failed a check · 2 recipe or usage · 3 build failed
            4 cloud, network or machine · 5 no capacity · 6 certificate refused
            7 nothing failed, but checks or restarts were left out on purpose · 8 internal error · 130 interrupted
"""


_COLOURS = {"PASS": 32, "FAIL": 31, "ERROR": 31, "MISSING": 31, "FLAKY": 33, "UNPROVEN": 33, "UNAVAILABLE": 33}
_VERDICT = re.compile(rf"\b(?:{'|'.join(_COLOURS)})\b")


_INVALID_CHOICE = re.compile(r"invalid choice: '(?P<word>[^']*)' \(choose from (?P<names>.*)\)", re.DOTALL)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Commands in groups, which argparse has for options alone: each title stands before its first command."""

    def _format_action(self, action: argparse.Action) -> str:
        text = super()._format_action(action)
        titles = {names[0]: title for title, names in commands.GROUPS.items()}
        title = (titles | dict.fromkeys([*provider().commands][:1], "region of this machine")).get(action.dest)
        return f"\n  {title}:\n{text}" if title else text


class _Parser(argparse.ArgumentParser):
    """Raises a mistake in the arguments, so that --json reports it as any other error. Options are not abbreviated."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        usage = self.format_usage().splitlines()
        raise UsageError(message + self._nearest(message), details=usage, hint=f"{self.prog} --help")

    def _nearest(self, message: str) -> str:
        """`; did you mean X?` for a misspelt command, choice or option; else ""."""
        if choice := _INVALID_CHOICE.search(message):
            return did_you_mean(choice["word"], re.findall(r"[\w.-]+", choice["names"]))
        if message.startswith("unrecognized arguments: -"):
            word, options = message.split()[2].partition("=")[0], self._options()
            if word in options:
                return f"; {word} is an option of other commands, and stands after its command"
            return did_you_mean(word, options)
        return ""

    def _options(self) -> set[str]:
        """The options of this parser and of its commands."""
        names = set(self._option_string_actions)
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                names |= {name for parser in action.choices.values() for name in parser._options()}
        return names


def _require_values(words: Sequence[str]) -> None:
    """UsageError: an argument is an empty text, as from a shell variable that is not set (`-o "$OUT"`)."""
    for before, word in zip(["", *words], words, strict=False):
        if not word:
            place = before if before.startswith("-") else "an argument"
            raise UsageError(f"{place}: expected a value, got an empty text", hint="is a shell variable not set?")


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; it imports every command."""
    parser = _Parser(
        prog="gpu-ami",
        description="Builds GPU AMIs, boots them, proves metrics, logs and Xid capture, and certifies the result.",
        epilog=_EPILOG,
        formatter_class=_Help,
    )
    parser.add_argument("--version", action="version", version=f"gpu-ami {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (*(f"gpu_ami.commands.{name}" for name in commands.NAMES), *provider().commands.values()):
        import_module(module).register(subparsers)
    for subparser in set(subparsers.choices.values()):
        _common_options(subparser)
    return parser


def _common_options(parser: argparse.ArgumentParser, default: object = False) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    group = parser.add_argument_group("output")
    options = {
        ("--json",): "print the result as JSON, progress as JSON lines on stderr; `python -m gpu_ami.json_schemas"
        " commands` prints the schema",
        ("-q", "--quiet"): "print no progress",
        ("--debug",): "print a traceback on errors",
    }
    for names, text in options.items():
        group.add_argument(*names, action="store_true", default=default, help=text)
    for verb in set(verbs_of(parser).values()):  # `region status --json`: what stands before the verb stays
        _common_options(verb, argparse.SUPPRESS)


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a command's verbs by name. argparse has no public way to them."""
    actions = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: verb for action in actions for name, verb in action.choices.items()}


def _is_terminal(stream: IO[str]) -> bool:
    """Whether colour and cursor movement are welcome on a stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb" and not os.environ.get("NO_COLOR")


def _progress_mode(args: argparse.Namespace) -> str:
    if args.quiet:
        return "quiet"
    if args.json:
        return "json"
    return "terminal" if _is_terminal(sys.stderr) and not os.environ.get("CI") else "plain"


@contextlib.contextmanager
def _progress(args: argparse.Namespace) -> Iterator[Progress]:
    """Progress on stderr; the terminal is left as it was."""
    progress = Progress(_progress_mode(args), display=_live_display)
    try:
        yield progress
    finally:
        progress.close()


def _live_display(stream: IO[str]) -> Display:
    from gpu_ami.terminal import LiveDisplay  # imports rich, which takes a while

    return LiveDisplay(stream)


def print_outcome(outcome: commands.Outcome, args: argparse.Namespace) -> None:
    """Print the result of a command: JSON where it is asked for, else its text."""
    if args.json and outcome.data is not None:
        print(foreign_text.json_text(outcome.data, indent=2))
        return
    shown = _coloured if _is_terminal(sys.stdout) else str
    if isinstance(outcome.text, str):
        if outcome.text:
            print(shown(foreign_text.printed(outcome.text)))
    else:
        for line in outcome.text:
            print(shown(foreign_text.printed(line)), flush=True)


def _coloured(text: str) -> str:
    return _VERDICT.sub(lambda word: f"\x1b[{_COLOURS[word[0]]}m{word[0]}\x1b[0m", text)


class _Interrupted(GpuAmiError):
    exit_code = 130


def _interrupted(interrupt: KeyboardInterrupt, args: argparse.Namespace) -> _Interrupted:
    """What became of what the command had started: a run that could not clean up says so itself (cloud/runs.py)."""
    if len(interrupt.args) == 2:
        return _Interrupted(interrupt.args[0], hint=interrupt.args[1])
    message = getattr(args, "interrupted", "interrupted; everything it started was cleaned up")
    return _Interrupted(message, hint=getattr(args, "again", ""))


def _fail(error: GpuAmiError, *, as_json: bool, command: str = "") -> int:
    """Reports an error, under --json on the stream of the result. Returns the exit code."""
    if as_json:
        print(foreign_text.json_text(error.to_json()))
    else:
        print(foreign_text.printed(f"gpu-ami{f' {command}' if command else ''}: {error}"), file=sys.stderr)
    return error.exit_code


def _of_the_system(error: OSError) -> GpuAmiError:
    """A file or a stream that cannot be used: the disk is full, a folder is missing or may not be written."""
    path = error.filename or "standard output"
    message = f"{os.fsdecode(path) if isinstance(path, bytes) else path}: {error.strerror or error}"
    return CloudError(message, hint="this says nothing about the image: correct it, and run the command again")


def _of_gpu_ami(error: Exception) -> GpuAmiError:
    """A defect: where it was raised, in one line; --debug prints the traceback."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    message = f"internal error: {type(error).__name__}{f': {error}' if str(error) else ''}{where}"
    hint = "a defect of gpu-ami, not of the image: report it with the output of the same command with --debug"
    return InternalError(message.replace("\n", " "), hint=hint)


def _prepare_streams() -> None:
    """Characters that a stream cannot encode are printed as escapes; a closed stream is replaced."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115  (for the length of the process)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _silence(*names: str) -> None:
    """Nobody reads these streams any more, and the interpreter flushes them at its end."""
    for name in names:
        setattr(sys, name, open(os.devnull, "w"))  # noqa: PTH123, SIM115


_PIPE_CLOSED = 128 + signal.SIGPIPE  # the reader of the output ended before the command had


def _reported(error: GpuAmiError, as_json: bool, command: str = "") -> int:
    """Prints an error where that is still possible. Returns the exit code."""
    try:
        code = _fail(error, as_json=as_json, command=command)
        sys.stdout.flush()
        sys.stderr.flush()
        return code
    except OSError:
        _silence("stdout", "stderr")
        return error.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code."""
    words = sys.argv[1:] if argv is None else argv
    _prepare_streams()
    try:
        _require_values(words)
        args = make_parser().parse_args(words)
    except UsageError as error:
        return _reported(error, "--json" in words)
    end_as_by_ctrl_c()
    outcome: commands.Outcome | None = None
    try:
        with _progress(args) as progress:
            if left_out := environment.note():
                progress.note(left_out)
            outcome = args.execute(args, progress)
        print_outcome(outcome, args)
        sys.stdout.flush()
        return outcome.exit_code
    except KeyboardInterrupt as interrupt:
        return _reported(_interrupted(interrupt, args), args.json, args.command)
    except BrokenPipeError:
        _silence("stdout", "stderr")
        return outcome.exit_code if outcome else _PIPE_CLOSED
    except Exception as error:
        if args.debug:
            raise
        return _reported(_as_message(error), args.json, args.command)
    finally:
        out_lock.release()


def _as_message(error: Exception) -> GpuAmiError:
    if isinstance(error, GpuAmiError):
        return error
    if isinstance(error, OSError):
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO):
            _silence("stdout")
        return _of_the_system(error)
    return _of_gpu_ami(error)


def entry() -> None:
    """The program `gpu-ami`."""
    try:
        environment.prepare()
    except UsageError as error:
        sys.exit(_reported(error, "--json" in sys.argv))
    sys.exit(main())


if __name__ == "__main__":
    entry()
