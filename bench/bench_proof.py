"""Where the seconds of a proof go: its stages, and within each pass of the checks the host's work, waits and the rest.

    python bench/bench_proof.py out/debian12-gpu
    python bench/bench_proof.py out/debian12-gpu --commands 20     the longest commands, too

Reads report.json and the round trips that a proof keeps with the evidence of each machine; runs nothing. A round trip
is a batch of commands, four of which run at a time on the host: the time that they need there is divided among them by
their own times, the rest is *round trip*. While no batch is under way, checks wait for
CloudWatch, or the validator computes: *waiting*. *start* and *end* are the validator's own, before the first and after
the last batch.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpu_ami.errors import UsageError  # noqa: E402
from gpu_ami.report import document  # noqa: E402
from validator.evidence import ROUND_TRIPS_FILE  # noqa: E402
from validator.transport.shell import WORKERS  # noqa: E402

# File of checks → what its commands are counted as; all others are "other checks".
PARTS = {
    "compute": "compute probe",
    "device_nodes": "compute probe",
    "file_account": "account",
    "inventory": "account",
    "hygiene": "hygiene",
    "system_upgrade": "upgrade",
    "xid": "Xids",
    "logs": "logs",
    "drain_hook": "drain hook",
}
OTHER, EVIDENCE, ROUND_TRIP, WAITING, START, END = "other checks", "evidence", "round trip", "waiting", "start", "end"
# Commands that answer several checks at once (validator/engine/batches.py).
_JOINED = ("dpkg-query -f", "stat -Lc")
COLUMNS = (*dict.fromkeys(PARTS.values()), OTHER, EVIDENCE, ROUND_TRIP, WAITING, START, END)


@dataclass(frozen=True)
class Pass:
    """The checks of one machine, at first or after a restart. began: since 1970; seconds: of the stage."""

    name: str
    began: float
    seconds: float
    trips: Sequence[Mapping[str, Any]]


def part_of(command: Mapping[str, Any]) -> str:
    """What a command is counted as: by the first check that asked for it."""
    if command["checks"]:
        return PARTS.get(command["checks"][0].partition("::")[0], OTHER)
    return OTHER if command["command"].startswith(_JOINED) else EVIDENCE


def profile(each: Pass) -> Counter[str]:
    """Seconds of a pass by part; they add up to the stage's."""
    parts: Counter[str] = Counter()
    if not each.trips:
        return Counter({START: each.seconds})
    ended = each.began
    for number, trip in enumerate(sorted(each.trips, key=lambda trip: trip["began"])):
        began = max(trip["began"], ended)
        parts[WAITING if number else START] += began - ended
        seconds = max(0.0, trip["began"] + trip["seconds"] - began)
        ran = sum(command["seconds"] for command in trip["commands"])
        # Four at a time: many short ones keep the host as busy as a long one.
        busy = min(seconds, max([ran / WORKERS, *(command["seconds"] for command in trip["commands"])]))
        for command in trip["commands"]:
            if ran:
                parts[part_of(command)] += busy * command["seconds"] / ran
        parts[ROUND_TRIP] += seconds - busy
        ended = began + seconds
    parts[END] += max(0.0, each.began + each.seconds - ended)
    return parts


def passes(folder: Path, report: document.Report) -> Iterator[Pass]:
    """Of every machine of a report that has kept its round trips."""
    run_began = datetime.fromisoformat(report.started).timestamp()
    for host in report.hosts:
        stages = [stage for stage in report.stages if stage.machine == host.name and stage.stage.startswith("check ")]
        for stage in stages:
            after = stage.stage.partition(" after ")[2]
            file = folder / "evidence" / host.evidence / (f"after-{after}" if after else "") / ROUND_TRIPS_FILE
            if file.is_file() and stage.start is not None:
                trips = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
                yield Pass(f"{host.name} {after}".strip(), run_began + stage.start, stage.seconds, trips)


def table(rows: Iterable[tuple[str, Counter[str]]]) -> Iterator[str]:
    """Seconds by pass, parts that take none left out, and the sum of all passes with the share of each part."""
    rows = list(rows)
    total = sum((parts for _, parts in rows), Counter[str]())
    columns = [name for name in COLUMNS if total[name] >= 0.05]
    yield f"| checks of | s | {' | '.join(columns)} |"
    yield f"|---|---|{'---|' * len(columns)}"
    for name, parts in [*rows, ("all", total)]:
        yield f"| {name} | {sum(parts.values()):.1f} | {' | '.join(f'{parts[column]:.1f}' for column in columns)} |"
    whole = sum(total.values()) or 1.0
    yield f"| share | | {' | '.join(f'{total[column] / whole:.0%}' for column in columns)} |"


def longest(each: Iterable[Pass], most: int) -> Iterator[str]:
    """The commands that ran longest on a host, over all passes."""
    seconds: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for trip in (trip for one in each for trip in one.trips):
        for command in trip["commands"]:
            name = ", ".join(command["checks"][:1]) or command["command"][:60]
            seconds[name] += command["seconds"]
            runs[name] += 1
    yield "| s | runs | command of |"
    yield "|---|---|---|"
    for name, took in seconds.most_common(most):
        yield f"| {took:.1f} | {runs[name]} | {name.replace('|', '¦')} |"


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of a proof: out/IMAGE, with report.json and evidence/")
    parser.add_argument("--commands", type=int, default=0, metavar="N", help="print the N longest commands, too")
    asked = parser.parse_args(words)
    try:
        report = document.load(asked.folder / "report.json")
    except UsageError as error:
        print(f"{error.message}: {error.hint}", file=sys.stderr)
        return 2
    print("| stage | machine | start | s |\n|---|---|---|---|")
    for stage in report.stages:
        start = "" if stage.start is None else f"{stage.start:.0f}"
        print(f"| {'· ' * stage.level}{stage.stage} | {stage.machine} | {start} | {stage.seconds:.1f} |")
    found = list(passes(asked.folder, report))
    if not found:
        print(f"{asked.folder}/evidence: no {ROUND_TRIPS_FILE}; prove the image again", file=sys.stderr)
        return 2
    print("", *table((each.name, profile(each)) for each in found), sep="\n")
    if asked.commands:
        print("", *longest(found, asked.commands), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
