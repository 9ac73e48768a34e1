"""What a run leaves: one record a check, written as checks.json (schema gpu-ami/checks/1)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = "gpu-ami/checks/1"
PASS, FAIL, FLAKY, UNAVAILABLE, UNPROVEN = "PASS", "FAIL", "FLAKY", "UNAVAILABLE", "UNPROVEN"


@dataclass
class Check:
    """One promise and what came of it. seconds: wall time; attempts: times its commands had to be sent.

    after: the restart that it was checked again after; its id then ends in "@" and that name.
    """

    id: str
    role: str
    tier: str
    promise: str
    verdict: str = UNPROVEN
    observed: Any = None
    planned: Any = None
    message: str = "did not run"
    seconds: float = 0.0
    attempts: int = 1
    after: str = ""
    hops: list[dict[str, Any]] = field(default_factory=list)
    event: dict[str, Any] | None = None  # the event that it saw captured, whole
    waived: dict[str, Any] | None = None  # the waiver that covers a red verdict


@dataclass
class Results:
    """All checks of one host, what was a replica there, and facts to tell this machine from another."""

    host: str
    checks: dict[str, Check] = field(default_factory=dict)
    replicas: list[dict[str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    waivers: list[dict[str, Any]] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Whole or not at all: a reader never sees half a file."""
        document = {
            "schema": SCHEMA,
            "host": self.host,
            "checks": [asdict(check) for check in self.checks.values()],
            "replicas": self.replicas,
            "facts": self.facts,
            "waivers": self.waivers,
        }
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.part")
        part.write_text(json.dumps(document, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
        part.replace(path)
