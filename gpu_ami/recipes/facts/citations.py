"""The rows of the facts that a plan relies on, and notes on those that are not verified.

The architectures of images, and what others call them: EC2's name → Debian's, rpm's, the GNU triplet.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_ami.recipes.facts.tables import Row
from validator.plan_document import Citation


class Sources:
    """Collected while a plan is resolved: `rows` for its `sources`, `notes` for its `notes`."""

    def __init__(self) -> None:
        self.rows: list[Citation] = []
        self.notes: list[str] = []

    def add(self, fact: str, row: Row) -> None:
        """A row that the plan relies on; an unverified one leaves a note."""
        unverified = bool(row.get("unverified", False))
        entry: Citation = {"fact": fact, "source": row["source"], "date": row["date"], "unverified": unverified}
        if entry in self.rows:
            return
        self.rows.append(entry)
        if unverified:
            self.note(str(row.get("note") or f"not established: {fact} ({row['source']})"))

    def note(self, text: str) -> None:
        line = " ".join(text.split())
        if line not in self.notes:
            self.notes.append(line)


@dataclass(frozen=True)
class Architecture:
    """deb: as in Debian packages and AWS's download folders; rpm: as in rpm packages and `uname -m`."""

    deb: str
    rpm: str
    triplet: str


ARCHITECTURES = {
    "x86_64": Architecture("amd64", "x86_64", "x86_64-linux-gnu"),
    "arm64": Architecture("arm64", "aarch64", "aarch64-linux-gnu"),
}
