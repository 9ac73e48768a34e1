"""Waivers: a named check may fail, with a reason and an owner, until a named day. The check still runs.

A file in YAML or JSON, a list of
    - check: hygiene::test_no_shell_history     # an id; * and ? are wildcards after "::"
      reason: the base image has one; ticket 1234
      owner: gpu-images@example.com
      expires: 2027-01-31                       # the last day on which the waiver counts
      scope: {image: debian12-gpu, instance_type: "p4d.*"}  # optional, with wildcards

A waived check keeps its verdict; checks.json, report and certificate show the waiver with it (`waived`). A waiver that
has expired, matches no check or is not needed has no effect and is named on the console. See docs/checks.md.
"""

from __future__ import annotations

import datetime
import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from validator.inputs import parse_json, read_text
from validator.results import CheckRecord, Verdict, WaiverRecord, WaiverState

if TYPE_CHECKING:
    from validator.schema import Keys

_RED = (Verdict.FAIL, Verdict.FLAKY, Verdict.UNPROVEN)


@dataclass(frozen=True)
class Waiver:
    """One entry of the file. expires: the last day on which it counts."""

    check: str
    reason: str
    owner: str
    expires: datetime.date
    scope: tuple[tuple[str, str], ...] = ()

    def covers(self, check_id: str, where: Mapping[str, str]) -> bool:
        """Whether the waiver applies to this check on this machine. where: its image and instance_type."""
        return self.in_scope(where) and self.names(check_id)

    def names(self, check_id: str) -> bool:
        """Whether `check` is this id or a pattern that matches it. Brackets of parameters are literal."""
        pattern = self.check.replace("[", "[[]")
        return fnmatch.fnmatchcase(check_id, pattern)

    def in_scope(self, where: Mapping[str, str]) -> bool:
        """Whether the waiver applies to this image and instance type."""
        return all(fnmatch.fnmatchcase(where.get(key, ""), pattern) for key, pattern in self.scope)

    def record(self, state: WaiverState) -> WaiverRecord:
        """The waiver as results and reports show it."""
        return WaiverRecord(self.check, self.reason, self.owner, self.expires.isoformat(), dict(self.scope), state)


def _grammar() -> Keys:
    """The keys of an entry. The schema is imported here, because most runs have no waivers."""
    from validator.schema import Day, Keys, Text

    return Keys(
        {
            # The role before "::" is required, so that one waiver cannot cover all checks.
            "check": Text("hygiene::test_no_shell_history", r"[^:]*[^:*?\[\]][^:]*::.+"),
            "reason": Text("base image carries one; ticket 1234", r"(?s).*\S.*"),
            "owner": Text("gpu-images@example.com", r".*\S.*"),
            "expires": Day(),
            "scope": Keys({"image": Text("debian12-gpu"), "instance_type": Text("p4d.*")}),
        },
        needed=("check", "reason", "owner", "expires"),
    )


def load(path: Path) -> list[Waiver]:
    """Reads a waivers file. ValueError lists all mistakes, each with its place."""
    text = read_text(path)
    try:
        entries = parse_json(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(entries, list):
        raise ValueError(f"{path}: expected a list of waivers, got {type(entries).__name__}")
    from validator.schema import key_lines, line_of

    grammar, lines = _grammar(), key_lines(text)
    mistakes = [
        f"{path}:{line_of(lines, mistake.path) or 1}: {mistake.path}: {mistake.message}"
        for index, entry in enumerate(entries)
        for mistake in (*grammar.check(entry, f"[{index}]"), *grammar.missing(entry, f"[{index}]"))
    ]
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return [_waiver(entry) for entry in entries]


def apply(
    waivers: Iterable[Waiver], records: Sequence[CheckRecord], where: Mapping[str, str], today: datetime.date
) -> tuple[list[CheckRecord], list[WaiverRecord]]:
    """The records, each failed one with the waiver that covers it, and every waiver with its state."""
    by_id = {record.id: record for record in records}
    red = [record.id for record in records if record.verdict in _RED]
    waiver_records = []
    for waiver in waivers:
        matching = [check_id for check_id in red if waiver.covers(check_id, where)]
        state = WaiverState.UNUSED if _matches_any(waiver, by_id, where) else WaiverState.UNMATCHED
        if matching:
            state = WaiverState.USED if today <= waiver.expires else WaiverState.EXPIRED
        waiver_records.append(waiver.record(state))
        for check_id in matching:
            record = by_id[check_id]
            if state is WaiverState.USED:
                by_id[check_id] = replace(record, waived=waiver_records[-1])
            else:
                message = f"{record.message} (its waiver by {waiver.owner} expired on {waiver.expires})"
                by_id[check_id] = replace(record, message=message)
    return list(by_id.values()), waiver_records


def _matches_any(waiver: Waiver, ids: Iterable[str], where: Mapping[str, str]) -> bool:
    """Whether a check of this run matches, whatever its verdict. A waiver for other machines counts as matching."""
    return not waiver.in_scope(where) or any(waiver.names(check_id) for check_id in ids)


def remarks(waiver_records: Iterable[WaiverRecord], ids: Iterable[str]) -> list[str]:
    """One sentence for each waiver that had no effect on any machine of a run, or that has expired.

    waiver_records: of all machines and passes. ids: of all checks that ran.
    """
    states: dict[tuple[str, str, str], set[WaiverState]] = {}
    for record in waiver_records:
        states.setdefault((record.check, record.owner, record.expires), set()).add(record.state)
    known = list(dict.fromkeys(ids))
    lines = []
    for (check, owner, expires), in_run in states.items():
        if WaiverState.USED in in_run:
            continue
        if WaiverState.EXPIRED in in_run:
            lines.append(f"{check}: expired on {expires}; ask {owner} to renew or remove it")
        elif WaiverState.UNUSED in in_run:
            lines.append(f"{check}: not needed, no check that it names failed; remove it")
        else:
            from validator.schema import did_you_mean

            near = did_you_mean(check, known)
            lines.append(f"{check}: matches no check that ran{near}; `gpu-ami checks` lists the ids")
    return lines


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text) or []
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error


def _waiver(entry: Mapping[str, object]) -> Waiver:
    from validator.schema import Day

    expires = Day.parse(entry["expires"])
    assert expires is not None
    scope = entry.get("scope")
    patterns = scope.items() if isinstance(scope, dict) else ()
    return Waiver(
        check=str(entry["check"]),
        reason=str(entry["reason"]),
        owner=str(entry["owner"]),
        expires=expires,
        scope=tuple(sorted((str(key), str(pattern)) for key, pattern in patterns)),
    )
