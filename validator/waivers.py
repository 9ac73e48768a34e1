"""Waivers: a named check may be red for a named reason, by a named owner, until a named day. The check still runs.

A file in YAML or JSON, a list of
    - check: hygiene::test_no_shell_history     # id, shell wildcards allowed in what follows "::"
      reason: the vendor's base image carries one; ticket 1234
      owner: gpu-images@example.com
      expires: 2027-01-31                       # the last day on which it counts
      scope: {image: debian12-gpu, instance_type: "p4d.*"}    # optional: both with shell wildcards

A waived check keeps its verdict, and the waiver stands beside it in checks.json and in the certificate; whoever judges
the run reads `waived`. An expired waiver is void, so its check fails as ever; one that nothing needed is reported.
"""

from __future__ import annotations

import datetime
import fnmatch
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from validator.results import FAIL, FLAKY, UNPROVEN, Check

_REQUIRED = ("check", "reason", "owner", "expires")
_KNOWN = (*_REQUIRED, "scope")
_SCOPES = ("image", "instance_type")


@dataclass(frozen=True)
class Waiver:
    """One entry of the file. expires: the last day on which it counts."""

    check: str
    reason: str
    owner: str
    expires: datetime.date
    scope: tuple[tuple[str, str], ...] = ()

    def covers(self, check_id: str, where: Mapping[str, str]) -> bool:
        """Whether it is about this check on this machine; `where` has image and instance_type."""
        inside = all(fnmatch.fnmatchcase(where.get(key, ""), pattern) for key, pattern in self.scope)
        return inside and fnmatch.fnmatchcase(check_id, self.check)

    def document(self, state: str) -> dict[str, Any]:
        """As the report holds it. state: "used", "expired" or "unused"."""
        return asdict(self) | {"expires": self.expires.isoformat(), "scope": dict(self.scope), "state": state}


def load(path: Path) -> list[Waiver]:
    """Reads a file of waivers. ValueError lists all its mistakes, each with its place."""
    text = path.read_text(encoding="utf-8")
    try:
        entries = json.loads(text) if path.suffix == ".json" else _yaml(text)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(entries, list):
        raise ValueError(f"{path}: expected a list of waivers, found {type(entries).__name__}")
    mistakes = [line for at, entry in enumerate(entries) for line in _mistakes(f"{path}[{at}]", entry)]
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return [_waiver(entry) for entry in entries]


def apply(
    waivers: Iterable[Waiver], checks: Iterable[Check], where: Mapping[str, str], today: datetime.date
) -> list[dict[str, Any]]:
    """Writes into each red check what waives it; returns every waiver of this machine with its state."""
    red = [check for check in checks if check.verdict in (FAIL, FLAKY, UNPROVEN)]
    told = []
    for waiver in waivers:
        matching = [check for check in red if waiver.covers(check.id, where)]
        state = "unused" if not matching else "used" if today <= waiver.expires else "expired"
        told.append(waiver.document(state))
        for check in matching:
            if state == "used":
                check.waived = waiver.document(state)
            else:
                check.message += f" (its waiver by {waiver.owner} expired on {waiver.expires})"
    return told


def _yaml(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text) or []
    except yaml.YAMLError as error:
        raise ValueError(f"not YAML: {error}") from error


def _mistakes(where: str, entry: Any) -> list[str]:
    if not isinstance(entry, dict):
        return [f"{where}: expected an object, found {type(entry).__name__}"]
    lines = [f"{where}: unknown key {key!r}, known are {', '.join(_KNOWN)}" for key in entry if key not in _KNOWN]
    lines += [f"{where}: {key} is missing" for key in _REQUIRED if not str(entry.get(key) or "").strip()]
    if "::" not in str(entry.get("check", "::")):
        lines.append(f"{where}: check {entry['check']!r} is no id like hygiene::test_no_shell_history")
    elif str(entry.get("check", "")).partition("::")[0].strip("*?[]") == "" and "check" in entry:
        lines.append(f"{where}: check {entry['check']!r} names no role before its ::")
    if entry.get("expires") and _date(entry["expires"]) is None:
        lines.append(f"{where}: expires {entry['expires']!r} is no date like 2027-01-31")
    scope = entry.get("scope") or {}
    if not isinstance(scope, dict):
        return [*lines, f"{where}: scope is no object"]
    return lines + [
        f"{where}: unknown scope {key!r}, known are {', '.join(_SCOPES)}" for key in scope if key not in _SCOPES
    ]


def _waiver(entry: Mapping[str, Any]) -> Waiver:
    expires = _date(entry["expires"])
    assert expires is not None
    scope = tuple(sorted((str(key), str(value)) for key, value in (entry.get("scope") or {}).items()))
    return Waiver(str(entry["check"]), str(entry["reason"]), str(entry["owner"]), expires, scope)


def _date(value: Any) -> datetime.date | None:
    if isinstance(value, datetime.date):  # YAML has made one of it
        return value
    try:
        return datetime.date.fromisoformat(str(value))
    except ValueError:
        return None
