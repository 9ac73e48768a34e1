"""`--hosts=transcript://PATH`: a machine of which only files, outputs of commands and package lists are known.

PATH (percent-encoded) is a folder with a transcript.yml (docs/transcripts.md). Checks run as on any host. A command is
answered from the transcript, or run by bash over its file tree with tools that only read; one that asks for a file, a
program or an option that the transcript does not have ends its check: UNPROVEN, "not in the transcript".
"""

from __future__ import annotations

import fnmatch
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.backend import base

from validator.transport import transcript_values

NOT_IN = "not in the transcript"
# Tools that say the same on every machine: they read what they are given.
_TOOLS = (
    "awk", "basename", "cat", "comm", "cut", "dirname", "expr", "grep", "head", "ls", "mkfifo", "od", "readlink", "sed",
    "sort", "tail", "tr", "true", "uniq", "wc", "xargs",
)  # fmt: skip
_TOP = "sys|proc|etc|dev|opt|usr|var|run|boot|lib|lib64|bin|sbin|home|root|tmp|srv|mnt"
_PATH = re.compile(rf"(?<![\w.$}}/*?\]-])/(?:{_TOP})(?![\w-])(?:/[\w.@%+:*?\[\]{{}},~=$-]*)*")
_ALWAYS = ("/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr")
_META = re.compile(r"[|&;<>()$`\\\"'*?\[#~{}\n]")
_SECONDS = 20.0
_BASH = shutil.which("bash") or "/bin/bash"
_UNKNOWN_PROGRAM = 'command_not_found_handle() { echo "program $1" >&7; return 127; }\n'


class Missing(Exception):
    """What was asked for is not in the transcript; the message says what."""


class Transcript:
    """A transcript as a tree of files and a folder of programs, until `close`."""

    def __init__(self, folder: Path) -> None:
        self.values = transcript_values.load(folder)
        self._temporary = tempfile.TemporaryDirectory(prefix="gpu-ami-transcript-")
        base_folder = Path(self._temporary.name).resolve()
        self.root, self.programs = base_folder / "root", base_folder / "bin"
        self._missed = base_folder / "missed"
        self._answers: dict[str, tuple[int, str, str]] = {}
        self._write()

    def close(self) -> None:
        self._temporary.cleanup()

    def _write(self) -> None:
        self.root.mkdir()
        self.programs.mkdir()
        for path, text in self.values.files.items():
            target = self._inside(path)
            target.write_text(text, encoding="utf-8")
            target.chmod(0o755 if path in self.values.programs else 0o644)
        for path, destination in self.values.links.items():
            link = self._inside(path)
            if destination.startswith("/") and destination not in _ALWAYS:  # stays in the tree
                up = "../" * (len(link.relative_to(self.root).parts) - 1)
                destination = f"{up}{destination.lstrip('/')}"
            link.symlink_to(destination)
        for path in self.values.listed:
            (self.root / path.lstrip("/")).mkdir(parents=True, exist_ok=True)
        for tool in _TOOLS:
            found = shutil.which(tool, path="/usr/bin:/bin")
            if found:
                (self.programs / tool).symlink_to(found)
        by_program: dict[str, list[tuple[list[str], transcript_values.Output]]] = {}
        for command, output in self.values.commands.items():
            if not _META.search(command.removesuffix(" *")):
                program, *words = shlex.split(command)
                by_program.setdefault(program, []).append((words, output))
        for program, known in by_program.items():
            self._stub(program, known)

    def _stub(self, program: str, known: list[tuple[list[str], transcript_values.Output]]) -> None:
        """A program that prints what the transcript has of it, and says what it has not."""
        cases = []
        for number, (words, output) in enumerate(known):
            texts = []
            for stream, text in (("1", output.stdout), ("2", output.stderr)):
                path = self.programs / f".{program.replace('/', '_')}.{number}.{stream}"
                path.write_text(text, encoding="utf-8")
                texts.append(f"/bin/cat {shlex.quote(str(path))} >&{stream}")
            known_words = " ".join(words).removesuffix("*")
            pattern = f"{shlex.quote(known_words)}*" if words[-1:] == ["*"] else shlex.quote(known_words)
            cases.append(f"{pattern}) {'; '.join(texts)}; exit {output.status} ;;")
        missed = f'echo "{program} $*" >> {shlex.quote(str(self._missed))}; echo "{NOT_IN}" >&2; exit 127'
        stub = self._inside(program) if program.startswith("/") else self.programs / program
        if stub.exists() or stub.is_symlink():
            stub.unlink()
        stub.write_text('#!/bin/sh\ncase "$*" in\n{}\nesac\n{}\n'.format("\n".join(cases), missed), encoding="utf-8")
        stub.chmod(0o755)

    def _inside(self, path: str) -> Path:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def answer(self, command: str) -> tuple[int, str, str]:
        """(exit status, standard output, errors). Missing: something that the command asks for is not here."""
        text = command.strip()
        if text not in self._answers:
            self._answers[text] = self._answer(text)
        return self._answers[text]

    def is_sourced(self, command: str) -> bool:
        """Whether everything in the answer has a source, and nothing was composed."""
        return not self.values.is_composed(command.strip(), list(self._paths(command)))

    def _answer(self, text: str) -> tuple[int, str, str]:
        output = self.values.output(text)
        if output is not None:
            return output.status, output.stdout, output.stderr
        if not _META.search(text):
            words = shlex.split(text)
            known = (self.programs / words[0]).exists() or words[0] in ("test", "[", "command", "echo", "cd")
            if not known and not words[0].startswith("/"):
                raise Missing(f"the output of {words[0]}")
        if re.search(r"\bcommand -v\b|\bpython3? |(?:^|[;&|({]\s*)env ", text):
            raise Missing("the programs of the machine")
        for path in self._paths(text):
            self._require(path)
        return self._run(text)

    def _paths(self, text: str) -> Iterator[str]:
        for match in _PATH.finditer(text):
            path = match[0].rstrip(",:;=")
            if path not in _ALWAYS:
                yield path

    def _require(self, path: str) -> None:
        """Missing, unless the transcript has the path, or says that there is none."""
        parts = path.rstrip("/").split("/")
        prefixes = ["/".join(parts[:length]) for length in range(2, len(parts) + 1)]
        if any(fnmatch.fnmatchcase(prefix, absent) for prefix in prefixes for absent in self.values.absent):
            return
        at = ""
        for number, part in enumerate(parts[1:], 1):
            if re.search(r"[*?\[{$]", part):
                if at not in self.values.listed:
                    raise Missing(f"what is in {at or '/'}")
                rest = "/".join(parts[number + 1 :])
                for entry in (self.root / at.lstrip("/")).iterdir() if rest and "$" not in part else ():
                    if fnmatch.fnmatchcase(entry.name, part):
                        self._require(f"{at}/{entry.name}/{rest}")
                return
            parent, at = at, f"{at}/{part}"
            here = self.root / at.lstrip("/")
            if not here.exists() and not here.is_symlink():
                if parent in self.values.listed:
                    return
                raise Missing(path)

    def _run(self, text: str) -> tuple[int, str, str]:
        rewritten = _PATH.sub(lambda match: match[0] if match[0] in _ALWAYS else f"{self.root}{match[0]}", text)
        self._missed.write_text("", encoding="utf-8")
        done = subprocess.run(
            [_BASH, "-c", f"exec 7>>{shlex.quote(str(self._missed))}\n{_UNKNOWN_PROGRAM}{rewritten}"],
            cwd=self.root, stdin=subprocess.DEVNULL, capture_output=True, timeout=_SECONDS,
            env={"PATH": str(self.programs), "LC_ALL": "C.UTF-8", "HOME": "/root"},
        )  # fmt: skip
        missed = self._missed.read_text(encoding="utf-8").splitlines()
        if missed:
            raise Missing(f"the output of {missed[0].removeprefix('program ')}")
        out, err = (part.decode("utf-8", "replace").replace(str(self.root), "") for part in (done.stdout, done.stderr))
        return done.returncode, out, err


