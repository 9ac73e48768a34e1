"""The database of update-alternatives: which programs packages registered for a name, and where its link leads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# One file a name: `auto` or `manual`, the link; name and link of each slave; an empty line; then of each candidate its
# path, its priority and the paths of its slaves. dpkg: update-alternatives(1); Red Hat's chkconfig writes the same.
_PROGRAM = """\
for file in /var/lib/dpkg/alternatives/* /var/lib/alternatives/*; do
[ -f "$file" ] || continue
printf '\\001%s\\n%s\\n' "${file##*/}" "$(readlink "/etc/alternatives/${file##*/}")"
cat "$file"
done"""


@dataclass(frozen=True)
class Alternative:
    """A name, where its link in /etc/alternatives leads ("" if there is none), and the registered paths."""

    name: str
    target: str
    candidates: frozenset[str]


def read(host: Any) -> list[Alternative]:
    """Every registered name; none where the system has no such database."""
    records = host.run(_PROGRAM).stdout.split("\x01")[1:]
    return [_parse(record.split("\n")) for record in records]


def _parse(lines: list[str]) -> Alternative:
    name, target, _mode, _link, *rest = [*lines, "", "", "", ""]
    slaves = rest.index("") // 2
    return Alternative(name, target, frozenset(_candidates(rest[rest.index("") + 1 :], slaves)))


def _candidates(lines: list[str], slaves: int) -> Iterator[str]:
    """The first line of each group of path, priority and one line a slave, until a group without a path."""
    for start in range(0, len(lines), 2 + slaves):
        if not lines[start]:
            return
        yield lines[start]
