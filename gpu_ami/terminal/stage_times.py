"""How long each stage took in its last run on this machine: `stage-times.json` in the home folder."""

from __future__ import annotations

import re
from pathlib import Path

from gpu_ami.files import read_json, write_json
from gpu_ami.progress import Expected, Progress

FILE = "stage-times.json"
_SHORTEST = 1.0  # s; a shorter stage needs no forecast
_MOST = 500  # stages that are kept: the file does not grow with the number of hosts
_IDS = re.compile(r"\b(ami|i)-[0-9a-f]{8,17}\b")


class StageTimes:
    """The stages of earlier runs by name; ids of AMIs and instances, new in each run, do not count as part of it."""

    def __init__(self, home: Path) -> None:
        self._file = home / FILE
        stages = (read_json(self._file) or {}).get("stages")
        self._stages: dict[str, object] = dict(stages) if isinstance(stages, dict) else {}

    def expected(self, name: str) -> Expected | None:
        """What the stage took last time; None: it is new, or the file is damaged."""
        try:
            row = self._stages[_key(name)]
            return Expected(float(row["seconds"]), int(row["steps"])) if isinstance(row, dict) else None
        except (KeyError, TypeError, ValueError):
            return None

    def keep(self, progress: Progress) -> None:
        """Writes down the stages that this run completed. OSError: the home folder cannot be written to."""
        done = [row for row in progress.times if row["outcome"] == "done" and float(str(row["seconds"])) >= _SHORTEST]
        if not done:
            return
        for row in done:
            name = str(row["stage"])
            self._stages.pop(_key(name), None)  # the newest stand last
            self._stages[_key(name)] = {"seconds": row["seconds"], "steps": progress.steps.get(name, 0)}
        newest = dict(list(self._stages.items())[-_MOST:])
        write_json(self._file, {"stages": newest}, mode=0o600)


def _key(name: str) -> str:
    return _IDS.sub(r"\1", name)