_transcripts: dict[Path, Transcript] = {}
# What was asked, in order: pytest's name of the check, the command, whether nothing in the answer was composed.
trace: list[tuple[str, str, bool]] = []


def transcript_of(folder: Path) -> Transcript:
    """One tree for each folder in this process."""
    if folder not in _transcripts:
        _transcripts[folder] = Transcript(folder)
    return _transcripts[folder]


def opened() -> list[Transcript]:
    """The transcripts that checks of this process have asked."""
    return list(_transcripts.values())


def close_all() -> None:
    for transcript in _transcripts.values():
        transcript.close()
    _transcripts.clear()


class TranscriptBackend(base.BaseBackend):  # type: ignore[misc]
    """The backend of `--hosts=transcript://PATH`."""

    NAME = "transcript"

    def __init__(self, hostspec: str, **_: Any) -> None:
        self.folder = Path(urllib.parse.unquote(hostspec))
        super().__init__(str(self.folder))
        self.transcript = transcript_of(self.folder)

    @property
    def instance_type(self) -> str:
        return self.transcript.values.machine

    def get_pytest_id(self) -> str:
        return f"transcript://{self.folder}"

    @property
    def encoding(self) -> str:
        return "utf-8"

    def decode(self, data: bytes) -> str:
        return data.decode("utf-8", errors="replace")

    def encode(self, data: str) -> bytes:
        return data.encode()

    def run(self, command: str, *args: str, **_: Any) -> base.CommandResult:
        """The command's answer. Ends the check as UNPROVEN where the transcript has none."""
        __tracebackhide__ = True
        text = self.get_command(command, *args)
        try:
            status, out, err = self.transcript.answer(text)
        except Missing as missing:
            pytest.skip(f"{NOT_IN}: {missing}")
        trace.append((os.environ.get("PYTEST_CURRENT_TEST", ""), text, self.transcript.is_sourced(text)))
        return self.result(status, text.encode(), out.encode(), err.encode())
