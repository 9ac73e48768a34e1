"""Batches: the commands of parked checks that are sent at once to a host, and their answers.

Commands of a batch that one process can answer are joined: each gets the result that it would have had alone; where the
joint one has no answer for it, it is sent alone.

Package queries: `host.package(name)` runs one `dpkg-query` for each name, and each reads the whole database, some 10 ms
of the host's CPU time. File attributes: `host.file(path)` runs one `stat` for each attribute, and a check asks for them
one after the other: owner, group and mode take three round trips. The first of these commands asks for the others too;
a check that asks for them at once gets what its first one has told (scheduler.py).

A batch whose connection was dropped is sent again only if no command of it may change the host (`changes`). When
unsure, a command is assumed to: that costs a round trip, while the opposite could give a wrong verdict.
"""

from __future__ import annotations

import functools
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from validator.transport import Answer, Command, SshError, backend, shell

# Duplicates of these commands in a batch run once. Other commands, or any with shell syntax, may have an effect.
_PURE = re.compile(
    r"(?:/(?:usr/)?s?bin/)?(test|stat|cat|ls|readlink|realpath|getent|id|uname|grep|find|head|tail|wc|md5sum|sha256sum|dpkg-query|modinfo"
    r"|rpm -q|command -v|sysctl -n|apt-mark showhold"
    r"|systemctl (is-active|is-enabled|is-failed|is-system-running|show|cat|list-\S+))"
    r"( [^;&|<>$`\n]*)?"
    r"|nvidia-smi (-L|-q|-q -x|topo -m|--version|--query-gpu=[\w.,]+ --format=[\w,]+)|ldconfig -p|modprobe --showconfig"
)


