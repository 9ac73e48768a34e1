"""Runs many checks concurrently, so that one round trip serves all checks that wait for a command.

Each check runs in a greenlet. A check that runs a command is suspended; when every check of a host is suspended, all
their commands are sent as one batch per shell, and the answers resume the checks. Hosts do not wait for each other. A
check that sleeps is suspended too. A check that may change its host (`mutates`) starts after all earlier checks of that
host have ended, and ends before the next starts; one of our own live checks does not wait for those that are parked,
and those of our checks that live ones cannot affect run beside them. See docs/engine.md.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

try:
    import greenlet  # type: ignore[import-untyped]
except ImportError:  # checks then run one after the other, with one round trip for each command
    greenlet = None

from validator.deadline import CheckTimeout
from validator.engine.batches import Batch, Question, execute, is_pure, question
from validator.transport import Answer, backend

# For how long a check may use what the answer to its last command told beside it: until it has gone on to ask.
_TOLD_SECONDS = 0.05
# One check that computes for so long is not at the cost of the others' time limits; shorter ones are not counted.
_LONG_SLICE_SECONDS = 0.1
# Commands of tasks beside live ones in one batch: with a live one's command, and while no other task asks.
BESIDE_LIVE, MOST_BESIDE = 2, 8


def available() -> bool:
    """Whether checks can run concurrently: greenlet is installed."""
    return greenlet is not None


def killed() -> type[BaseException]:
    """The exception that ends a check whose result is no longer needed."""
    kind: type[BaseException] = greenlet.GreenletExit
    return kind


@dataclass(eq=False)
class Task:
    """One check. `run` runs it completely; `before` and `after` are called around each slice of it."""

    name: str
    run: Callable[[], None]
    before: Callable[[], None] = lambda: None
    after: Callable[[], None] = lambda: None
    host: object = None  # tasks of the same host share fixtures and keep the order of changes
    mutates: bool = False  # it may change what other tasks of its host read
    live: bool = False  # one of our own that mutate: it may run beside parked tasks
    beside: bool = False  # built-in check, safe beside live checks
    parked: bool = False  # it waits, but not for its host
    seconds: float = 0.0  # its time limit; 0 for none
    deadline: float = 0.0  # time.monotonic(), set when it starts; 0 for none
    left: float = 0.0  # seconds of its time limit when it asked its host
    attempts: int = 1
    request: backend.Request | None = None
    wake: float | None = None
    told: dict[str, Answer] = field(default_factory=dict)  # see coalesce.Joint.beside; each serves once
    told_by: tuple[backend.HostLink, bool] | None = None  # host, whether as root
    told_until: float = 0.0  # time.monotonic()
    _greenlet: Any = None
    _throw: BaseException | None = None
    _value: Any = None

    @property
    def done(self) -> bool:
        return self._greenlet is not None and bool(self._greenlet.dead)


_UNLIMITED = Task("", lambda: None)


@dataclass
class Scheduler:
    """Runs tasks to completion and batches their commands."""

    limit: Callable[[Task], Any] = lambda task: None  # arms the deadline for the next slice
    tasks: list[Task] = field(default_factory=list)
    finished: Callable[[Task], None] = lambda task: None
    idle: Callable[[], bool] = lambda: False  # called while hosts are waited for; whether there was something to do
    _hub: Any = None
    _current: Task | None = None
    _queues: dict[object, deque[Task]] = field(default_factory=dict)  # by host: tasks that have not started
    _beside: dict[object, deque[Task]] = field(default_factory=dict)  # the same, of tasks that run beside live ones
    _begun: dict[object, dict[Task, None]] = field(default_factory=dict)  # by host: tasks that have not ended, in order
    _mutating: dict[object, set[Task]] = field(default_factory=dict)  # those of them that mutate
    _sleeping: dict[Task, None] = field(default_factory=dict)
    _asking: dict[backend.HostLink, list[Task]] = field(default_factory=dict)  # their commands are not sent yet
    _sent: dict[backend.HostLink, list[Batch[Task]]] = field(default_factory=dict)  # [] while connecting
    _answered: queue.SimpleQueue[tuple[backend.HostLink, Future[Any]]] = field(default_factory=queue.SimpleQueue)
    _with_live: set[object] = field(default_factory=set)  # see _hosts_with_live_checks
    _learned: dict[Question, Answer] = field(default_factory=dict)  # by tasks beside live ones, which affect none of it
    _more: bool = False  # whether tasks of another host can start

    def run(self, tasks: Iterable[Task]) -> None:
        """Runs all tasks and returns when all have ended. An exception of `run` itself ends all of them."""
        global _active
        self.tasks = list(tasks)
        self._hub = greenlet.getcurrent()
        self._queues, self._beside = defaultdict(deque), defaultdict(deque)
        self._with_live, self._learned = _hosts_with_live_checks(self.tasks), {}
        for task in self.tasks:
            queues = self._beside if self._is_beside(task) else self._queues
            queues[task.host].append(task)
        self._begun = {task.host: {} for task in self.tasks}
        self._mutating = {task.host: set() for task in self.tasks}
        _active, backend.runner = self, self.execute
        try:
            while self._begin():
                self._advance()
        finally:
            _active, backend.runner = None, backend.run_at_once
            for task in self.tasks:
                if task._greenlet is not None and not task.done:
                    task._greenlet.throw(greenlet.GreenletExit)

    def _begin(self) -> bool:
        """Starts the tasks of one host that can start now; returns whether there are any that have not ended.

        One host, because a check that waits takes memory: answers that have come are delivered before the next.
        """
        startable = [
            (queues, host)
            for queues in (self._queues, self._beside)
            for host, queued in queues.items()
            if self._may_start(queued[0])
        ]
        self._more = len(startable) > 1
        for queues, host in startable[:1]:
            queued = queues[host]
            while queued and self._may_start(queued[0]):
                self._start(queued.popleft())
            if not queued:
                del queues[host]
        return bool(self._queues) or bool(self._beside) or any(self._begun.values())

    def _may_start(self, task: Task) -> bool:
        """Whether a task can start beside those of its host that have not ended."""
        if task.beside or not (task.mutates or self._mutating[task.host]):
            return True
        return all(_may_run_beside(task, other) for other in self._begun[task.host])

    def _start(self, task: Task) -> None:
        self._begun[task.host][task] = None
        if task.mutates:
            self._mutating[task.host].add(task)
        task.deadline = time.monotonic() + task.seconds if task.seconds else 0.0
        task._greenlet = greenlet.greenlet(task.run)
        self._resume(task)

    def execute(self, request: backend.Request) -> tuple[Answer, int]:
        """The answer to a command of `host.run`, after its batch has returned."""
        task = self._task()
        known = self._known(task, request)
        if known is not None:
            return known, 1
        if task is None:
            return backend.run_at_once(request)
        task.request, task.told = request, {}
        request.link.note_asker(request.command.text, task.name)
        task.left = task.deadline - time.monotonic()
        self._ask(task)
        answer: Answer = self._suspend(task)
        return answer, task.attempts

    def _known(self, task: Task | None, request: backend.Request) -> Answer | None:
        """The answer that needs no command.

        It is a constant of the host, what its last answer told, or what another task beside live ones was told.
        """
        constant = (request.link.known(request.root) or {}).get(request.command.text)
        if constant is not None or task is None:
            return constant
        told = task.told.pop(request.command.text, None)
        if told and task.told_by == (request.link, request.root) and time.monotonic() < task.told_until:
            return told
        return self._learned.get(question(request)) if self._is_beside(task) else None

    def _is_beside(self, task: Task) -> bool:
        """Whether a task runs beside live ones: nothing changes what it reads for as long as checks run."""
        return task.beside and task.host in self._with_live

    def sleep(self, seconds: float, *, parked: bool = False) -> None:
        """Suspends the running check for at least `seconds`. parked: see Task."""
        task = self._task()
        if task is None:
            time.sleep(seconds)
            return
        task.wake, task.parked = time.monotonic() + seconds, parked and not task.mutates
        self._sleeping[task] = None
        try:
            self._suspend(task)
        finally:
            task.parked = False

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Suspends the running check until `ready`, which depends on other checks alone, returns true."""
        while not ready():
            self.sleep(0.02, parked=True)

    def wait_untimed(self, ready: Callable[[], bool]) -> None:
        """The same, but the time of the wait is not part of the running check's."""
        task, began = self._task(), time.monotonic()
        deadline = task.deadline if task else 0.0
        if task:
            task.deadline = 0.0
        try:
            self.wait_until(ready)
        finally:
            if task and deadline:
                task.deadline = deadline + time.monotonic() - began
                self.limit(task)

    def renew(self) -> None:
        """Gives the running check its time anew if that is over: what it tears down has a deadline of its own."""
        task, now = self._task(), time.monotonic()
        if task and task.deadline and task.deadline <= now:
            task.deadline = now + task.seconds
            self.limit(task)

    @property
    def task(self) -> Task | None:
        """The running check."""
        return self._task()

    def _task(self) -> Task | None:
        running = self._current
        return running if running is not None and greenlet.getcurrent() is running._greenlet else None

    def _suspend(self, task: Task) -> Any:
        self._hub.switch()
        if task._throw is not None:
            error, task._throw = task._throw, None
            raise error.with_traceback(None)  # all checks of a lost host get the same: its traceback would grow
        value, task._value = task._value, None
        return value

    def _advance(self) -> None:
        self._send()
        now = time.monotonic()
        late = [task for task in self._sleeping if task.deadline and task.deadline <= now]
        due = late or [task for task in self._sleeping if task.wake is not None and task.wake <= now]
        if not due:
            self._wait(min((task.wake - now for task in self._sleeping if task.wake is not None), default=None))
            return
        for task in due:
            task.wake = None
            del self._sleeping[task]
            if task in late:
                self._interrupt(task)
            self._resume(task)

    def _interrupt(self, task: Task) -> None:
        """Ends what a suspended check does; what it tears down has a deadline of its own."""
        task._throw = CheckTimeout()
        task.deadline = time.monotonic() + task.seconds

    def _wait(self, seconds: float | None) -> None:
        """Waits until a host has answered, for at most `seconds`, and delivers its answers."""
        began = time.monotonic()
        due = None if seconds is None else began + seconds
        was_idle = False
        while self._answered.empty() and (due is None or time.monotonic() < due) and self.idle():
            was_idle = True
        if was_idle:
            self._extend(time.monotonic() - began)
        if due is not None:
            seconds = due - time.monotonic()
        if self._more:  # does not wait
            for _ in range(self._answered.qsize()):
                self._receive(*self._answered.get())
        elif not self._sent:
            time.sleep(max(0.0, seconds or 0.0))
        else:
            with contextlib.suppress(queue.Empty):
                self._receive(*self._answered.get(timeout=None if seconds is None else max(0.0, seconds)))

    def _extend(self, seconds: float, but: Task | None = None) -> None:
        """Gives the checks that have begun the time in which `idle`, or another check (`but`), kept them waiting."""
        for begun in self._begun.values():
            for task in begun:
                if task.deadline and task is not but:
                    task.deadline += seconds

    def _receive(self, link: backend.HostLink, answered: Future[Any]) -> None:
        batches = self._sent.pop(link)
        if batches:  # the error of a connection is raised by its first command
            answered.result()
            self._deliver(batches)

    def _resume(self, task: Task) -> None:
        if task.deadline and task._throw is None and task.deadline <= time.monotonic():
            self._interrupt(task)  # the alarm would come after it has gone on, and perhaps ended
        self._current = task
        task.before()
        began = time.monotonic()
        try:
            self.limit(task)
            task._greenlet.switch()
        finally:
            self.limit(_UNLIMITED)
            task.after()
            self._current = None
        if time.monotonic() > began + _LONG_SLICE_SECONDS:
            self._extend(time.monotonic() - began, but=task)
        if task.done:
            del self._begun[task.host][task]
            self._mutating[task.host].discard(task)
            self.finished(task)

    def _send(self) -> None:
        """Sends batches to the hosts that have no batch under way."""
        sent = [batches for link in list(self._asking) if link not in self._sent and (batches := self._batches(link))]
        for batches in sent:
            for batch in batches:
                batch.compose()
            self._await(batches[0].link, backend.in_background(execute, batches), batches)

    def _batches(self, link: backend.HostLink) -> list[Batch[Task]]:
        """The batches of the tasks that wait for a host, one for each shell; none while it is being connected."""
        if link.connecting is not None:
            self._await(link, link.connecting, [])
            return []
        self._answer_known(link)
        shells: dict[bool, list[Task]] = defaultdict(list)
        for task in self._take(link):
            assert task.request is not None
            shells[task.request.root].append(task)
        return [Batch(link, root, tasks) for root, tasks in shells.items()]

    def _take(self, link: backend.HostLink) -> list[Task]:
        """The tasks whose commands are sent now; those beside live ones last, a few at a time, so that none waits.

        A live check's command mostly waits on the host itself, so two of them are sent beside it: its answer comes with
        theirs, and what it does next has a long way to CloudWatch. While that is waited for, more are sent.
        """
        asking = self._asking.pop(link, [])
        if not any(self._has_others(task.host) for task in asking):
            return asking
        others, beside = ([task for task in asking if task.beside is wanted] for wanted in (False, True))
        room = MOST_BESIDE if not others else BESIDE_LIVE if any(task.live for task in others) else 0
        few = list(dict.fromkeys(map(_text, beside)))[:room]  # equal questions are asked once
        later = [task for task in beside if _text(task) not in few]
        if later:
            self._asking[link] = later
        return [*others, *(task for task in beside if _text(task) in few)]

    def _has_others(self, host: object) -> bool:
        """Whether a host has other tasks that have not ended than those beside live ones."""
        return host in self._queues or any(not task.beside for task in self._begun[host])

    def _answer_known(self, link: backend.HostLink) -> None:
        """Resumes the tasks that wait for what has become known since they asked."""
        for task in self._asking.pop(link):
            assert task.request is not None
            task._value = self._known(task, task.request)
            if task._value is None:
                self._ask(task)
            else:
                task.request = None
                self._charge(task, 0.0)
                self._resume(task)

    def _ask(self, task: Task) -> None:
        assert task.request is not None
        self._asking.setdefault(task.request.link, []).append(task)

    def _await(self, link: backend.HostLink, answered: Future[Any], batches: list[Batch[Task]]) -> None:
        self._sent[link] = batches
        answered.add_done_callback(lambda future: self._answered.put((link, future)))

    def _deliver(self, batches: Iterable[Batch[Task]]) -> None:
        for batch in batches:
            constants: Mapping[str, Answer] = {}
            if batch.asks and batch.fault is None:
                constants = batch.link.known(batch.root) or {}
            for task, slot in zip(batch.tasks, batch.slots, strict=True):
                assert task.request is not None
                seconds = 0.0
                if batch.fault is not None:
                    task._throw = batch.fault
                elif slot is not None:
                    task._value, seconds = batch.answers[slot], batch.answers[slot].seconds
                    own = task.request.command.text
                    task.told = {text: told for text, told in batch.beside.get(slot, {}).items() if text != own}
                    task.told_by = (batch.link, batch.root)
                    task.told_until = time.monotonic() + _TOLD_SECONDS
                    self._learn(task, batch.answers[slot])
                elif task.request.command.text in constants:
                    task._value = constants[task.request.command.text]
                else:  # not a constant on this host: sent as an ordinary command
                    self._ask(task)
                    continue
                task.request = None
                task.attempts = max(task.attempts, batch.attempts)
                self._charge(task, seconds)
                self._resume(task)

    @staticmethod
    def _charge(task: Task, seconds: float) -> None:
        """Takes the time of a check's own command from its limit, and not the wait for others sent with it."""
        if task.deadline:
            task.deadline = time.monotonic() + task.left - seconds

    def _learn(self, task: Task, answer: Answer) -> None:
        assert task.request is not None
        if self._is_beside(task) and is_pure(task.request) and not answer.expired:
            self._learned[question(task.request)] = answer


def _hosts_with_live_checks(tasks: Iterable[Task]) -> set[object]:
    """Hosts whose checks that mutate are all live ones of ours: there others can wait for them to begin."""
    mutating = [task for task in tasks if task.mutates]
    return {task.host for task in mutating} - {task.host for task in mutating if not task.live}


def _text(task: Task) -> str:
    """The command that a task waits for."""
    return task.request.command.text if task.request is not None else ""


def _may_run_beside(task: Task, other: Task) -> bool:
    return not (task.mutates or other.mutates) or (task.live and (other.parked or other.beside))


_active: Scheduler | None = None


def active() -> Scheduler | None:
    """The scheduler that is running checks, if any."""
    return _active


def sleep(seconds: float) -> None:
    """Sleeps; if checks run concurrently, the others continue."""
    if _active is not None:
        _active.sleep(seconds)
    else:
        time.sleep(seconds)


def park(seconds: float) -> None:
    """Sleeps like `sleep`, in a check that does not need its host meanwhile: our own live checks may run."""
    if _active is not None:
        _active.sleep(seconds, parked=True)
    else:
        time.sleep(seconds)
