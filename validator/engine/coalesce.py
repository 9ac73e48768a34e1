"""Questions of one batch that one process can answer at once.

`host.package(name)` is a `dpkg-query` a name, and each reads the whole database: some 10 ms of the host's CPU time. All
that a batch asks go out as one, and each question gets the answer that it would have had alone.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Sequence

from validator.transport import Answer, Command

# As testinfra asks. One name, no architecture, no pattern: what else could match has an answer of its own shape.
_PACKAGE = re.compile(r"dpkg-query -f '(\$\{Status\}(?: \$\{Version\})?)' -W ([a-z0-9][a-z0-9+.-]+)")
_ALL = "dpkg-query -f '${{Package}} ${{Status}} ${{Version}}\\n' -W {names}"
_NAMES = 500  # a command: far below what one argument of `sh -c` may hold

Ask = Callable[[Sequence[Command]], tuple[list[Answer], int]]


def execute(commands: Sequence[Command], ask: Ask) -> tuple[list[Answer], int]:
    """What `ask(commands)` gives: the answers in their order and the attempts it took."""
    groups = [places for places in _groups(commands) if len(places) > 1]
    grouped = {place for places in groups for place in places}
    sent = [place for place in range(len(commands)) if place not in grouped]
    found, attempts = ask([*(commands[place] for place in sent), *(_join(commands, places) for places in groups)])
    answers = dict(zip(sent, found, strict=False))
    for places, answer in zip(groups, found[len(sent) :], strict=True):
        answers |= _part(commands, places, answer)
    alone = [place for place in range(len(commands)) if place not in answers]
    if alone:  # a package of two architectures, a database that cannot be read: let it be said in dpkg's own words
        found, again = ask([commands[place] for place in alone])
        answers |= dict(zip(alone, found, strict=True))
        attempts = max(attempts, again)
    return [answers[place] for place in range(len(commands))], attempts


def _groups(commands: Sequence[Command]) -> list[list[int]]:
    groups: dict[float, list[int]] = defaultdict(list)
    for place, command in enumerate(commands):
        if _PACKAGE.fullmatch(command.text):
            groups[command.deadline].append(place)
    return [places[at : at + _NAMES] for places in groups.values() for at in range(0, len(places), _NAMES)]


def _join(commands: Sequence[Command], places: Sequence[int]) -> Command:
    names = dict.fromkeys(_asked(commands[place])[1] for place in places)
    return Command(_ALL.format(names=" ".join(names)), commands[places[0]].deadline)


def _part(commands: Sequence[Command], places: Sequence[int], answer: Answer) -> dict[int, Answer]:
    """Of each question its answer, as far as the joint one tells it."""
    if answer.expired:
        return dict.fromkeys(places, answer)
    if answer.rc not in (0, 1):
        return {}
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for line in answer.stdout.decode(errors="replace").splitlines():
        name, _, rest = line.partition(" ")
        status, _, version = rest.rpartition(" ")
        found[name].append((status, version))
    complaints = answer.stderr.splitlines(keepends=True)
    parts = {}
    for place in places:
        form, name = _asked(commands[place])
        if len(found[name]) == 1:
            status, version = found[name][0]
            text = form.replace("${Status}", status).replace("${Version}", version)
            parts[place] = Answer(0, text.encode(), b"", answer.seconds)
        elif own := [line for line in complaints if line.split()[-1:] == [name.encode()]]:
            parts[place] = Answer(1, b"", own[0], answer.seconds)
    return parts


def _asked(command: Command) -> tuple[str, str]:
    """The format and the package's name."""
    match = _PACKAGE.fullmatch(command.text)
    assert match is not None
    return match[1], match[2]