Question = tuple[backend.HostLink, bool, str]  # host, whether root asks, command
# Where a command begins: at the start, after a separator, an opening bracket or quote, or a word that runs a command.
_BEGIN = (
    r"(?:^|[;&|({`\n]|(?<![^\s(])['\"]"
    r"|\b(?:sudo|do|then|else|exec|xargs|nohup|time|env|nice|command|eval)(?:\s+-\S+)*\s)\s*"
)
_SET = r"(?:\w+=\S*\s+)*"  # A=b before a command
_PATH = r"(?:/\S*bin/)?"
_VERBS = (
    r"touch|mkdir|rmdir|rm|mv|cp|ln|dd|tee|install|truncate|fallocate|shred|unlink|mktemp|mkfifo|mknod|split"
    r"|chmod|chown|chgrp|chattr|setfacl|restorecon|setenforce|setsebool|pkill|killall|umount|swapoff"
    r"|mkfs\S*|losetup|modprobe|rmmod|insmod|depmod|useradd|userdel|usermod|adduser|deluser|groupadd|groupdel"
    r"|groupmod|passwd|chpasswd|gpasswd"
    r"|shutdown|logger|wall|rsync|scp|unzip|gzip|gunzip|xz|unxz|patch|make|logrotate"
    r"|ssh-keygen|update-\S+|sysctl\s+-[wp]|systemd-run|systemd-tmpfiles|udevadm trigger"
)
_WITH = (
    r"systemctl\s(?:.*\s)?(?:start|stop|restart|reload|try-\S+|enable|disable|mask|unmask|kill|isolate|edit|set-\S+"
    r"|reset-failed|daemon-re\S+|preset|link|revert|reboot|poweroff|halt|suspend|clean|freeze|thaw)\b"
    r"|service\s+\S+\s+(?:start|stop|restart|reload)|initctl\s+(?:start|stop|restart|reload)"
    r"|rpm\s(?:.*\s)?(?:-[iUeF]|--(?:install|upgrade|erase|import))|dpkg\s(?:.*\s)?(?:-[irP]\b|--(?:install|remove|purge))"
    r"|(?:mount|swapon)\s+(?:-[aoB]\b|--(?:all|bind|move)|[^-|;&\s])|ldconfig(?:\s*$|\s+(?!-p|--print-cache))|dkms\s+(?!status)"
    r"|(?:apt|apt-get|aptitude|dnf|yum|zypper|apk|pacman|snap|pip3?|gem|npm|cargo)\s(?:.*\s)?(?:(?:re|un|group|local)?install"
    r"|remove|purge|erase|update|upgrade|dist-upgrade|full-upgrade|autoremove|clean|add|del|rm|download|config-manager"
    r"|makecache|refresh|ci|-[SRU]\w*)(?=\s|$|['\"])"
    r"|kill\s+(?!-0\b|-l\b)|wget\s(?!.*-\w*O\s*-|--version)"
    r"|apt-mark\s+(?:hold|unhold|auto|manual)|(?:perl|sed)\s(?:.*\s)?-\w*i|tar\s+-?\w*[xcru]"
    r"|curl\s(?:.*\s)?(?:-\w*[oOTd]|-X|--(?:output|remote-name|data|request|upload))|crontab\s+(?!-l)"
    r"|git\s(?:.*\s)?(?:clone|pull|checkout|commit|reset|fetch|init|config)\b"
    r"|(?:docker|podman|nerdctl|ctr|crictl|kubectl|helm)\s(?:.*\s)?(?:run|start|stop|restart|rm|rmi|kill|pull|push"
    r"|build|exec|create|apply|delete|load|tag|prune|compose|cp|install)\b"
    r"|(?:hostnamectl|timedatectl|localectl|loginctl)\s+(?:set-|terminate|kill|enable|disable)|date\s+(?:.*\s)?(?:-s|--set)"
    r"|journalctl\s(?:.*\s)?--(?:rotate|vacuum|flush|sync)|dmesg\s(?:.*\s)?(?:-[cCnDE]\b|--clear)"
    r"|ip6?tables\s(?:.*\s)?-[AIDFPXNRZ]\b|nft\s+(?:add|delete|flush|insert)"
    r"|ip\s(?:.*\s)?(?:add|del|delete|set|flush|change|replace)\b|ifconfig\s+\S+\s+\S|tc\s(?:.*\s)?(?:add|del|change|replace)\b"
    r"|nvidia-smi\s(?:.*\s)?(?:-(?:pm|pl|mig|r|e|c|ac|lgc|rgc|lmc|rmc|cc|am|dm|fdm)\b|--(?:gpu-reset|lock|reset|persist|power-limit)|mig\b.*-[cdC])"
    r"|amazon-cloudwatch-agent-ctl\s.*-a\s*(?!\s*status)|aws\s.*\s(?:create|put|delete|update|run|start|stop|terminate)-"
    r"|find\s.*-(?:delete|exec|execdir|ok|fprint)|openssl\s.*-out\b"
)
_NOT_HELP = r"(?!\s+(?:--version|--help|-V|version|help)\s*(?:$|[;&|'\"]))"
_CHANGES = re.compile(rf"{_BEGIN}{_SET}{_PATH}(?:(?:{_VERBS}){_NOT_HELP}\s|(?:reboot|poweroff|halt)(?:\s|$)|{_WITH})")
# Output redirected into a file: not to a descriptor or to /dev/null, and not an arrow or a comparison.
_WRITES = re.compile(
    r"(?:^|[^-=<>])(?:>>|>\||&>|>)(?!\s*(?:&|/dev/(?:null|stdout|stderr|tty|fd)\b)|[=>&)])(?:\s*[^\s=]|\s*$)"
)
_NO_COMMAND = re.compile(r"[<>=!&|]*|.*%\(py\d+\)s.*", re.DOTALL)  # an operator; pytest's rewritten `assert`


def is_pure(request: backend.Request) -> bool:
    """Whether a command only reads, so that one answer serves all who ask it at the same time."""
    return request.pure or _PURE.fullmatch(request.command.text) is not None


def question(request: backend.Request) -> Question:
    """What a request asks, whatever its deadline."""
    return request.link, request.root, request.command.text


class Asker(Protocol):
    """A check that waits for the answer to its command. live: it changes its host."""

    request: backend.Request | None
    live: bool


_Asker = TypeVar("_Asker", bound=Asker)


