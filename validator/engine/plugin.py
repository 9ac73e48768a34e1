"""The engine's pytest plugin: the first item that can run concurrently runs all that can; each then reports itself."""

from __future__ import annotations

import functools
import itertools
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from validator import deadline
from validator.engine import mutation, pytest_internals, scheduler
from validator.engine.concurrent_items import ConcurrentItems, OnlySession, can_run_concurrently, is_live, is_ours


class ConcurrentChecks:
    """A pytest plugin."""

    def __init__(self) -> None:
        self._reports: dict[pytest.Item, list[pytest.TestReport]] = {}  # of items that have run and not reported
        self._reported: set[pytest.Item] = set()  # items that were reported while later ones ran
        self._own_loop = False  # whether the loop below runs
        self._hooks: dict[Path, Any] = {}  # by file: its hooks, which pytest would look up for each item
        self._not_run: deque[pytest.Item] = deque()  # later items that did not run with them, in order
        self._mutating: set[pytest.Item] | None = None  # which items may change their host; None: not analysed yet

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """pytest's loop, but items that have run are reported without what plugins do around an item that runs."""
        if not pytest_internals.may_replace_loop(session):
            return None
        self._own_loop = True
        for item, nextitem in itertools.zip_longest(session.items, session.items[1:]):
            if item in self._reports:
                self._report(item, self._reports.pop(item))
            elif item not in self._reported:
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        if item not in self._reports and can_run_concurrently(item):
            self._run_from(item)
            if item in self._reported:
                return True
        reports = self._reports.pop(item, None)
        following = self._next_to_run(item, nextitem)
        if reports is None and following is nextitem:
            return None  # pytest's own protocol
        self._report(item, reports, following)
        return True

    def _report(
        self, item: pytest.Item, reports: list[pytest.TestReport] | None, nextitem: pytest.Item | None = None
    ) -> None:
        """Reports an item. reports: None if it has not run yet."""
        hook = self._hooks.get(item.path)
        if hook is None:
            hook = self._hooks[item.path] = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        if reports is None:
            pytest_internals.runtestprotocol(item, nextitem=nextitem)
        else:
            for report in reports:
                hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def _next_to_run(self, item: pytest.Item, nextitem: pytest.Item | None) -> Any:
        """The next item that has not run yet, so that fixtures of finished items are torn down."""
        if self._not_run and self._not_run[0] is item:
            self._not_run.popleft()
        if nextitem not in self._reports:
            if nextitem is not None and can_run_concurrently(nextitem):  # its host's fixtures are set up anew
                return OnlySession(nextitem.session)
            return nextitem
        return self._not_run[0] if self._not_run else None

    def _run_from(self, first: pytest.Item) -> None:
        """Runs `first` and all later items that can run at the same time."""
        session = first.session
        remaining = session.items[session.items.index(first) :]
        if self._mutating is None:
            users = (item for item in remaining if not is_ours(item))
            live = {item for item in remaining if is_ours(item) and is_live(item)}
            self._mutating = mutation.MutationAnalysis().mutating(users) | live
        concurrent: Sequence[pytest.Function] = mutation.concurrent_now(remaining, self._mutating)
        chosen = set(concurrent)
        self._not_run = deque(item for item in remaining if item not in chosen)
        nextitem = self._not_run[0] if self._not_run else None
        items = ConcurrentItems(session, list(concurrent), nextitem)
        tasks = items.tasks(self._mutating, session.config.getoption("check_deadline"))
        deadline.install()
        report = functools.partial(self._report_ended, session, deque(remaining), items)
        idle = report if self._own_loop else lambda: False
        try:
            with items.exclusive_setup():
                scheduler.Scheduler(limit=lambda task: deadline.move(task.deadline), idle=idle).run(tasks)
        finally:
            deadline.arm(0.0)
        self._reports.update((item, reports) for item, reports in items.reports.items() if item not in self._reported)

    def _report_ended(self, session: pytest.Session, remaining: deque[pytest.Item], items: ConcurrentItems) -> bool:
        """Reports the next item in pytest's order, if it has ended. Whether it did.

        On many hosts reports are a tenth of the run; these are made while the processor would wait for a host.
        """
        if not remaining or remaining[0] not in items.ended or session.shouldfail or session.shouldstop:
            return False
        item = remaining.popleft()
        self._reported.add(item)
        self._report(item, items.reports[item])
        return True
