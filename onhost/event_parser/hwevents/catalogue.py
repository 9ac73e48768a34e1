"""Meaning of a code: name, severity, action, and what that action is on EC2. CSV tables, overridden by the operator's policy file.

Policy file: `{"xid": {"63": {"severity": "fatal", "action": "RESET_GPU"}}, "sxid": {…}, "gpu_lost": {…},
"neuron": {"DMA_ERROR": {…}}, "gpu_init_failed": {"RM_INIT_FAILED": {…}}, "stack_error": {…}}`.
An invalid entry is ignored and reported in `Catalogue.policy_errors`; the service keeps running.
"""

from __future__ import annotations

import csv
import json
import os
import zlib
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "data")
DATA_VERSION = "2026.11.27"
SEVERITIES = ("info", "app", "warning", "critical", "fatal")
POLICY_PATH = "/etc/gpu-ami/xid-policy.json"
# Stands for the GPU's address in text that is not about one event.
ANY_PCI = "PCI_ADDRESS"
_FILES = ("xid.csv", "sxid.csv", "nvlink5.csv", "actions.csv", "branches.csv", "sxid_branches.csv", "neuron.csv",
          "gpu_init.csv", "stack.csv")  # fmt: skip
# SXids that the Fabric Manager user guide does not list: the driver's own word decides (severity, action).
SXID_WORDS = {
    "": ("warning", "CONTACT_SUPPORT"),
    "Correctable": ("warning", "IGNORE"),
    "Non-fatal": ("warning", "MONITOR_FABRIC"),
    "Fatal": ("critical", "RESTART_VM"),
}


_NAMED_CODES = ("neuron", "gpu_init_failed", "stack_error")
_POLICY_KINDS = ("xid", "sxid", "gpu_lost") + _NAMED_CODES


class Meaning(NamedTuple):
    """Meaning of one code. `decided_by`: "catalogue", "policy", "message" (read from the line) or "unknown"."""

    name: str
    severity: str
    action: str
    decided_by: str


class Action(NamedTuple):
    """An action on EC2. `rank` orders actions: an incident needs the highest of its events. `meaning` may hold `{pci}`."""

    ec2: str
    rank: int
    meaning: str

    def instructions(self, pci: Optional[str]) -> str:
        """What to do, with the GPU's PCI address as `nvidia-smi -i` takes it."""
        return self.meaning.replace("{pci}", pci or ANY_PCI)


