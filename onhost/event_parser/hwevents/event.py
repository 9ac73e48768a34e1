"""From a fact to an event: the fields that a person or a program acts on. Pure functions; `emf` writes the JSON."""

from __future__ import annotations

from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union

from . import SCHEMA, details
from .catalogue import Catalogue, Meaning
from .grammar import MESSAGE_LIMIT, Lost, Sxid, Xid
from .initialisation import InitFailure
from .neuron import NeuronError
from .nvlink5 import Nvlink5
from .programs import StackError

_NVLINK5 = range(144, 151)
_PREEMPTIVE_CLEANUP = 45
_RETIREMENT_FAILURE = 64
_CHANNEL_RETIREMENT = 160
_RECOVERY_ACTION_CHANGED = 154
_KEPT = 1024


class Moment(NamedTuple):
    """Position and time of a record. `order`: sequence number, or line of a file. `clock_us`: None where the line has no time."""

    order: int
    clock_us: Optional[int]
    origin: str  # "kernel", "userland", or "unknown" where the text has no facility
    fields: Dict[str, Any]  # what the source adds: seq, monotonic_us, boot_id, time, line …


class Builder:
    """Turns facts into event dictionaries by catalogue and driver branch."""

    def __init__(self, catalogue: Catalogue) -> None:
        self.catalogue = catalogue
        self._nvlink5 = None  # type: Optional[Nvlink5]
        self._known = {}  # type: Dict[Tuple[Any, ...], Dict[str, Any]]
        self._known_catalogue = catalogue

    def xid(self, moment: Moment, fact: Xid, driver: Optional[str]) -> Dict[str, Any]:
        """A storm repeats few lines: what one means is decided once."""
        key = (fact, driver, moment.origin, tuple(moment.fields))
        if self._known_catalogue is not self.catalogue or len(self._known) > _KEPT:
            self._known, self._known_catalogue = {}, self.catalogue
        if key not in self._known:
            self._known[key] = self._xid(moment, fact, driver)
        event = dict(self._known[key])
        event.update(moment.fields)
        if "details" in event:
            event["details"] = dict(event["details"])
        return event

    def _xid(self, moment: Moment, fact: Xid, driver: Optional[str]) -> Dict[str, Any]:
        meaning = self.catalogue.xid(fact.code, driver)
        extracted = details.extract(fact.code, fact.message)
        meaning = self._from_message(fact, meaning, extracted, driver)
        event = self._event("xid", moment, fact.code, meaning, driver)
        event.update(
            pci=fact.pci,
            pci_raw=fact.pci_raw,
            mig_gi=fact.mig_gi,
            mig_ci=fact.mig_ci,
            pid=fact.pid,
            process=fact.process,
        )
        self._put_action(event, meaning.action)
        _put_message(event, fact.message)
        if fact.caused_by is not None:
            event["caused_by"] = fact.caused_by
        if fact.cut or extracted.get("words_cut"):
            event["incomplete"] = fact.cut or "the end of the message"
        if extracted:
            event["details"] = extracted
        return event

    def sxid(self, moment: Moment, fact: Sxid, driver: Optional[str]) -> Dict[str, Any]:
        meaning = self.catalogue.sxid(fact.code, fact.word, driver)
        event = self._event("sxid", moment, fact.code, meaning, driver)
        event.update(pci=fact.pci, pci_raw=fact.pci_raw, nvswitch=fact.switch, pid=None, process=None)
        self._put_action(event, meaning.action)
        _put_message(event, fact.message)
        link = details.sxid_link(fact.message)
        if link is not None:
            event["details"] = {"link": link}
        event["follow_ups"] = []
        if fact.cut:
            event["incomplete"] = fact.cut
        return event

    def sxid_remainder(self, moment: Moment, fact: Sxid, driver: Optional[str]) -> Dict[str, Any]:
        """An SXid of which only a follow-up line is left, because the kernel overwrote the first line."""
        event = self.sxid(moment, fact, driver)
        event.update(message="", follow_up_only=True, follow_ups=[fact.message[:1024]])
        event["details"] = dict(details.sxid_follow_up(fact.message), head_lost=True)
        return event

    def add_follow_up(self, event: Dict[str, Any], fact: Sxid, driver: Optional[str]) -> None:
        """Adds a follow-up line. Where the first line is missing, the line with the severity decides."""
        event["follow_ups"].append(fact.message[:1024])
        if event.get("follow_up_only"):
            event["details"].update(details.sxid_follow_up(fact.message))
            if fact.word:
                meaning = self.catalogue.sxid(fact.code, fact.word, driver)
                event.update(severity=meaning.severity, action=meaning.action, decided_by=meaning.decided_by)
                self._put_action(event, meaning.action)

    def gpu_lost(self, moment: Moment, fact: Lost, driver: Optional[str]) -> Dict[str, Any]:
        meaning = self.catalogue.gpu_lost()
        event = self._event("gpu_lost", moment, 79, meaning, driver)
        event.update(pci=fact.pci, pci_raw=fact.pci_raw, implied=True, pid=None, process=None)
        self._put_action(event, meaning.action)
        _put_message(event, fact.message)
        return event

    def gpu_init_failed(self, moment: Moment, fact: InitFailure, driver: Optional[str]) -> Dict[str, Any]:
        event = self._event("gpu_init_failed", moment, fact.code, self.catalogue.gpu_init(fact.code), driver)
        event.update(pci=fact.pci, pci_raw=fact.pci_raw, pid=None, process=None)
        if fact.action and event["decided_by"] != "policy":
            event.update(action=fact.action, decided_by="message")
        self._put_action(event, event["action"])
        _put_message(event, fact.message)
        event["details"] = dict(fact.details)
        return event

    def stack_error(self, moment: Moment, fact: StackError, driver: Optional[str]) -> Dict[str, Any]:
        """An error of the installation or of a program: of no GPU."""
        event = self._event("stack_error", moment, fact.code, self.catalogue.stack(fact.code), driver)
        event.update(pci="", pci_raw="", pid=None, process=fact.details.get("process"))
        self._put_action(event, event["action"])
        _put_message(event, fact.message)
        event["details"] = {key: value for key, value in fact.details.items() if key != "process"}
        return event

    def neuron(self, moment: Moment, fact: NeuronError) -> Dict[str, Any]:
        """The device's name stands where a GPU has its PCI address."""
        event = self._event("neuron", moment, fact.code, self.catalogue.neuron(fact.code, fact.asked), None)
        event.update(pci=fact.device, pci_raw=fact.device, pid=None, process=None)
        self._put_action(event, event["action"])
        _put_message(event, fact.message)
        event["details"] = dict(fact.details, **({"asked": fact.asked} if fact.asked else {}))
        return event

    def set_action(self, event: Dict[str, Any], severity: str, action: str) -> None:
        """Changes the judgement by what other events say; the operator's policy still overrides it."""
        if event["decided_by"] != "policy":
            event.update(severity=severity, action=action, decided_by="context")
            self._put_action(event, action)

    def _event(
        self, kind: str, moment: Moment, code: Union[int, str], meaning: Meaning, driver: Optional[str]
    ) -> Dict[str, Any]:
        event = {"time": None, "schema": SCHEMA, "kind": kind, "code": code, "name": meaning.name}  # type: Dict[str, Any]
        event.update(severity=meaning.severity, action=meaning.action, decided_by=meaning.decided_by)
        event.update(
            ec2_action=None, ec2_meaning=None
        )  # keeps the order of the members; filled when the address is known
        event.update(moment.fields)
        event.update(origin=moment.origin, driver=driver, catalogue=self.catalogue.version)
        return event

    def _put_action(self, event: Dict[str, Any], name: str) -> None:
        action = self.catalogue.action(name)
        event.update(ec2_action=action.ec2, ec2_meaning=action.instructions(event["pci"]))

    def _from_message(self, fact: Xid, meaning: Meaning, extracted: Dict[str, Any], driver: Optional[str]) -> Meaning:
        """Severity and action where the message says more than the code: 45, 64, 94, 95, 144 to 150, 154 and 160."""
        decided = None  # type: Optional[Tuple[str, str]]
        if fact.code == _RECOVERY_ACTION_CHANGED:
            _, severity, action = details.RECOVERY_ACTIONS.get(
                extracted.get("to", -1), ("", "warning", "CONTACT_SUPPORT")
            )
            decided = (severity, action)
        elif fact.code in _NVLINK5 and meaning.severity == "decode":
            decided = self._decode_nvlink5(fact, extracted, driver)
        elif fact.code == _PREEMPTIVE_CLEANUP:
            decided = ("app", "WORKFLOW_XID_45") if fact.caused_by is None else ("info", "IGNORE")
        elif fact.code == _CHANNEL_RETIREMENT and extracted.get("reset_pending"):
            decided = ("critical", "SCHEDULE_RESET")
        elif fact.code == _RETIREMENT_FAILURE and extracted.get("reset_pending"):
            decided = ("warning", "SCHEDULE_RESET")  # not out of spare rows: what it needs is already noted
        elif extracted.get("reset_required"):
            decided = ("critical", "RESET_GPU")
        elif extracted.get("deferred_reset") and meaning.action == "RESTART_APP":
            decided = ("warning", "SCHEDULE_RESET")
        if decided is None:
            return meaning
        judged = meaning._replace(severity=decided[0], action=decided[1], decided_by="message")
        return self.catalogue.with_policy("xid", fact.code, judged)

    def _decode_nvlink5(self, fact: Xid, extracted: Dict[str, Any], driver: Optional[str]) -> Tuple[str, str]:
        if self._nvlink5 is None:
            self._nvlink5 = Nvlink5(self.catalogue.data)
        decoded = self._nvlink5.decode(fact.code, fact.message, driver)
        if decoded is None:
            return "warning", "WORKFLOW_NVLINK5_ERR"
        extracted.update(decoded.details, matched=decoded.matched)
        return decoded.severity, decoded.action


def _put_message(event: Dict[str, Any], message: str) -> None:
    event["message"] = message[:MESSAGE_LIMIT]
    if len(message) > MESSAGE_LIMIT:
        event["truncated"] = True


def heaviest(catalogue: Catalogue, names: List[str]) -> str:
    """The action of the highest rank."""
    return max(names, key=lambda name: catalogue.action(name).rank)
