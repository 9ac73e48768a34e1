"""Fields of single messages: pure functions, one for each family of codes. Formats: kernel_rc.c and its callers, R515 to R595."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional, Tuple

from . import readings

# ctrl2080gpu.h, NV2080_CTRL_GPU_RECOVERY_ACTION_*: (name, severity, action). R610 changed the labels, not the numbers.
RECOVERY_ACTIONS = {
    0: ("none", "info", "IGNORE"),
    1: ("gpu_reset", "critical", "RESET_GPU"),
    2: ("node_reboot", "fatal", "RESTART_VM"),
    3: ("drain_p2p", "critical", "DRAIN_P2P"),
    4: ("drain_and_reset", "critical", "DRAIN_RESET"),
    5: ("recover_imex_domain", "critical", "RECOVER_IMEX"),
}
_RECOVERY = re.compile(
    r"GPU recovery action changed from 0x(?P<old>[0-9a-fA-F]{1,8}) \((?P<old_label>[^)]*)\)"
    r" to 0x(?P<new>[0-9a-fA-F]{1,8})(?: \((?P<new_label>[^)]*)|(?![0-9a-fA-F]))"  # a line may be cut in the label
)
_CONTAINMENT = re.compile(
    r"(?P<how>Contained|Uncontained): (?P<unit>[^(.]{1,60}?) ?(?:\([^)]*\))?\..*?RST: (?P<reset>Yes|No), D-RST: (?P<deferred>Yes|No)"
)
_MMU = re.compile(
    r"Ch(?:annel)? (?:ID )?(?P<channel>[0-9a-fA-Fx]+)(?:, intr (?P<intr>[0-9a-fA-F]+))?\. MMU Fault: ENGINE (?P<engine>.+?)"
    r" faulted @ 0x(?P<hi>[0-9a-fA-F]+)_(?P<lo>[0-9a-fA-F]+)\. Fault is of type (?P<type>\w+) (?P<access>ACCESS_TYPE_\w+)"
)
_ROW = re.compile(r"(?:(?:Row|Bank) Remapper: |Row Remapper Error:|DRAM Retirement)")
# What a reset activates, of rows, banks, channels and slices: words of ras_events.c (615.71.09), also in Xids that report a failure:
# `Attempting to remap a row that is already pending remapping. Remapping will occur when the GPU is reset`.
_PENDING = re.compile(
    r"reset gpu to activate|will occur when the GPU is reset|due to pending (?:row|bank) remap\b|due to pending LTS swap\b"
)
_REPAIR = re.compile(
    r"\bMarking (?P<unit>Channel|LTS) .*?\b(?:Perform (?P<activation>[A-Za-z ]{1,30}) to activate repair|(?:Reboot|Reset) Required)"
)
_NVLINK = re.compile(
    r"NVLink: (?:fatal error detected|Link training failed) (?:on|for) links? (?P<link>\d{1,3})\b(?:[\d ]{0,80}\((?P<words>[^)]*)\))?"
)
_SW_LINK = re.compile(r"NVLINK_SW_DEFINED_ERROR +(?P<fatality>Fatal|Nonfatal) +XC[01] i\d Link (?P<link>\d{1,3})\b")
_GSP = re.compile(r"Expected function (?P<function>\d+) \((?P<name>[A-Z0-9_]+)\)")
_SM = re.compile(r"\(GPC (?P<gpc>\d+), TPC (?P<tpc>\d+)(?:, SM (?P<sm>\d+))?\)")
_SXID_LINK = re.compile(r"\bLink (?P<link>\d+)\b")
_SXID_SEVERITY = re.compile(
    r"Severity (?P<severity>\d+) Engine instance (?P<engine>\d+) Sub-engine instance (?P<sub_engine>\d+)"
)


def recovery(message: str) -> Optional[Dict[str, Any]]:
    """Xid 154: the recovery action before and after, by its number."""
    match = _RECOVERY.search(message)
    if match is None:
        return None
    old, new = int(match.group("old"), 16), int(match.group("new"), 16)
    return {
        "from": old,
        "to": new,
        "recovery_action": RECOVERY_ACTIONS[new][0] if new in RECOVERY_ACTIONS else "unknown",
        "label": match.group("new_label") or "",
    }


def containment(message: str) -> Optional[Dict[str, Any]]:
    """Xid 94 and 95: the unit, and whether it needs a reset now or a deferred one."""
    match = _CONTAINMENT.search(message)
    if match is None:
        return None
    return {
        "contained": match.group("how") == "Contained",
        "unit": match.group("unit").strip(),
        "reset_required": match.group("reset") == "Yes",
        "deferred_reset": match.group("deferred") == "Yes",
    }


def _mmu(message: str) -> Optional[Dict[str, Any]]:
    match = _MMU.search(message)
    if match is None:
        return None
    return {
        "channel": match.group("channel"),
        "engine": match.group("engine"),
        "address": "0x%s%s" % (match.group("hi"), match.group("lo").zfill(8)),
        "fault": match.group("type"),
        "access": match.group("access"),
    }


def _graphics(message: str) -> Optional[Dict[str, Any]]:
    match = _SM.search(message)
    return {key: int(value) for key, value in match.groupdict().items() if value} if match else None


def _nvlink(message: str) -> Optional[Dict[str, Any]]:
    match = _NVLINK.search(message)
    if match is None:
        return None
    words = match.group("words")
    return {"link": int(match.group("link")), **({"words": words.replace(" ", "").split(",")} if words else {})}


def _software_link(message: str) -> Optional[Dict[str, Any]]:
    """Xid 155: the link that went down while it was in use (nvlink_events.c of 615.71.09)."""
    match = _SW_LINK.search(message)
    return {"fatality": match.group("fatality"), "link": int(match.group("link"))} if match else None


def _gsp(message: str) -> Optional[Dict[str, Any]]:
    match = _GSP.search(message)
    return {"function": int(match.group("function")), "function_name": match.group("name")} if match else None


def _remap(message: str) -> Optional[Dict[str, Any]]:
    return {"reset_pending": _PENDING.search(message) is not None} if _ROW.search(message) else None


def _repair(message: str) -> Optional[Dict[str, Any]]:
    """Xid 160: a memory channel or an L2 slice that is replaced at the next reset or reboot."""
    match = _REPAIR.search(message)
    if match is None:
        return None
    activation = match.group("activation")
    return {"unit": match.group("unit"), "reset_pending": True, **({"activation": activation} if activation else {})}


_FAMILIES = {
    13: _graphics, 31: _mmu, 63: _remap, 64: _remap, 74: _nvlink, 94: containment, 95: containment,
    119: _gsp, 136: _nvlink, 137: _mmu, 154: recovery, 155: _software_link, 160: _repair, 177: _remap,
}  # fmt: skip


def extract(code: int, message: str) -> Dict[str, Any]:
    """Fields of the code's family; empty where the code has none or the message another format."""
    family = _FAMILIES.get(code)
    return (family(message) or {}) if family else {}