@dataclass
class Batch(Generic[_Asker]):
    """The commands of one batch to a shell of a host, and the answers or the transport error of all."""

    link: backend.HostLink
    root: bool
    tasks: list[_Asker]
    commands: list[Command] = field(default_factory=list)
    slots: list[int | None] = field(default_factory=list)  # index of each task's answer; None for a constant
    asks: bool = False  # whether the host's constants are not known yet: its shell says them when it starts
    answers: list[Answer] = field(default_factory=list)
    beside: Mapping[int, Mapping[str, Answer]] = field(default_factory=dict)  # by slot; see coalesce.Results
    attempts: int = 1
    fault: SshError | None = None

    def compose(self) -> None:
        self.asks = self.link.fault is None and self.link.known(self.root) is None
        places: dict[str, int] = {}
        self.slots = [self._slot(task, places) for task in self.tasks]

    def _slot(self, task: _Asker, places: dict[str, int]) -> int | None:
        assert task.request is not None
        command = task.request.command
        if self.asks and command.text in shell.CONSTANT:
            return None
        if command.text in places and self.commands[places[command.text]].deadline >= command.deadline:
            return places[command.text]
        if is_pure(task.request):
            places[command.text] = len(self.commands)
        self.commands.append(command)
        return len(self.commands) - 1


def execute(batches: Sequence[Batch[Any]]) -> None:
    """Sends the batches to their host, one after the other. A batch that may change it is not sent again."""
    for batch in batches:
        try:
            resend = not any(task.live for task in batch.tasks) and not any(
                changes(command.text) for command in batch.commands
            )
            send = functools.partial(batch.link.execute, root=batch.root, resend=resend)
            results = execute_joined(batch.commands, send)
            batch.answers, batch.attempts, batch.beside = results.answers, results.attempts, results.beside
        except SshError as fault:
            batch.fault = fault


# The command of testinfra, with one name and no architecture or pattern: others have output in another form.
_PACKAGE = re.compile(r"dpkg-query -f '(\$\{Status\}(?: \$\{Version\})?)' -W ([a-z0-9][a-z0-9+.-]+)")
_ALL = "dpkg-query -f '${{Package}} ${{Status}} ${{Version}}\\n' -W {names}"
_NAMES = 500  # per command: far below the maximum length of an argument of `sh -c`


@dataclass(frozen=True)
class PackageQueries:
    """A coalesce.Joint. queries: by place, the output format and the name of each query."""

    queries: Mapping[int, tuple[str, str]]
    deadline: float

    @property
    def places(self) -> Sequence[int]:
        return list(self.queries)

    @property
    def command(self) -> Command:
        names = dict.fromkeys(name for _, name in self.queries.values())
        return Command(_ALL.format(names=" ".join(names)), self.deadline)

    def part(self, answer: Answer) -> Mapping[int, Answer]:
        if answer.expired:
            return dict.fromkeys(self.queries, answer)
        if answer.rc not in (0, 1):
            return {}
        states: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for line in answer.stdout.decode(errors="replace").splitlines():
            name, _, rest = line.partition(" ")
            status, _, version = rest.rpartition(" ")
            states[name].append((status, version))
        errors = answer.stderr.splitlines(keepends=True)
        parts = {}
        for place, (form, name) in self.queries.items():
            if len(states[name]) == 1:
                status, version = states[name][0]
                text = form.replace("${Status}", status).replace("${Version}", version)
                parts[place] = Answer(0, text.encode(), b"", answer.seconds)
            elif own := [line for line in errors if line.split()[-1:] == [name.encode()]]:
                parts[place] = Answer(1, b"", own[0], answer.seconds)
        return parts

    def beside(self, answer: Answer) -> Mapping[str, Answer]:
        return {}


def join_packages(commands: Sequence[Command]) -> Iterator[PackageQueries]:
    """The package queries of a batch, if there are several with the same deadline."""
    groups: dict[float, list[tuple[int, tuple[str, str]]]] = defaultdict(list)
    for place, command in enumerate(commands):
        if match := _PACKAGE.fullmatch(command.text):
            groups[command.deadline].append((place, (match[1], match[2])))
    for deadline, queries in groups.items():
        for first in range(0, len(queries), _NAMES):
            few = dict(queries[first : first + _NAMES])
            if len(few) > 1:
                yield PackageQueries(few, deadline)


Execute = Callable[[Sequence[Command]], tuple[list[Answer], int]]


