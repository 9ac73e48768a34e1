"""What needs several lines: follow-up lines, losses, incidents, rate limits, and the UUID of an address.

Facts go in by `feed` in the order of the log. Events come out by `release` in the same order, each after the lines that
may belong to it had time to arrive (an SXid's follow-up lines, an Xid 79 after "has fallen off the bus"). `release`
decides only by what was released before, so a restart that reads the unreleased records again gives the same events.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional, Tuple

from .catalogue import SEVERITIES
from .causes import Attempts, PcieErrors
from .causes import near as _within
from .event import Builder, Moment, heaviest
from .grammar import Driver, Fact, Identity, Lost, RateLimit, Sxid, Xid
from .initialisation import GSP_BOOT, PROBE, RM_INIT, UNSUPPORTED, InitFailure
from .neuron import NeuronError
from .pcie import Bridge, PcieError
from .programs import FABRIC_MANAGER_FAILED, StackError

LOST_WINDOW_US = 300 * 1000000
INCIDENT_SILENCE_US = 180 * 1000000
SXID_SETTLE_US = 50 * 1000
LOST_SETTLE_US = 250 * 1000
_ATTEMPT_US = 5 * 1000000
_SETTLE_RECORDS = 64
_THREE_LINES = 8
_KEPT = 256
_FOLLOW_UPS = 16
_FOLLOW_UP_WINDOW_US = 1000000
_FALLEN_OFF = 79
_RPC_TIMEOUT = 119
_CONSEQUENCES = (43, 45, 154)


class _Open:
    """An event in the queue. `settles`: it waits for more lines, at most until `deadline_us`."""

    def __init__(self, moment: Moment, event: Dict[str, Any], deadline_us: Optional[int] = None, settles: bool = False) -> None:
        self.moment = moment
        self.event = event
        self.deadline_us = deadline_us
        self.settles = settles
        self.folded = False


class Tracker:
    """The memory between lines, limited to 256 entries for each table."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.driver = None  # type: Optional[str]
        self.late_follow_ups = 0
        self.repeated_losses = 0
        self._queue = deque()  # type: Deque[_Open]
        self._identity = {}  # type: Dict[str, Dict[str, str]]
        self._named_last = None  # type: Optional[str]
        self._partial_loss = {}  # type: Dict[str, Tuple[int, str, str, str]]
        self._unfit = {}  # type: Dict[str, Tuple[int, str, str, Dict[str, str]]]
        self._rate_limits = {}  # type: Dict[str, Tuple[int, int]]
        self._fallen = {}  # type: Dict[str, Tuple[Optional[int], str]]
        self._heads = {}  # type: Dict[str, Optional[int]]
        self._incidents = {}  # type: Dict[str, Dict[str, Any]]
        self._counted_notices = {}  # type: Dict[str, int]
        self._attempts = Attempts()
        self.pcie = PcieErrors()
        self.on_drop = None  # type: Optional[Callable[[int, str], None]]

    def feed(self, moment: Moment, fact: Fact, now_us: Optional[int]) -> None:
        """Adds one fact. `now_us`: the clock for deadlines; None for a file without times."""
        if isinstance(fact, Xid):
            self._feed_xid(moment, fact)
        elif isinstance(fact, Sxid):
            self._feed_sxid(moment, fact, now_us)
        elif isinstance(fact, Lost):
            self._feed_lost(moment, fact, now_us)
        elif isinstance(fact, InitFailure):
            self._feed_init_failure(moment, fact, now_us)
        elif isinstance(fact, StackError):
            self._feed_stack_error(moment, fact, now_us)
        elif isinstance(fact, (PcieError, Bridge)):
            self.pcie.learn(moment, fact)
        elif isinstance(fact, NeuronError):
            self._queue.append(_Open(moment, self.builder.neuron(moment, fact)))
        elif moment.origin != "userland":  # any process can write such a line to /dev/kmsg: only the driver's count
            self._learn(moment, fact)

    def release(self, now_us: Optional[int] = None, order: Optional[int] = None, everything: bool = False) -> List[Dict[str, Any]]:
        """The complete events, oldest first. `order`: the record that was fed last."""
        events = []
        while self._queue and (everything or self._settled(self._queue[0], now_us, order)):
            opened = self._queue.popleft()
            event = self._finish(opened)
            if event is not None:
                events.append(event)
        return events

    def oldest_open(self) -> Optional[int]:
        """The order of the oldest unreleased record: a restart must begin there."""
        return self._queue[0].moment.order if self._queue else None

    def next_deadline_us(self) -> Optional[int]:
        return self._queue[0].deadline_us if self._queue else None

    def _settled(self, opened: _Open, now_us: Optional[int], order: Optional[int]) -> bool:
        if not opened.settles:
            return True
        if order is not None and order - opened.moment.order > _SETTLE_RECORDS:
            return True
        return now_us is not None and opened.deadline_us is not None and now_us >= opened.deadline_us

    def _learn(self, moment: Moment, fact: Fact) -> None:
        if isinstance(fact, Driver):
            self.driver = fact.version
        elif isinstance(fact, Identity):
            pci = fact.pci or self._named_last
            if pci:
                known = self._identity.setdefault(pci, {})
                known.update({key: value for key, value in (("uuid", fact.uuid), ("serial", fact.serial)) if value})
                self._named_last = pci
        elif isinstance(fact, RateLimit):
            self._rate_limits[fact.pci] = (fact.every, moment.order)
        self._prune()

    def _feed_xid(self, moment: Moment, fact: Xid) -> None:
        self._queue.append(_Open(moment, self.builder.xid(moment, fact, self.driver)))
        if fact.code == _FALLEN_OFF:
            for opened in self._queue:
                event = opened.event
                same = event["kind"] == "gpu_lost" and event["pci"] == fact.pci and event["origin"] == moment.origin
                if same and _within(opened.moment.clock_us, moment.clock_us, LOST_SETTLE_US):
                    opened.folded, opened.settles = True, False

    def _feed_sxid(self, moment: Moment, fact: Sxid, now_us: Optional[int]) -> None:
        key = "%s %s %d" % (moment.origin, fact.pci, fact.code)
        if fact.follow_up:
            first = self._open_sxid(key, moment.clock_us)
            if first is not None:
                if len(first.event["follow_ups"]) < _FOLLOW_UPS:
                    self.builder.add_follow_up(first.event, fact, self.driver)
                return
            if key in self._heads and _within(self._heads[key], moment.clock_us, _FOLLOW_UP_WINDOW_US):
                self.late_follow_ups += 1
                self._drop(moment, "follow-up")
                return
            event = self.builder.sxid_remainder(moment, fact, self.driver)
        else:
            event = self.builder.sxid(moment, fact, self.driver)
        event["_key"] = key
        deadline = None if now_us is None else now_us + SXID_SETTLE_US
        self._queue.append(_Open(moment, event, deadline, settles=True))

    def _open_sxid(self, key: str, clock_us: Optional[int]) -> Optional[_Open]:
        """The event to which a follow-up line belongs, if it is still open."""
        for opened in reversed(self._queue):
            if opened.event.get("_key") == key:
                return opened if _within(opened.moment.clock_us, clock_us, _FOLLOW_UP_WINDOW_US) else None
        return None

    def _feed_lost(self, moment: Moment, fact: Lost, now_us: Optional[int]) -> None:
        if fact.part == 1:
            self._partial_loss[moment.origin] = (moment.order, fact.pci, fact.pci_raw, "")
            return
        if fact.part == 2:
            return
        if fact.part == 3:
            first = self._partial_loss.pop(moment.origin, None)
            if first is None or moment.order - first[0] > _THREE_LINES:
                first = (moment.order, "", "", "")
            fact = fact._replace(pci=first[1], pci_raw=first[2])
        deadline = None if now_us is None else now_us + LOST_SETTLE_US
        self._queue.append(_Open(moment, self.builder.gpu_lost(moment, fact, self.driver), deadline, settles=True))

    def _feed_init_failure(self, moment: Moment, fact: InitFailure, now_us: Optional[int]) -> None:
        """The lines of one attempt are one event: GSP lines without an address, RmInitAdapter, rm_init_adapter."""
        if fact.part == 1:
            self._partial_loss[moment.origin] = (moment.order, fact.pci, fact.pci_raw, fact.action)
            return
        if fact.part == 2:
            first = self._partial_loss.pop(moment.origin, None)
            if first is None or moment.order - first[0] > _THREE_LINES:
                first = (moment.order, "", "", "")
            fact = fact._replace(pci=first[1], pci_raw=first[2], action=first[3] or fact.action)
        fact = self._with_reason(moment, fact)
        for opened in self._queue:
            event = opened.event
            same_attempt = event["kind"] == "gpu_init_failed" and event["origin"] == moment.origin and not opened.folded
            if not same_attempt or not _within(opened.moment.clock_us, moment.clock_us, _ATTEMPT_US):
                continue
            if fact.pci in ("", event["pci"]):
                event["details"] = dict(fact.details, **event["details"])
                self._drop(moment, "attempt")
                return
            if not event["pci"] and event["code"] == fact.code == UNSUPPORTED:
                opened.folded, opened.settles = True, False
            if not event["pci"] and event["code"] == GSP_BOOT:
                opened.folded, opened.settles = True, False
                gsp = dict(event["details"], gsp=event["message"])
                fact = fact._replace(code=GSP_BOOT if fact.code == RM_INIT else fact.code, details=dict(gsp, **fact.details))
        deadline = None if now_us is None else now_us + LOST_SETTLE_US
        event = self.builder.gpu_init_failed(moment, fact, self.driver)
        self._queue.append(_Open(moment, event, deadline, settles=True))

    def _with_reason(self, moment: Moment, fact: InitFailure) -> InitFailure:
        """The failed probe of a GPU of which the driver has just said, without its address, that it does not support it."""
        if fact.code == UNSUPPORTED and not fact.pci:
            self._unfit[moment.origin] = (moment.order, fact.action, fact.message, fact.details)
        elif fact.code == PROBE:
            order, action, message, said = self._unfit.pop(moment.origin, (moment.order - _THREE_LINES - 1, "", "", {}))
            if moment.order - order <= _THREE_LINES:
                return fact._replace(code=UNSUPPORTED, action=action, message=message, details=dict(fact.details, **said))
        return fact

    def _feed_stack_error(self, moment: Moment, fact: StackError, now_us: Optional[int]) -> None:
        """Later lines of a record belong to its first; that a unit failed follows from what its program said before."""
        for opened in reversed(self._queue):
            event = opened.event
            if event["kind"] != "stack_error" or not _within(opened.moment.clock_us, moment.clock_us, _ATTEMPT_US):
                continue
            is_same = event["code"] == fact.code or (
                FABRIC_MANAGER_FAILED in (event["code"], fact.code) and str(event["code"]).startswith("FABRIC_MANAGER_")
            )
            if is_same and event["code"] == FABRIC_MANAGER_FAILED != fact.code:
                opened.folded, opened.settles = True, False  # the line that says why comes after one that says that
            elif is_same:
                event["details"] = dict(fact.details, **event["details"])
                self._drop(moment, "attempt")
                return
        if fact.part == 2:
            self._drop(moment, "attempt")
            return
        deadline = None if now_us is None else now_us + LOST_SETTLE_US
        self._queue.append(_Open(moment, self.builder.stack_error(moment, fact, self.driver), deadline, settles=True))

    def _is_first_attempt(self, opened: _Open, gpu: str) -> bool:
        """A GPU that cannot be initialised counts once, and not at all after its loss: nothing brings it back in this boot."""
        if opened.folded:
            return False
        clock_us, origin = opened.moment.clock_us, opened.moment.origin
        lost = [key for key in self._fallen if key == gpu or (not opened.event["pci"] and key.startswith(origin + " "))]
        first = self._attempts.is_first(gpu, clock_us)
        return first and not lost

    def _drop(self, moment: Moment, why: str) -> None:
        if self.on_drop is not None:
            self.on_drop(moment.order, why)

    def _finish(self, opened: _Open) -> Optional[Dict[str, Any]]:
        event, moment = opened.event, opened.moment
        gpu = "%s %s" % (moment.origin, event["pci"])
        if event["kind"] == "sxid":
            self._heads[event.pop("_key")] = moment.clock_us
        if event["code"] == _FALLEN_OFF and not self._is_first_loss(opened, gpu):
            self.repeated_losses += 1
            self._drop(moment, "loss")
            return None
        if event["kind"] == "gpu_init_failed" and not self._is_first_attempt(opened, gpu):
            self._drop(moment, "attempt")
            return None
        if event["kind"] == "stack_error":
            first = self._attempts.is_first("%s %s" % (moment.origin, event["code"]), moment.clock_us)
            if str(event["code"]).startswith("FABRIC_MANAGER_"):  # that the unit failed is no second failure
                follows = not self._attempts.is_first(moment.origin + " fabric manager", moment.clock_us)
                first = first and not (follows and event["code"] == FABRIC_MANAGER_FAILED)
            if opened.folded or not first:
                self._drop(moment, "attempt")
                return None
        if event["kind"] in ("xid", "gpu_lost", "gpu_init_failed"):
            self.pcie.explain(event, moment)
        event.update({"uuid": None, "serial": None})
        if moment.origin != "userland":
            event.update(self._identity.get(event["pci"], {}))
        if event["code"] == _RPC_TIMEOUT and event["kind"] == "xid":
            self._count_timeouts(event, moment)
        self._join_incident(event, moment, gpu)
        self._prune()
        return event

    def _is_first_loss(self, opened: _Open, gpu: str) -> bool:
        """A loss without an Xid counts once in five minutes. An Xid 79 always counts, and names the loss that it repeats."""
        event = opened.event
        if opened.folded:
            return False
        clock, kind = self._fallen.get(gpu, (None, ""))
        repeated = bool(kind) and _within(clock, opened.moment.clock_us, LOST_WINDOW_US)
        if event["kind"] == "gpu_lost" and repeated:
            return False
        if event["kind"] == "xid" and repeated and kind == "gpu_lost":
            event["also_reported_as"] = "gpu_lost"
        self._fallen[gpu] = (opened.moment.clock_us, event["kind"])
        return True

    def _count_timeouts(self, event: Dict[str, Any], moment: Moment) -> None:
        """After the driver's notice one line stands for up to `every` timeouts; the notice itself stands for one."""
        every, notice = self._rate_limits.get(event["pci"], (1, -1))
        if notice < 0 or notice > moment.order:
            event["count"] = {"at_least": 1, "rate_limited": False}
            return
        counted = self._counted_notices.get(event["pci"]) == notice
        event["count"] = {"at_least": 1 if counted else 2, "rate_limited": True, "printed_one_of": every}
        self._counted_notices[event["pci"]] = notice

    def _join_incident(self, event: Dict[str, Any], moment: Moment, gpu: str) -> None:
        incident = self._incidents.get(gpu)
        if incident is None or not _within(incident["clock_us"], moment.clock_us, INCIDENT_SILENCE_US):
            boot = str(event.get("boot_id") or "")[:8]
            incident = {"id": "-".join(part for part in (boot, event["pci"], str(moment.order)) if part),
                        "root": None, "codes": [], "members": 0, "severity": "info", "action": "IGNORE"}  # fmt: skip
            self._incidents[gpu] = incident
        if event["code"] == 45 and event["kind"] == "xid" and (incident["root"] or 45) != 45:
            self.builder.set_action(event, "info", "IGNORE")
        self._weigh(incident, event)
        incident["clock_us"] = moment.clock_us
        event["incident"] = {key: incident[key] for key in ("id", "root", "members", "severity", "action")}
        event["incident"].update(gpu=event["pci"], codes=list(incident["codes"]))

    def _weigh(self, incident: Dict[str, Any], event: Dict[str, Any]) -> None:
        code = event["code"]
        incident["members"] += 1
        if code not in incident["codes"] and len(incident["codes"]) < 32:
            incident["codes"].append(code)
        cause = event.get("caused_by", code)
        if incident["root"] is None or (incident["root"] in _CONSEQUENCES and cause not in _CONSEQUENCES):
            incident["root"] = cause
        if (incident["severity"], incident["action"]) != (event["severity"], event["action"]):
            incident["severity"] = max(incident["severity"], event["severity"], key=_weight)
            incident["action"] = heaviest(self.builder.catalogue, [incident["action"], event["action"]])

    def _prune(self) -> None:
        tables = (self._identity, self._partial_loss, self._unfit, self._rate_limits, self._fallen, self._heads, self._incidents,
                  self._counted_notices, self._attempts.last)  # type: Tuple[Dict[str, Any], ...]  # fmt: skip
        for table in tables:
            while len(table) > _KEPT:
                del table[next(iter(table))]

    def memory(self) -> Dict[str, Any]:
        """The memory that a restart needs, as JSON."""
        return {"driver": self.driver, "identity": self._identity, "named_last": self._named_last,
                "partial_loss": self._partial_loss, "unfit": self._unfit, "rate_limits": self._rate_limits, "fallen": self._fallen,
                "heads": self._heads, "incidents": self._incidents, "counted_notices": self._counted_notices,
                "attempts": self._attempts.last, "pcie": self.pcie.memory()}  # fmt: skip

    def remember(self, memory: Dict[str, Any]) -> None:
        """Restores what `memory` returned."""
        self.driver = memory.get("driver")
        self._named_last = memory.get("named_last")
        self._identity = dict(memory.get("identity", {}))
        self._partial_loss = {key: tuple([*value, ""][:4]) for key, value in memory.get("partial_loss", {}).items()}
        self._unfit = {key: tuple(value) for key, value in memory.get("unfit", {}).items()}
        self._rate_limits = {key: (value[0], value[1]) for key, value in memory.get("rate_limits", {}).items()}
        self._fallen = {key: (value[0], value[1]) for key, value in memory.get("fallen", {}).items()}
        self._heads = dict(memory.get("heads", {}))
        self._incidents = dict(memory.get("incidents", {}))
        self._counted_notices = dict(memory.get("counted_notices", {}))
        self._attempts.last = dict(memory.get("attempts", {}))
        self.pcie.remember(memory.get("pcie", []))


def _weight(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else 0