def sxid_link(message: str) -> Optional[int]:
    match = _SXID_LINK.search(message)
    return int(match.group("link")) if match else None


def sxid_follow_up(message: str) -> Dict[str, Any]:
    """Severity (0 non-fatal, 1 fatal) and engine instances of a follow-up line; empty for a line of data words."""
    match = _SXID_SEVERITY.match(message)
    if match is None:
        return {}
    return {"driver_severity": int(match.group("severity")), "engine": int(match.group("engine")),
            "sub_engine": int(match.group("sub_engine"))}  # fmt: skip


BANK_PENDING = "bank_remapper_pending"  # as little urgent as a row that waits for its remapping


def board_advice(board: Dict[str, Any]) -> Tuple[str, str]:
    """(severity, action) for a GPU's state at boot as `nvidia-smi -q -x` reports it; ("info", "IGNORE") for a healthy one."""
    advice = [("info", "IGNORE")]
    if board.get("unknown_count"):  # a GPU that does not answer is not a healthy one
        advice.append(("warning", "RESTART_VM"))
    if "Yes" in (board.get("remap_pending"), board.get(BANK_PENDING)):
        advice.append(("warning", "SCHEDULE_RESET"))
    elements = ("recovery_action", "reset_required", "drain_and_reset_recommended")
    reported, number = readings.recovery_asked(*(board.get(name) for name in elements))
    if reported:
        advice.append(RECOVERY_ACTIONS.get(number, ("", "warning", "CONTACT_SUPPORT"))[1:])
    names = [name for name in readings.REPAIRS if name != BANK_PENDING]
    asked = {readings.REPAIRS[name][0] for name in names if readings.read_flag(board.get(name)).is_set()}
    if "schedule_reboot" in asked:
        advice.insert(1, ("critical", "SCHEDULE_RESET"))
    if board.get("remap_failure") == "Yes" or "isolate" in asked:
        advice.append(("fatal", "ISOLATE"))
    return advice[-1]
