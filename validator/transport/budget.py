"""What one host may take in a run: bytes and seconds, over all its connections and commands.

Each command has limits of its own (`shell.py`, `ssh.py`); they bound a host that hangs, but not one that gives every
command as much as it may take, or sends a byte a minute. Such a host is the finding, not a transport error.
"""

from __future__ import annotations

from dataclasses import dataclass

from validator.transport.errors import BudgetSpent

# A proof of a large image receives about 100 MiB (an inventory of 500,000 files), and waits less than an hour.
TOTAL_BYTES = 1 << 30
TOTAL_SECONDS = 4 * 3600.0
SLOWEST_BYTES_PER_SECOND = 16 << 10  # of an output that the host has announced


@dataclass
class Budget:
    """What is left of it: bytes that the host may still send, seconds that it may still be waited for."""

    bytes: float = TOTAL_BYTES
    seconds: float = TOTAL_SECONDS

    def charge(self, name: str, *, bytes: int = 0, seconds: float = 0.0) -> None:
        """Takes what a host sent, and how long it was waited for. BudgetSpent: that was too much."""
        self.bytes -= bytes
        self.seconds -= seconds
        if self.bytes < 0:
            raise BudgetSpent(f"{name} sent more than {TOTAL_BYTES >> 20:,} MiB in this run, {_SUSPECT}")
        if self.seconds < 0:
            raise BudgetSpent(f"{name} used up the time that all its answers may take in this run, {_SUSPECT}")


_SUSPECT = "more than a proof needs: what runs on it that answers this slowly or this much?"


def answer_seconds(announced: int) -> float:
    """How long a host may send an output whose size it has announced."""
    return announced / SLOWEST_BYTES_PER_SECOND