class Joint(Protocol):
    """Several commands of a batch as one. places: theirs in the batch; command: what is sent."""

    @property
    def places(self) -> Sequence[int]: ...

    @property
    def command(self) -> Command: ...

    def part(self, answer: Answer) -> Mapping[int, Answer]:
        """By place: the answer to each command that the joint one tells."""

    def beside(self, answer: Answer) -> Mapping[str, Answer]:
        """By command: answers to commands that were not in the batch and that a check may ask next."""


@dataclass(frozen=True)
class Results:
    """The answers to a batch in order, the number of attempts, and by place what was told beside the answer."""

    answers: list[Answer]
    attempts: int
    beside: Mapping[int, Mapping[str, Answer]]


def execute_joined(commands: Sequence[Command], send: Execute) -> Results:
    """Runs the commands by `send`, with those joined that can be."""
    joints: list[Joint] = [*join_packages(commands), *join_stats(commands)]
    joined = {place for joint in joints for place in joint.places}
    sent = [place for place in range(len(commands)) if place not in joined]
    received, attempts = send([*(commands[place] for place in sent), *(joint.command for joint in joints)])
    answers = dict(zip(sent, received, strict=False))
    beside: dict[int, Mapping[str, Answer]] = {}
    for joint, answer in zip(joints, received[len(sent) :], strict=True):
        answers |= joint.part(answer)
        beside |= dict.fromkeys(joint.places, joint.beside(answer))
    unanswered = [place for place in range(len(commands)) if place not in answers]
    if unanswered:  # a package of two architectures, or an unreadable database: dpkg's own output is needed
        received, more_attempts = send([commands[place] for place in unanswered])
        answers |= dict(zip(unanswered, received, strict=True))
        attempts = max(attempts, more_attempts)
    return Results([answers[place] for place in range(len(commands))], attempts, beside)


# The command of testinfra: one attribute, and a path as shlex quotes it.
_STAT = re.compile(r"stat -Lc %([UuGgaYsi]) ([\w./:,+@%=-]+|'[^'\n]*')")
_NUMBERS = "ugaYsi"
_OWNERS = "UG"  # asked only with another of them: who looks them up may be a directory service that does not answer


@dataclass(frozen=True)
class FileAttributes:
    """A coalesce.Joint. asked: by place, the attribute (a format letter of stat); letters: those that are sent."""

    asked: Mapping[int, str]
    path: str
    deadline: float

    @property
    def places(self) -> Sequence[int]:
        return list(self.asked)

    @property
    def letters(self) -> str:
        return _NUMBERS + (_OWNERS if set(_OWNERS) & set(self.asked.values()) else "")

    @property
    def command(self) -> Command:
        form = "\n".join(f"%{letter}" for letter in self.letters)
        return Command(f"stat -Lc '{form}' {self.path}", self.deadline)

    def part(self, answer: Answer) -> Mapping[int, Answer]:
        if answer.rc == 1 and not answer.stdout:  # there is no such file: any of them says so in the same words
            return dict.fromkeys(self.asked, answer)
        told = self._told(answer)
        return {place: told[letter] for place, letter in self.asked.items() if letter in told}

    def beside(self, answer: Answer) -> Mapping[str, Answer]:
        return {f"stat -Lc %{letter} {self.path}": told for letter, told in self._told(answer).items()}

    def _told(self, answer: Answer) -> Mapping[str, Answer]:
        values = answer.stdout.split(b"\n")
        if answer.rc != 0 or answer.stderr or len(values) != len(self.letters) + 1 or values[-1]:
            return {}
        return {
            letter: Answer(0, value + b"\n", b"", answer.seconds)
            for letter, value in zip(self.letters, values, strict=False)
        }


def join_stats(commands: Sequence[Command]) -> Iterator[FileAttributes]:
    """The attributes that a batch asks of each file."""
    files: dict[tuple[str, float], dict[int, str]] = defaultdict(dict)
    for place, command in enumerate(commands):
        if match := _STAT.fullmatch(command.text):
            files[match[2], command.deadline][place] = match[1]
    for (path, deadline), asked in files.items():
        yield FileAttributes(asked, path, deadline)


@functools.cache
def changes(text: str) -> bool:
    """Whether a shell command may change something on its host."""
    if _NO_COMMAND.fullmatch(text):
        return False
    return _CHANGES.search(text) is not None or _WRITES.search(text) is not None
