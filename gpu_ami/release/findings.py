"""What a verification found: each point held, was refused by its name, or was not looked at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, TypedDict

HELD, REFUSED, NOT_LOOKED_AT = "held", "refused", "not looked at"
EXIT_REFUSED = 6


@dataclass(frozen=True)
class Finding:
    """One point. name: stable, for programs; hint: what to do about a refusal."""

    name: str
    state: Annotated[str, (HELD, REFUSED, NOT_LOOKED_AT)]
    text: str
    hint: str = ""


class FindingsDocument(TypedDict):
    """The points of a verification (docs/release.md). verified: no point was refused (exit code 0, else 6)."""

    certificate: str
    verified: bool
    points: list[Finding]


@dataclass
class Findings:
    """The points of a verification, in the order in which they were looked at."""

    certificate: str
    points: list[Finding] = field(default_factory=list)

    def hold(self, name: str, text: str) -> None:
        self.points.append(Finding(name, HELD, text))

    def refuse(self, name: str, text: str, hint: str) -> None:
        self.points.append(Finding(name, REFUSED, text, hint))

    def skip(self, name: str, text: str) -> None:
        self.points.append(Finding(name, NOT_LOOKED_AT, text))

    @property
    def refused(self) -> Sequence[Finding]:
        return [point for point in self.points if point.state == REFUSED]

    @property
    def exit_code(self) -> int:
        """0 verified, 6 refused."""
        return EXIT_REFUSED if self.refused else 0

    def to_json(self) -> dict[str, object]:
        """As FindingsDocument."""
        points = [asdict(point) for point in self.points]
        return {"certificate": self.certificate, "verified": not self.refused, "points": points}

    def text(self) -> str:
        lines = []
        for point in self.points:
            lines.append(f"{point.state:14} {point.name}: {point.text}")
            lines += [f"{'':14} → {point.hint}"] if point.hint else []
        verdict = f"REFUSED: {', '.join(point.name for point in self.refused)}" if self.refused else "VERIFIED"
        return "\n".join([*lines, "", f"{verdict}: {self.certificate}"])
