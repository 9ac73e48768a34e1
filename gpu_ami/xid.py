"""What an Xid or SXid means: name, cause, severity, action, the action's meaning on EC2, and who says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpu_ami.errors import UsageError
from gpu_ami.events import parser_module

_FIRST_SXID = 10000
_CAUSES = {
    "hw": "hardware", "driver": "driver", "app": "application", "sysmem": "system memory", "bus": "bus",
    "thermal": "heat", "fb": "GPU memory", "derived": "follows another fault",
}  # fmt: skip


@dataclass(frozen=True)
class Explanation:
    """One code. `causes`: possible origins, in NVIDIA's order; `sources`: where each judgement comes from."""

    kind: str
    code: int
    name: str
    mnemonic: str
    status: str
    causes: tuple[str, ...]
    severity: str
    action: str
    ec2_action: str
    ec2_meaning: str
    investigate: str
    sources: tuple[str, ...]
    catalogue: str
    notes: tuple[str, ...] = ()


def explain(word: str, driver: str | None = None) -> Explanation:
    """`word`: "63", "Xid 63", or an SXid as "22013". UsageError where the catalogue does not know it."""
    digits = word.lower().removeprefix("sxid").removeprefix("xid").strip(" :")
    if not digits.isdigit() or len(digits) > 10:
        raise UsageError(f"{word!r} is not an Xid", hint="gpu-ami xid 63; an SXid has five digits: gpu-ami xid 22013")
    if driver is not None and not driver.split(".", 1)[0].isdigit():
        raise UsageError(f"--driver {driver!r} is not a driver version", hint="--driver 550.163.01")
    code = int(digits)
    catalogue = parser_module("catalogue").Catalogue(policy_path=None)
    is_sxid = code >= _FIRST_SXID or word.lower().startswith("sxid")
    found = _sxid(catalogue, code) if is_sxid else _xid(catalogue, code, driver)
    if found is None:
        raise UsageError(
            f"{word}: not in the catalogue ({catalogue.version})",
            hint="the parser keeps such events as warnings; show the line to AWS Support with the instance id",
        )
    return found


def _xid(catalogue: Any, code: int, driver: str | None) -> Explanation | None:
    row: dict[str, str] | None = catalogue.explain(code)
    if row is None:
        return None
    meaning = catalogue.xid(code, driver)
    action = catalogue.action(meaning.action)
    sources = [f"name and action: {row['source']}", f"severity: this project ({row['severity_rule']})"]
    if row["cause_source"]:
        sources.append(f"cause: {row['cause_source']}")
    if row["action_source"] not in ("", row["source"]):
        sources.append(f"action: {row['action_source']}")
    return Explanation(
        "xid", code, meaning.name, row["mnemonic"], row["status"],
        tuple(_CAUSES[word] for word in row["cause"].split("|") if word in _CAUSES),
        meaning.severity, meaning.action, action.ec2, action.meaning, row["investigate"], tuple(sources),
        catalogue.version, _notes(code, row, meaning.severity),
    )  # fmt: skip


def _notes(code: int, row: dict[str, str], severity: str) -> tuple[str, ...]:
    notes = []
    if severity == "decode":
        notes.append("Severity and action stand in the line itself: the parser decodes it by driver branch.")
    if code == 154:
        notes.append("The line names the recovery action; the parser goes by its hex code, for the label was reworded.")
    if code == 45:
        notes.append("A consequence of another fault on the same GPU; only alone does it mean anything by itself.")
    if code == 63:
        notes.append("The row is replaced at the next GPU reset; a 64 after it says that no spare row was left.")
    if code == 119:
        notes.append("The driver prints one of 30 after its rate-limit notice: counts are at-least counts.")
    if row["status"] != "current":
        notes.append("Not used by NVIDIA any more; older boards and drivers may still print it.")
    return tuple(notes)


def _sxid(catalogue: Any, code: int) -> Explanation | None:
    row: dict[str, str] | None = catalogue.explain_sxid(code)
    if row is None:
        return None
    meaning = catalogue.sxid(code, "")
    action = catalogue.action(meaning.action)
    notes = () if row["class"] else ("No published class: the line's own Fatal or Non-fatal decides.",)
    return Explanation(
        "sxid", code, meaning.name, row["mnemonic"], "current", ("NVSwitch",), meaning.severity, meaning.action,
        action.ec2, action.meaning, "", (row["source"], "severity: this project, by class"), catalogue.version, notes,
    )  # fmt: skip


def as_text(found: Explanation) -> str:
    """For people."""
    title = f"{'SXid' if found.kind == 'sxid' else 'Xid'} {found.code}: {found.name}"
    rows = [
        ("driver's name", found.mnemonic),
        ("possible cause", ", ".join(found.causes) or "not published"),
        ("severity", found.severity),
        ("action", found.action + (f" (then {found.investigate})" if found.investigate else "")),
        ("on EC2", f"{found.ec2_action}: {found.ec2_meaning}"),
        *(("note", note) for note in found.notes),
        *(("source", source) for source in found.sources),
        ("catalogue", found.catalogue),
    ]
    return "\n".join([title, *(f"  {label:<15} {value}" for label, value in rows if value)])
