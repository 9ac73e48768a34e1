"""What was done for which notice. A notice stays in the metadata until the instance has ended; its scripts run once.

The file is written before and after each script. A script that was interrupted (kill -9, a crash) runs once more: half
a drain is none. The state belongs to one instance: an image that is made of the instance does not inherit it.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Dict

from .notices import Notice
from .scripts import Result

_ATTEMPTS = 2
_MOST_NOTICES = 50
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


class State:
    """`instance_id`: whose. In memory it counts also where the disk is full."""

    def __init__(self, path: str, instance_id: str) -> None:
        self.path = path
        self.instance_id = instance_id
        self.boot_id = _boot_id()
        self.notices = self._load()

    def entry(self, notice: Notice, timeout_s: float) -> Dict[str, Any]:
        """What is known of a notice; new, with its deadline, where nothing is. After a reboot the time runs anew."""
        entry = self.notices.setdefault(notice.key, {"done": False, "scripts": {}})
        if entry.get("boot_id") != self.boot_id:
            entry.update(boot_id=self.boot_id, deadline_monotonic_s=time.monotonic() + timeout_s)
        return entry

    def is_done(self, notice: Notice) -> bool:
        return bool(self.notices.get(notice.key, {}).get("done"))

    def begin(self, notice: Notice, script: str) -> bool:
        """Notes that a script starts. False where it has ended before, or was interrupted twice."""
        ran = self.notices[notice.key]["scripts"].setdefault(script, {"attempts": 0, "outcome": ""})
        if ran["outcome"] or ran["attempts"] >= _ATTEMPTS:
            return False
        ran["attempts"] += 1
        self.save()
        return True

    def end(self, notice: Notice, script: str, result: Result) -> None:
        if result.outcome != "interrupted":
            self.notices[notice.key]["scripts"][script].update(result._asdict())
            self.save()

    def finish(self, notice: Notice) -> None:
        self.notices[notice.key]["done"] = True
        self.save()

    def save(self) -> None:
        """Atomically, and on the disk when it returns: kill -9 and power loss leave the old file or the new one."""
        keys = list(self.notices)[-_MOST_NOTICES:]
        self.notices = {key: self.notices[key] for key in keys}
        fresh = self.path + ".new"
        try:
            with open(fresh, "w", encoding="utf-8") as file:
                json.dump({"instance_id": self.instance_id, "notices": self.notices}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(fresh, self.path)
        except OSError as error:
            print("cannot write %s: %s" % (self.path, error.strerror), flush=True)

    def _load(self) -> Dict[str, Any]:
        try:
            with open(self.path, encoding="utf-8") as file:
                document = json.load(file)
            notices = document["notices"] if document["instance_id"] == self.instance_id else {}
            if all(isinstance(entry["scripts"], dict) for entry in notices.values()):
                return dict(notices)
            raise ValueError("notices without scripts")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            print("%s cannot be used, and nothing counts as done: %s" % (self.path, error), flush=True)
            return {}


def _boot_id() -> str:
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()
