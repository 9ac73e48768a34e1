"""NVLink 5 faults, Xid 144 to 150: unit, action and severity from the words of the message, by driver branch.

Message: `<UNIT> <Fatal|Nonfatal> XC<0|1> i<0|1> Link <nn|-1> (intrInfo errStatus dbg0 … dbg4)`. The unit is
intrInfo[9:5] before R575 and intrInfo[6:0] from R575 on; NVIDIA's table (Xid-Catalog.xlsx) has a mask for each. Where no
rule matches, the driver's own Fatal or Nonfatal decides.
"""

from __future__ import annotations

import csv
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional

_LINE = re.compile(
    r"(?P<unit>[A-Z0-9_/]+(?: [A-Za-z][a-z]+)?)\s+(?P<fatality>Fatal|Nonfatal|Non-fatal|Link Fatal)\s+XC(?P<xc>[01])\s+i(?P<instance>\d+)"
    r"\s+Link\s+(?P<link>-?\d+)(?:\s*\((?P<words>0x[0-9a-fA-F]+(?:[ ,]+0x[0-9a-fA-F]+)+)(?P<closed>\s*\))?)?",
    re.ASCII,
)
_OPEN = re.compile(r"\s*\([^)]*$")
FIRST_V2_BRANCH = 575
_SEVERITY = {"Fatal": "critical", "Link Fatal": "critical", "Non-fatal": "warning"}


class Decoded(NamedTuple):
    """`matched` False: no rule of the table matches, so the driver's own word gives action and severity."""

    severity: str
    action: str
    matched: bool
    details: Dict[str, Any]


class _Rule(NamedTuple):
    xid: int
    unit: str
    masks: Dict[str, str]
    statuses: List[int]
    action: str
    investigate: str
    severity: str
    hw_sw: str
    effects: str


def _fits(mask: str, value: int) -> bool:
    """`mask`: 32 characters, most significant bit first; 0 and 1 must match, `-` matches both."""
    bits = format(value & 0xFFFFFFFF, "032b")
    return all(expected in ("-", bit) for expected, bit in zip(mask, bits))


class Nvlink5:
    """The table's rules, read when the first of these Xids arrives."""

    def __init__(self, data: str) -> None:
        self.rules = []  # type: List[_Rule]
        with open(os.path.join(data, "nvlink5.csv"), encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                self.rules += _rules_of(row)

    def decode(self, code: int, message: str, driver: Optional[str]) -> Optional[Decoded]:
        """None where the message has another format."""
        match = _LINE.match(message)
        if match is None:
            return None
        words = [int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", match.group("words") or "")]
        fatal = match.group("fatality") in ("Fatal", "Link Fatal")
        details = {
            "unit": match.group("unit"), "fatality": match.group("fatality"), "link": int(match.group("link")),
        }  # type: Dict[str, Any]  # fmt: skip
        if (match.group("words") is None and _OPEN.match(message, match.end())) or (
            match.group("words") and not match.group("closed")
        ):
            details["words_cut"] = True
        whole = len(words) > 2 or (len(words) == 2 and match.group("closed"))  # a line that was cut may end in a word
        if whole:
            details.update(intr_info="0x%08x" % words[0], error_status="0x%08x" % words[1])
        layouts = [layout_of(driver)] if driver else ["v2", "v1"]
        for layout in layouts if whole else ():
            rules = [rule for rule in self.rules if rule.xid == code and _fits(rule.masks[layout], words[0])]
            chosen = _choose(rules, words[1], fatal)
            if chosen:
                details.update(layout=layout, layout_known=bool(driver), rule_unit=chosen.unit, rule_severity=chosen.severity,
                               investigate=chosen.investigate, hw_sw=chosen.hw_sw, effects=chosen.effects)  # fmt: skip
                return Decoded(_SEVERITY[chosen.severity], chosen.action, True, details)
        severity, action = ("critical", "RESET_GPU") if fatal else ("warning", "CONTACT_SUPPORT")
        return Decoded(severity, action, False, details)


def _rules_of(row: Dict[str, str]) -> List[_Rule]:
    """The rule of a row, and a second one where another mask needs another action (errors promoted to fatal)."""
    severity, action = row["severity"].rstrip("*?"), row["action"]
    if action == "IGNORE" and severity != "Non-fatal":
        action = "CHECK_LINK_DOWN"  # no reset needed, but the link is down
    statuses = [int(word, 16) for word in row["error_status"].split("/") if word]
    rule = _Rule(
        int(row["xid"]), row["unit"], {"v1": row["v1"], "v2": row["v2"]}, statuses,
        action, row["investigate"], severity, row["hw_sw"], row["effects"],
    )  # fmt: skip
    if not row["second_action"]:
        return [rule]
    masks = {"v1": row["second_action_v1"], "v2": row["second_action_v2"]}
    return [rule, rule._replace(masks=masks, action=row["second_action"], severity="Fatal")]


def layout_of(driver: str) -> str:
    return "v2" if int(driver.split(".", 1)[0]) >= FIRST_V2_BRANCH else "v1"


def _choose(rules: List[_Rule], status: int, fatal: bool) -> Optional[_Rule]:
    """The rule of exactly this status; for several bits at once, the worst of the rules of its bits."""
    exact = [rule for rule in rules if not rule.statuses or status in rule.statuses]
    single = exact or [
        rule for rule in rules if any(bit and status & bit == bit and bit & (bit - 1) == 0 for bit in rule.statuses)
    ]
    covered = 0
    for rule in single:
        for bit in rule.statuses:
            covered |= bit
    if not single or (not exact and status & ~covered):
        return None
    by_weight = sorted(single, key=lambda rule: (rule.severity != "Non-fatal", rule.action == "RESET_GPU"))
    heaviest = by_weight[-1]
    # The driver calls it fatal and the table harmless: the driver decides.
    return None if fatal and heaviest.severity == "Non-fatal" and heaviest.action == "IGNORE" else heaviest
