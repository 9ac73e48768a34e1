"""NVLink 5 faults, Xid 144 to 150: unit, action and severity from the message's words, by driver branch.

Message: `<UNIT> <Fatal|Nonfatal> XC<0|1> i<0|1> Link <nn|-1> (intrInfo errStatus dbg0 … dbg4)`. The unit stands in
intrInfo[9:5] before R575 and in intrInfo[6:0] from it; NVIDIA's sheet gives a mask for each. A line that no rule
knows is never harmless: the driver's own Fatal or Nonfatal decides then, and support is asked.
"""

from __future__ import annotations

import csv
import os
import re
from typing import Any, Dict, List, NamedTuple, Optional

_LINE = re.compile(
    r"(?P<unit>[A-Z0-9_/]+(?: [A-Z][A-Za-z]+)?)\s+(?P<fatality>Fatal|Nonfatal|Non-fatal|Link Fatal)\s+XC(?P<xc>[01])\s+i(?P<instance>\d+)"
    r"\s+Link\s+(?P<link>-?\d+)\s*\((?P<words>0x[0-9a-fA-F]+(?:[ ,]+0x[0-9a-fA-F]+)+)\s*\)",
    re.ASCII,
)
FIRST_V2_BRANCH = 575
_SEVERITY = {"Fatal": "critical", "Link Fatal": "critical", "Non-fatal": "warning"}


class Decoded(NamedTuple):
    """`matched` False: no rule of the sheet fits, so action and severity come from the driver's own word."""

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
    """`mask`: 32 characters, most significant first; 0 and 1 must be there, `-` may be anything."""
    bits = format(value & 0xFFFFFFFF, "032b")
    return all(want in ("-", have) for want, have in zip(mask, bits))


class Nvlink5:
    """The sheet's rules, read when the first of these Xids comes."""

    def __init__(self, data: str) -> None:
        with open(os.path.join(data, "nvlink5.csv"), encoding="utf-8", newline="") as file:
            self._rules = [
                _Rule(
                    int(row["xid"]), row["unit"], {"v1": row["v1"], "v2": row["v2"]},
                    [int(word, 16) for word in row["error_status"].split("/") if word],
                    row["action"], row["investigate"], row["severity"].rstrip("*?"), row["hw_sw"], row["effects"],
                )
                for row in csv.DictReader(file)
            ]  # fmt: skip

    def decode(self, code: int, message: str, driver: Optional[str]) -> Optional[Decoded]:
        """None where the message does not have the layout at all."""
        found = _LINE.match(message)
        if found is None:
            return None
        words = [int(word, 16) for word in re.findall(r"0x[0-9a-fA-F]+", found.group("words"))]
        fatal = found.group("fatality") in ("Fatal", "Link Fatal")
        details = {
            "unit": found.group("unit"), "fatality": found.group("fatality"), "link": int(found.group("link")),
            "intr_info": "0x%08x" % words[0], "error_status": "0x%08x" % words[1],
        }  # type: Dict[str, Any]  # fmt: skip
        layouts = [_layout(driver)] if driver else ["v2", "v1"]
        for layout in layouts:
            rules = [rule for rule in self._rules if rule.xid == code and _fits(rule.masks[layout], words[0])]
            chosen = _choose(rules, words[1], fatal)
            if chosen:
                details.update(layout=layout, layout_known=bool(driver), rule_unit=chosen.unit, rule_severity=chosen.severity,
                               investigate=chosen.investigate, hw_sw=chosen.hw_sw, effects=chosen.effects)  # fmt: skip
                return Decoded(_SEVERITY[chosen.severity], chosen.action, True, details)
        severity, action = ("critical", "RESET_GPU") if fatal else ("warning", "CONTACT_SUPPORT")
        return Decoded(severity, action, False, details)


def _layout(driver: str) -> str:
    return "v2" if int(driver.split(".", 1)[0]) >= FIRST_V2_BRANCH else "v1"


def _choose(rules: List[_Rule], status: int, fatal: bool) -> Optional[_Rule]:
    """The rule of exactly this status; else, several bits at once, the worst of the rules of its bits."""
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
    # The driver called it fatal and the sheet does not: no rule then, rather than a harmless one.
    return None if fatal and heaviest.severity == "Non-fatal" and heaviest.action == "IGNORE" else heaviest
