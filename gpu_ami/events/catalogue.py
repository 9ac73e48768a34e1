"""The meaning of an Xid or SXid: name, cause, severity, action, the action on EC2, and the source of each."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from gpu_ami.errors import UsageError
from gpu_ami.events.reader import parser_module
from validator.schema import did_you_mean

_FIRST_SXID = 10000
_CAUSES = {
    "hw": "hardware", "driver": "driver", "app": "application", "sysmem": "system memory", "bus": "bus",
    "thermal": "heat", "fb": "GPU memory", "derived": "follows another fault",
}  # fmt: skip
_NOTES = {
    45: "A consequence of another event on the same GPU; it needs an action only where it comes alone.",
    63: "The row is replaced at the next GPU reset. Xid 64 means that no spare row was left.",
    119: "After its rate-limit notice the driver prints one of 30 timeouts: counts are minimum counts.",
    154: "The line names the recovery action. The parser uses its number, because drivers changed the labels.",
}
SEVERITIES = ("info", "app", "warning", "critical", "fatal", "decode", "derived")
EC2_ACTIONS = (
    "none", "monitor", "restart_application", "update_driver", "check_link", "check_cooling", "aws_support",
    "schedule_reboot", "drain", "reboot", "stop_start", "isolate",
)  # fmt: skip
NODE_OPTION = "--node eks|ecs|slurm|asg"  # of `gpu-ami runbook`
_SOURCE_LABELS = {"causes": "cause", "ec2_action": "on EC2"}
_RESET_NOTE = "EC2 blocks GPU resets from inside an instance; nvidia-smi --gpu-reset ends with an error there."


@dataclass(frozen=True)
class Explanation:
    """One code. `causes`: possible causes, in NVIDIA's order; `impact`: effect on jobs, "" where none is published.
    `sources`: field to the source of its value.
    """

    kind: Literal["xid", "sxid", "gpu_init_failed", "stack_error", "neuron"]
    code: int | str
    name: str
    mnemonic: str
    status: str
    causes: tuple[str, ...]
    severity: Annotated[str, SEVERITIES]
    action: str
    ec2_action: Annotated[str, EC2_ACTIONS]
    ec2_meaning: str
    investigate: str
    sources: Mapping[str, str]
    catalogue: str
    notes: tuple[str, ...] = ()
    impact: str = ""


@functools.cache
def _catalogue() -> Any:
    """The parser's catalogue, read once, without a host's policy."""
    return parser_module("catalogue").Catalogue(policy_path=None)


_IN_A_LINE = re.compile(r"(?i)\b(S?Xid)\s*\(PCI[^)]*\)\s*:?\s*(\d{1,5})\b")
_LOST = re.compile(r"(?i)GPU .*has fallen off the bus")


def _of_line(word: str) -> str:
    """The code in a line of a kernel log, whatever stands around it; else the word as it is."""
    found = _IN_A_LINE.search(word)
    if found:
        return f"{found[1]} {found[2]}"
    return "Xid 79" if _LOST.search(word) else word


def explain(word: str, driver: str | None = None) -> Explanation:
    """`word`: "63", "Xid 63", an SXid as "22013", a name of gpu_init.csv or neuron.csv, or a line that has one.

    UsageError for an unknown code or an invalid driver version.
    """
    named = _named(_catalogue(), word.strip().upper().replace("-", "_"))
    if named is not None:
        return named
    word = _of_line(word)
    digits = word.lower().removeprefix("sxid").removeprefix("xid").strip(" :")
    if not digits.isdigit() or len(digits) > 10:
        raise UsageError(
            f"{word!r} is not an Xid{did_you_mean(word, _names())}",
            hint="gpu-ami xid 63; an SXid has five digits: gpu-ami xid 22013; or a name: "
            f"{', '.join(_names()[:3])}, … (docs/event-parser.md); a whole log: gpu-ami events FILE",
        )
    if driver is not None and not driver.split(".", 1)[0].isdigit():
        raise UsageError(f"--driver {driver!r} is not a driver version", hint="--driver 550.163.01")
    code = int(digits)
    catalogue = _catalogue()
    is_sxid = code >= _FIRST_SXID or word.lower().startswith("sxid")
    explanation = _sxid(catalogue, code, driver) if is_sxid else _xid(catalogue, code, driver)
    if explanation is None:
        raise UsageError(
            f"{word}: not in the catalogue ({catalogue.version})",
            hint="the parser reports it as a warning; open a case with AWS Support with instance ID and log line",
        )
    return explanation


@dataclass(frozen=True)
class NamedError:
    """An error whose code is a name. One of Neuron's that the catalogue lacks is a warning for AWS Support."""

    name: str
    severity: str
    action: str
    ec2_action: str


def neuron_error(code: str) -> NamedError:
    catalogue = _catalogue()
    meaning = catalogue.neuron(code)
    return NamedError(meaning.name, meaning.severity, meaning.action, catalogue.action(meaning.action).ec2)


def stack_error(code: str) -> NamedError:
    """An error of the installation or of a program; an unknown name is taken as the Fabric Manager's failure."""
    catalogue = _catalogue()
    meaning = catalogue.stack(code if catalogue.explain_stack(code) else "FABRIC_MANAGER_FAILED")
    return NamedError(meaning.name, meaning.severity, meaning.action, catalogue.action(meaning.action).ec2)


