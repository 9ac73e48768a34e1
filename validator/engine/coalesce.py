"""Joins the package queries of a batch into one process.

`host.package(name)` runs one `dpkg-query` for each name, and each reads the whole database: some 10 ms of the host's
CPU time. All of a batch are sent as one command, and each query gets the result that it would have had alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from validator.transport import Answer, Command

# The command of testinfra, with one name and no architecture or pattern: others have output in another form.
_PACKAGE = re.compile(r"dpkg-query -f '(\$\{Status\}(?: \$\{Version\})?)' -W ([a-z0-9][a-z0-9+.-]+)")
_ALL = "dpkg-query -f '${{Package}} ${{Status}} ${{Version}}\\n' -W {names}"
_NAMES = 500  # per command: far below the maximum length of an argument of `sh -c`

Execute = Callable[[Sequence[Command]], tuple[list[Answer], int]]


def execute(commands: Sequence[Command], send: Execute) -> tuple[list[Answer], int]:
    """Runs the commands by `send`, with package queries joined: the answers in order, and the number of attempts."""
    groups = [places for places in _groups(commands) if len(places) > 1]
    grouped = {place for places in groups for place in places}
    sent = [place for place in range(len(commands)) if place not in grouped]
    received, attempts = send([*(commands[place] for place in sent), *(_join(commands, places) for places in groups)])
    answers = dict(zip(sent, received, strict=False))
    for places, answer in zip(groups, received[len(sent) :], strict=True):
        answers |= _part(commands, places, answer)
    unanswered = [place for place in range(len(commands)) if place not in answers]
    if unanswered:  # a package of two architectures, or an unreadable database: dpkg's own output is needed
        received, more_attempts = send([commands[place] for place in unanswered])
        answers |= dict(zip(unanswered, received, strict=True))
        attempts = max(attempts, more_attempts)
    return [answers[place] for place in range(len(commands))], attempts


def _groups(commands: Sequence[Command]) -> list[list[int]]:
    groups: dict[float, list[int]] = defaultdict(list)
    for place, command in enumerate(commands):
        if _PACKAGE.fullmatch(command.text):
            groups[command.deadline].append(place)
    return [places[first : first + _NAMES] for places in groups.values() for first in range(0, len(places), _NAMES)]


def _join(commands: Sequence[Command], places: Sequence[int]) -> Command:
    names = dict.fromkeys(_query(commands[place])[1] for place in places)
    return Command(_ALL.format(names=" ".join(names)), commands[places[0]].deadline)


def _part(commands: Sequence[Command], places: Sequence[int], answer: Answer) -> dict[int, Answer]:
    """The answer to each query that the joint output contains."""
    if answer.expired:
        return dict.fromkeys(places, answer)
    if answer.rc not in (0, 1):
        return {}
    states: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in answer.stdout.decode(errors="replace").splitlines():
        name, _, rest = line.partition(" ")
        status, _, version = rest.rpartition(" ")
        states[name].append((status, version))
    errors = answer.stderr.splitlines(keepends=True)
    parts = {}
    for place in places:
        form, name = _query(commands[place])
        if len(states[name]) == 1:
            status, version = states[name][0]
            text = form.replace("${Status}", status).replace("${Version}", version)
            parts[place] = Answer(0, text.encode(), b"", answer.seconds)
        elif own := [line for line in errors if line.split()[-1:] == [name.encode()]]:
            parts[place] = Answer(1, b"", own[0], answer.seconds)
    return parts


def _query(command: Command) -> tuple[str, str]:
    """Output format and package name of a query."""
    match = _PACKAGE.fullmatch(command.text)
    assert match is not None
    return match[1], match[2]
