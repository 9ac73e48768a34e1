"""What the judgement of each check was tried on: real hardware, a transcript of a real machine, or replicas alone.

tried_on.json is generated (tests/validator/test_transcripts.py --update-golden): hardware from the runs that
bench/hardware_runs.yml records, transcripts from the verdicts that tests/transcripts has of values with a source, and
why some checks have none (tests/transcripts/no_source.yml).
"""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("tried_on.json")
HARDWARE, TRANSCRIPT, REPLICA, OWN = "hardware", "transcript", "replica", "own"
_COUNTED = {HARDWARE: "hardware", TRANSCRIPT: "transcripts", REPLICA: "replicas alone", OWN: "of your own"}
_CHECKS = Path(__file__).with_name("checks")


@functools.cache
def _recorded() -> Mapping[str, Mapping[str, Any]]:
    """Kind → check id → GPUs, or names of transcripts, or why there is no source."""
    document: dict[str, dict[str, Any]] = json.loads(FILE.read_text(encoding="utf-8"))
    return document


def tried_with(check: str) -> tuple[str, tuple[str, ...]]:
    """(kind, with what) of a check by its id, after a restart as before it; (own, nothing) of a user's own."""
    name = check.partition("@")[0]
    for kind in (HARDWARE, TRANSCRIPT):
        found = _recorded()[kind].get(name)
        if found:
            return kind, tuple(found)
    return REPLICA if (_CHECKS / f"{name.partition('::')[0]}.py").is_file() else OWN, ()


def why_no_source(check: str) -> str:
    """Why a check of tiers T2 to T4 or TN was tried on replicas alone; "" if nothing is stated."""
    return str(_recorded()[REPLICA].get(check.partition("@")[0], ""))


def by_kind(checks: Iterable[str]) -> dict[str, list[str]]:
    """Kind → ids of these checks, each once and without restarts."""
    kinds: dict[str, list[str]] = {kind: [] for kind in _COUNTED}
    for name in dict.fromkeys(check.partition("@")[0] for check in checks):
        kinds[tried_with(name)[0]].append(name)
    return kinds


def summary(checks: Iterable[str]) -> str:
    """`311 checks: 38 hardware, 140 transcripts, 133 replicas alone`."""
    counts = Counter({kind: len(names) for kind, names in by_kind(checks).items()})
    total = sum(counts.values())
    parts = ", ".join(f"{counts[kind]} {what}" for kind, what in _COUNTED.items() if kind != OWN or counts[OWN])
    return f"{total} check{'' if total == 1 else 's'}: {parts}"