def rows(name: str, data: str) -> List[Dict[str, str]]:
    with open(os.path.join(data, name), encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _version(data: str) -> str:
    checksum = 0
    for name in _FILES:
        with open(os.path.join(data, name), "rb") as file:
            checksum = zlib.crc32(file.read(), checksum)
    return "%s+%08x" % (DATA_VERSION, checksum & 0xFFFFFFFF)


def _branch(driver: Optional[str]) -> Optional[int]:
    """535 for "535.183.01"."""
    return int(driver.split(".", 1)[0]) if driver else None


class Catalogue:
    """The tables, loaded once, with the policy applied to every result."""

    def __init__(self, data: str = DATA, policy_path: Optional[str] = POLICY_PATH) -> None:
        self.data = data
        self.actions = {
            row["action"]: Action(row["ec2"], int(row["rank"]), row["meaning"]) for row in rows("actions.csv", data)
        }
        self._xid = {
            int(row["xid"]): (row["name"], row["severity"], row["action"]) for row in rows("xid.csv", data)
        }  # type: Dict[int, Tuple[str, str, str]]
        self._sxid = {
            int(row["sxid"]): (row["name"], row["severity"], row["action"]) for row in rows("sxid.csv", data)
        }  # type: Dict[int, Tuple[str, str, str]]
        self._branches = [
            (int(row["xid"]), int(row["first_branch"]), int(row["last_branch"]), row["name"], row["severity"], row["action"])
            for row in rows("branches.csv", data)
        ]
        self._sxid_branches = rows("sxid_branches.csv", data)
        self._neuron = {row["error"]: row for row in rows("neuron.csv", data)}
        self._gpu_init = {row["error"]: row for row in rows("gpu_init.csv", data)}
        self._stack = {row["error"]: row for row in rows("stack.csv", data)}
        self.version = _version(data)
        self.policy_errors = []  # type: List[str]
        self._policy = {}  # type: Dict[Tuple[str, Union[int, str]], Dict[str, str]]
        if policy_path:
            self._load_policy(policy_path)

    def xid(self, code: int, driver: Optional[str] = None) -> Meaning:
        """Unknown codes are warnings for support. `driver`: some numbers had another meaning in older branches."""
        row = self._xid.get(code)
        branch = _branch(driver)
        if branch is not None:
            for xid, first, last, name, severity, action in self._branches:
                if xid == code and first <= branch <= last:
                    row = (name, severity, action)
        if row:
            meaning = Meaning(row[0], row[1], row[2], "catalogue")
        else:
            meaning = Meaning("Xid %d (not in the catalogue)" % code, "warning", "CONTACT_SUPPORT", "unknown")
        return self.with_policy("xid", code, meaning)

    def sxid(self, code: int, word: str, driver: Optional[str] = None) -> Meaning:
        """`word`: "Fatal", "Non-fatal" or "Correctable" as the driver printed it, else ""."""
        name, severity, action = self._sxid_row(code, driver)
        decided_by = "catalogue"
        by_word = SXID_WORDS.get(word, SXID_WORDS[""])
        if not action:
            (severity, action), decided_by = by_word, "message" if word else "unknown"
        elif word == "Fatal" and SEVERITIES.index(severity) < SEVERITIES.index(by_word[0]):
            (severity, action), decided_by = by_word, "message"
        return self.with_policy("sxid", code, Meaning(name, severity, action, decided_by))

    def _sxid_row(self, code: int, driver: Optional[str]) -> Tuple[str, str, str]:
        """(name, severity, action); the latter two empty where the Fabric Manager user guide does not list the code."""
        older = self._older_sxid(code, driver)
        if older:
            return older["name"], "", ""
        return self._sxid.get(code) or ("SXid %d (not in the catalogue)" % code, "", "")

    def _older_sxid(self, code: int, driver: Optional[str]) -> Optional[Dict[str, str]]:
        """The row of an older branch that numbered its SXids differently; without a driver, where the number is free today."""
        branch = _branch(driver)
        for row in self._sxid_branches:
            if branch is None:
                matches = code not in self._sxid
            else:
                matches = int(row["first_branch"]) <= branch <= int(row["last_branch"])
            if matches and int(row["sxid"]) == code:
                return row
        return None

    def gpu_lost(self) -> Meaning:
        """Meaning of Xid 79, for a loss that the driver reported without an Xid."""
        name, severity, action = self._xid[79]
        return self.with_policy("gpu_lost", 79, Meaning(name + " (no Xid printed)", severity, action, "catalogue"))

    def neuron(self, code: str, asked: str = "") -> Meaning:
        """`asked`: the action that the runtime named. Unknown errors are warnings for support, unless it asks for another host."""
        row = self._neuron.get(code)
        if row:
            meaning = Meaning(row["name"], row["severity"], row["action"], "catalogue")
        else:
            meaning = Meaning("Neuron %s (not in the catalogue)" % code, "warning", "CONTACT_SUPPORT", "unknown")
        if asked == "TERMINATE_INSTANCE" and meaning.action != "NEURON_REPLACE":
            meaning = meaning._replace(severity="fatal", action="NEURON_REPLACE", decided_by="message")
        return self.with_policy("neuron", code, meaning)

    def gpu_init(self, code: str) -> Meaning:
        """`code`: a row of gpu_init.csv."""
        row = self._gpu_init[code]
        return self.with_policy("gpu_init_failed", code, Meaning(row["name"], row["severity"], row["action"], "catalogue"))

    def stack(self, code: str) -> Meaning:
        """`code`: a row of stack.csv."""
        row = self._stack[code]
        return self.with_policy("stack_error", code, Meaning(row["name"], row["severity"], row["action"], "catalogue"))

    def explain_stack(self, code: str) -> Optional[Dict[str, str]]:
        """All columns of an error's row; None for an unknown one."""
        return self._stack.get(code)

    def explain_gpu_init(self, code: str) -> Optional[Dict[str, str]]:
        """All columns of a failure's row; None for an unknown one."""
        return self._gpu_init.get(code)

    def named_codes(self) -> List[str]:
        """The codes that are names: of GPUs that cannot be initialised, of the driver's stack, and of Neuron."""
        return [*self._gpu_init, *self._stack, *self._neuron]

    def explain_neuron(self, code: str) -> Optional[Dict[str, str]]:
        """All columns of an error's row; None for an unknown one."""
        return self._neuron.get(code)

    def with_policy(self, kind: str, code: Union[int, str], meaning: Meaning) -> Meaning:
        """The policy overrides both the catalogue and what the message says."""
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
        """All columns of an Xid's row, sources included, as text; None for an unknown code."""
        return next((row for row in rows("xid.csv", self.data) if int(row["xid"]) == code), None)

    def explain_sxid(self, code: int, driver: Optional[str] = None) -> Optional[Dict[str, str]]:
        """All columns of an SXid's row; None for an unknown code."""
        older = self._older_sxid(code, driver)
        if older:
            return dict(older, severity="", action="", impact="")
        return next((row for row in rows("sxid.csv", self.data) if int(row["sxid"]) == code), None)

    def action_source(self, name: str) -> str:
        return next((row["source"] for row in rows("actions.csv", self.data) if row["action"] == name), "")

    def _load_policy(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                raw = file.read()
        except FileNotFoundError:
            return
        except OSError as error:
            self.policy_errors.append("%s: cannot read: %s; the policy is ignored" % (path, error.strerror))
            return
        try:
            document = json.loads(raw.decode("utf-8"))
        except ValueError as error:
            self.policy_errors.append("%s: not JSON (%s); the policy is ignored" % (path, error))
            return
        self._read_policy(path, document)
        self.version += "+policy:%08x" % (zlib.crc32(raw) & 0xFFFFFFFF)

    def _read_policy(self, path: str, document: Any) -> None:
        if not isinstance(document, dict):
            self.policy_errors.append("%s: expected an object, got %s" % (path, type(document).__name__))
            return
        for kind, entries in document.items():
            if kind not in _POLICY_KINDS or not isinstance(entries, dict):
                expected = '"xid", "sxid", "gpu_lost", "neuron", "gpu_init_failed" or "stack_error" with an object'
                self.policy_errors.append("%s: %s: expected %s" % (path, kind, expected))
                continue
            for code, entry in entries.items():
                where = "%s: %s.%s" % (path, kind, code)
                checked = self._policy_entry(where, entry)
                if kind in _NAMED_CODES:
                    if checked:
                        self._policy[(kind, code)] = checked
                elif checked and code.isdigit():
                    self._policy[(kind, int(code))] = checked
                elif not code.isdigit():
                    self.policy_errors.append("%s: expected a number as code" % where)

    def _policy_entry(self, where: str, entry: Any) -> Dict[str, str]:
        allowed = {"severity": SEVERITIES, "action": tuple(sorted(self.actions))}
        if not isinstance(entry, dict):
            self.policy_errors.append("%s: expected an object, got %s" % (where, type(entry).__name__))
            return {}
        checked = {}
        for key, value in entry.items():
            if key == "note":
                continue
            if key not in allowed:
                self.policy_errors.append("%s: unknown key %s, expected severity, action or note" % (where, key))
            elif value not in allowed[key]:
                self.policy_errors.append(
                    "%s.%s: expected one of %s, got %r" % (where, key, ", ".join(allowed[key]), value)
                )
            else:
                checked[key] = value
        return checked
