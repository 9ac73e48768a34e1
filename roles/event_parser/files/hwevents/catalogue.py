"""What a code means: name, cause, severity, action, and what the action means on EC2. Data, with an operator's policy on top.

Policy file: `{"xid": {"63": {"severity": "fatal", "action": "RESET_GPU"}}, "sxid": {…}, "gpu_lost": {…}}`.
A mistake in it costs the entry, never the service: `Catalogue.policy_errors` names each.
"""

from __future__ import annotations

import csv
import json
import os
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
DATA_VERSION = "2026.11.21"
SEVERITIES = ("info", "app", "warning", "critical", "fatal")
POLICY_PATH = "/etc/gpu-ami/xid-policy.json"
_FILES = ("xid.csv", "sxid.csv", "nvlink5.csv", "actions.csv", "branches.csv")
_SXID_CLASSES = {
    "": ("warning", "CONTACT_SUPPORT"),
    "non_fatal": ("warning", "IGNORE"),
    "fatal": ("critical", "RESTART_VM"),
    "always_fatal": ("fatal", "RESTART_VM"),
}
# What the driver itself says counts where the Fabric Manager guide has no class for the code, or a milder one.
_SXID_WORDS = {"Fatal": "fatal", "Non-fatal": "non_fatal", "Correctable": "non_fatal"}


class Meaning(NamedTuple):
    """One code's meaning. `decided_by`: "catalogue", "policy", "message" (read from the line) or "unknown"."""

    name: str
    severity: str
    action: str
    decided_by: str


class Action(NamedTuple):
    """An action on EC2. `rank` orders them: the heaviest of an incident is the one to take."""

    ec2: str
    rank: int
    meaning: str


def _rows(name: str, data: str) -> List[Dict[str, str]]:
    with open(os.path.join(data, name), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _version(data: str) -> str:
    checksum = 0
    for name in _FILES:
        with open(os.path.join(data, name), "rb") as file:
            checksum = zlib.crc32(file.read(), checksum)
    return "%s+%08x" % (DATA_VERSION, checksum & 0xFFFFFFFF)


class Catalogue:
    """The tables, loaded once, and the policy laid over them."""

    def __init__(self, data: str = DATA, policy_path: Optional[str] = POLICY_PATH) -> None:
        self.data = data
        self.actions = {
            row["action"]: Action(row["ec2"], int(row["rank"]), row["meaning"]) for row in _rows("actions.csv", data)
        }
        self._xid = {
            int(row["xid"]): (row["name"], row["severity"], row["action"]) for row in _rows("xid.csv", data)
        }  # type: Dict[int, Tuple[str, str, str]]
        self._sxid = {int(row["sxid"]): (row["name"], row["class"]) for row in _rows("sxid.csv", data)}
        self._branches = [
            (int(row["xid"]), int(row["first_branch"]), int(row["last_branch"]), row["name"], row["severity"], row["action"])
            for row in _rows("branches.csv", data)
        ]
        self.version = _version(data)
        self.policy_errors = []  # type: List[str]
        self._policy = {}  # type: Dict[Tuple[str, int], Dict[str, str]]
        if policy_path:
            self._load_policy(policy_path)

    def xid(self, code: int, driver: Optional[str] = None) -> Meaning:
        """Unknown codes are kept: a warning, to be shown to support. Some numbers meant something else in old branches."""
        known = self._xid.get(code)
        if driver:
            branch = int(driver.split(".", 1)[0])
            for xid, first, last, name, severity, action in self._branches:
                if xid == code and first <= branch <= last:
                    known = (name, severity, action)
        meaning = Meaning(*known, decided_by="catalogue") if known else Meaning(
            "Xid %d (not in the catalogue)" % code, "warning", "CONTACT_SUPPORT", "unknown"
        )
        return self.with_policy("xid", code, meaning)

    def sxid(self, code: int, message: str) -> Meaning:
        name, fatality = self._sxid.get(code, ("SXid %d (not in the catalogue)" % code, ""))
        decided_by = "catalogue" if fatality else "unknown"
        said = _SXID_WORDS.get(message.split(",", 1)[0].strip(), "")
        if said and (not fatality or (said == "fatal" and fatality == "non_fatal")):
            fatality, decided_by = said, "message"
        severity, action = _SXID_CLASSES[fatality]
        return self.with_policy("sxid", code, Meaning(name, severity, action, decided_by))

    def gpu_lost(self) -> Meaning:
        """Xid 79's meaning, for a loss that the driver reported without one."""
        name, severity, action = self._xid[79]
        return self.with_policy("gpu_lost", 79, Meaning(name + " (no Xid printed)", severity, action, "catalogue"))

    def with_policy(self, kind: str, code: int, meaning: Meaning) -> Meaning:
        """The operator's word is the last one, over the catalogue and over what a message decodes to."""
        entry = self._policy.get((kind, code))
        if not entry:
            return meaning
        return meaning._replace(
            severity=entry.get("severity", meaning.severity),
            action=entry.get("action", meaning.action),
            decided_by="policy",
        )

    def action(self, name: str) -> Action:
        return self.actions.get(name) or self.actions["CONTACT_SUPPORT"]

    def explain(self, code: int) -> Optional[Dict[str, str]]:
        """The whole row of an Xid with its source columns, as text."""
        return next((row for row in _rows("xid.csv", self.data) if int(row["xid"]) == code), None)

    def explain_sxid(self, code: int) -> Optional[Dict[str, str]]:
        return next((row for row in _rows("sxid.csv", self.data) if int(row["sxid"]) == code), None)

    def _load_policy(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            self.policy_errors.append("%s: %s; the catalogue alone decides" % (path, error.strerror))
            return
        try:
            document = json.loads(raw.decode("utf-8"))
        except ValueError as error:
            self.policy_errors.append("%s: not JSON (%s); the catalogue alone decides" % (path, error))
            return
        self._read_policy(path, document)
        self.version += "+policy:%08x" % (zlib.crc32(raw) & 0xFFFFFFFF)

    def _read_policy(self, path: str, document: Any) -> None:
        if not isinstance(document, dict):
            self.policy_errors.append("%s: an object was expected, found %s" % (path, type(document).__name__))
            return
        for kind, entries in document.items():
            if kind not in ("xid", "sxid", "gpu_lost") or not isinstance(entries, dict):
                self.policy_errors.append('%s: %s: expected "xid", "sxid" or "gpu_lost" with an object' % (path, kind))
                continue
            for code, entry in entries.items():
                where = "%s: %s.%s" % (path, kind, code)
                checked = self._policy_entry(where, entry)
                if checked and code.isdigit():
                    self._policy[(kind, int(code))] = checked
                elif not code.isdigit():
                    self.policy_errors.append("%s: a code is a number" % where)

    def _policy_entry(self, where: str, entry: Any) -> Dict[str, str]:
        allowed = {"severity": SEVERITIES, "action": tuple(sorted(self.actions))}
        if not isinstance(entry, dict):
            self.policy_errors.append("%s: an object was expected" % where)
            return {}
        checked = {}
        for key, value in entry.items():
            if key == "note":
                continue
            if key not in allowed:
                self.policy_errors.append("%s: unknown key %s (known: severity, action, note)" % (where, key))
            elif value not in allowed[key]:
                self.policy_errors.append("%s.%s: %r is none of %s" % (where, key, value, ", ".join(allowed[key])))
            else:
                checked[key] = value
        return checked
