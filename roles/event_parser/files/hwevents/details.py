"""What single messages say beyond their code: pure functions, one a family. Shapes: kernel_rc.c and its callers, 515 to 595."""

from __future__ import annotations

import re
from typing import Any, Dict, Optional

# ctrl2080gpu.h, NV2080_CTRL_GPU_RECOVERY_ACTION_*: the number is the contract, the label was reworded in R610.
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
    r" to 0x(?P<new>[0-9a-fA-F]{1,8}) \((?P<new_label>[^)]*)\)"
)
_CONTAINMENT = re.compile(
    r"(?P<how>Contained|Uncontained): (?P<unit>[^(]{1,60}?) ?\([^)]*\)\..*?RST: (?P<reset>Yes|No), D-RST: (?P<deferred>Yes|No)"
)
_MMU = re.compile(
    r"Ch(?:annel)? (?:ID )?(?P<channel>[0-9a-fA-Fx]+)(?:, intr (?P<intr>[0-9a-fA-F]+))?\. MMU Fault: ENGINE (?P<engine>.+?)"
    r" faulted @ 0x(?P<hi>[0-9a-fA-F]+)_(?P<lo>[0-9a-fA-F]+)\. Fault is of type (?P<type>\w+) (?P<access>ACCESS_TYPE_\w+)"
)
_ROW = re.compile(r"(?:Row Remapper: New row|Row Remapper Error:|DRAM Retirement)")
_NVLINK = re.compile(r"NVLink: (?:fatal error detected|Link training failed) (?:on|for) link (?P<link>\d+)\s?\((?P<words>[^)]*)\)")
_GSP = re.compile(r"Expected function (?P<function>\d+) \((?P<name>[A-Z0-9_]+)\)")
_SM = re.compile(r"\(GPC (?P<gpc>\d+), TPC (?P<tpc>\d+), SM (?P<sm>\d+)\)")
_SXID_LINK = re.compile(r"\bLink (?P<link>\d+)\b")


def recovery(message: str) -> Optional[Dict[str, Any]]:
    """Xid 154: old and new recovery action, by the hex number."""
    found = _RECOVERY.search(message)
    if found is None:
        return None
    old, new = int(found.group("old"), 16), int(found.group("new"), 16)
    return {
        "from": old,
        "to": new,
        "recovery_action": RECOVERY_ACTIONS[new][0] if new in RECOVERY_ACTIONS else "unknown",
        "label": found.group("new_label"),
    }


def containment(message: str) -> Optional[Dict[str, Any]]:
    """Xid 94 and 95: the unit, and whether a reset (now, or deferred) is wanted."""
    found = _CONTAINMENT.search(message)
    if found is None:
        return None
    return {
        "contained": found.group("how") == "Contained",
        "unit": found.group("unit").strip(),
        "reset_required": found.group("reset") == "Yes",
        "deferred_reset": found.group("deferred") == "Yes",
    }


def _mmu(message: str) -> Optional[Dict[str, Any]]:
    found = _MMU.search(message)
    if found is None:
        return None
    return {
        "channel": found.group("channel"),
        "engine": found.group("engine"),
        "address": "0x%s%s" % (found.group("hi"), found.group("lo").zfill(8)),
        "fault": found.group("type"),
        "access": found.group("access"),
    }


def _graphics(message: str) -> Optional[Dict[str, Any]]:
    found = _SM.search(message)
    return {key: int(value) for key, value in found.groupdict().items()} if found else None


def _nvlink(message: str) -> Optional[Dict[str, Any]]:
    found = _NVLINK.search(message)
    return {"link": int(found.group("link")), "words": found.group("words").replace(" ", "").split(",")} if found else None


def _gsp(message: str) -> Optional[Dict[str, Any]]:
    found = _GSP.search(message)
    return {"function": int(found.group("function")), "function_name": found.group("name")} if found else None


def _remap(message: str) -> Optional[Dict[str, Any]]:
    found = _ROW.search(message)
    return {"reset_pending": "reset gpu to activate" in message} if found else None


_FAMILIES = {
    13: _graphics, 31: _mmu, 63: _remap, 64: _remap, 74: _nvlink, 94: containment, 95: containment,
    119: _gsp, 136: _nvlink, 137: _mmu, 154: recovery,
}  # fmt: skip


def extract(code: int, message: str) -> Dict[str, Any]:
    """The family's fields; empty where the code has none or the message another shape."""
    family = _FAMILIES.get(code)
    return (family(message) or {}) if family else {}


def sxid_link(message: str) -> Optional[int]:
    found = _SXID_LINK.search(message)
    return int(found.group("link")) if found else None