def gpu_init_error(code: str) -> NamedError:
    """Why a GPU cannot be initialised. A name that a newer parser wrote is taken as the driver's general failure."""
    catalogue = _catalogue()
    meaning = catalogue.gpu_init(code if catalogue.explain_gpu_init(code) else "RM_INIT_FAILED")
    return NamedError(meaning.name, meaning.severity, meaning.action, catalogue.action(meaning.action).ec2)


def _names() -> list[str]:
    """Codes that are names: why a GPU cannot be initialised, errors of the driver's stack and of Neuron."""
    return list(_catalogue().named_codes())


def _named(catalogue: Any, word: str) -> Explanation | None:
    init, stack = catalogue.explain_gpu_init(word), catalogue.explain_stack(word)
    row: dict[str, str] | None = init or stack or catalogue.explain_neuron(word)
    if row is None:
        return None
    meaning = catalogue.gpu_init(word) if init else catalogue.stack(word) if stack else catalogue.neuron(word)
    action = catalogue.action(meaning.action)
    sources = {"name": row["source"], "severity": "this project", "ec2_action": catalogue.action_source(meaning.action)}
    notes = ("No Xid follows: the driver cannot talk to the GPU.",) if init else ()
    return Explanation(
        "gpu_init_failed" if init else "stack_error" if stack else "neuron",
        word, meaning.name, word, "current", (), meaning.severity,
        meaning.action, action.ec2, action.instructions(None), "", sources, catalogue.version, notes,
    )  # fmt: skip


def _xid(catalogue: Any, code: int, driver: str | None) -> Explanation | None:
    row: dict[str, str] | None = catalogue.explain(code)
    if row is None:
        return None
    meaning = catalogue.xid(code, driver)
    action = catalogue.action(meaning.action)
    sources = {
        "name": row["source"],
        "action": row["action_source"] or row["source"],
        "severity": f"this project ({row['severity_rule']})",
    }
    if row["cause_source"]:
        sources["causes"] = row["cause_source"]
    sources["ec2_action"] = catalogue.action_source(meaning.action)
    mnemonic = row["mnemonic"] if meaning.name == row["name"] else row["older_mnemonic"]
    return Explanation(
        "xid", code, meaning.name, mnemonic, row["status"],
        tuple(_CAUSES[word] for word in row["cause"].split("|") if word in _CAUSES),
        meaning.severity, meaning.action, action.ec2, action.instructions(None), row["investigate"],
        sources, catalogue.version,
        _notes(code, row, meaning.severity, action.meaning),
    )  # fmt: skip


def _notes(code: int, row: dict[str, str], severity: str, instructions: str) -> tuple[str, ...]:
    notes = []
    if severity == "decode":
        notes.append("Severity and action are in the line itself; the parser decodes it by driver branch.")
    if code in _NOTES:
        notes.append(_NOTES[code])
    if "EC2 blocks" in instructions:
        notes.append(_RESET_NOTE)
    if row["status"] != "current":
        notes.append("NVIDIA does not use this code any more; older GPUs and drivers may still print it.")
    return tuple(notes)


def _sxid(catalogue: Any, code: int, driver: str | None) -> Explanation | None:
    row: dict[str, str] | None = catalogue.explain_sxid(code, driver)
    if row is None:
        return None
    meaning = catalogue.sxid(code, "", driver)
    action = catalogue.action(meaning.action)
    notes = [] if meaning.decided_by == "catalogue" else [
        "The Fabric Manager user guide does not list this code: Fatal or Non-fatal in the line decides."
    ]  # fmt: skip
    if "EC2 blocks" in action.meaning:
        notes.append(_RESET_NOTE)
    return Explanation(
        "sxid", code, meaning.name, row["mnemonic"], "current", ("NVSwitch",), meaning.severity, meaning.action,
        action.ec2, action.instructions(None), "",
        {
            "name": row["source"], "severity": "this project",
            "ec2_action": catalogue.action_source(meaning.action),
        },
        catalogue.version, tuple(notes), row["impact"],
    )  # fmt: skip


def as_text(explanation: Explanation, first: str = "") -> str:
    """The explanation as text. first: what the alarm's runbook says to do first; "" where there is no alarm."""
    label = {"sxid": "SXid", "gpu_init_failed": "GPU initialisation", "stack_error": "Stack", "neuron": "Neuron"}.get(
        explanation.kind, "Xid"
    )
    title = f"{label} {explanation.code}: {explanation.name}"
    investigate = explanation.investigate
    is_more = investigate not in ("", explanation.action) and not investigate.startswith("IGNORE")
    then = f" (then {investigate})" if is_more else ""
    rows = [
        ("driver's name", explanation.mnemonic),
        ("possible cause", ", ".join(explanation.causes) or "not published"),
        ("impact", explanation.impact),
        ("severity", explanation.severity),
        ("action", explanation.action + then),
        ("on EC2", f"{explanation.ec2_action}: {explanation.ec2_meaning}"),
        ("first", first),
        ("in full", f"gpu-ami runbook {explanation.code} [{NODE_OPTION}]" if first else ""),
        *(("note", note) for note in explanation.notes),
        *(("source", f"{_SOURCE_LABELS.get(key, key)}: {source}") for key, source in explanation.sources.items()),
        ("catalogue", explanation.catalogue),
    ]
    return "\n".join([title, *(f"  {label:<15} {value}" for label, value in rows if value)])
