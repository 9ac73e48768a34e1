"""Jobs in threads: what an interrupted run must end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from gpu_ami import process
from gpu_ami.errors import GpuAmiError
from gpu_ami.process import UnderWay


def test_a_job_is_under_way_until_it_has_ended() -> None:
    under_way = UnderWay()
    assert under_way.run(lambda: bool(under_way)) is True
    assert not under_way


def test_a_job_that_fails_is_not_under_way_any_more() -> None:
    under_way = UnderWay()
    with ThreadPoolExecutor(1) as pool:
        assert isinstance(pool.submit(under_way.run, int, "x").exception(), ValueError)
    assert not under_way


def test_end_stops_the_processes_that_jobs_start_meanwhile() -> None:
    under_way, started, cancelled = UnderWay(), threading.Event(), threading.Event()
    ended: list[str] = []

    def job() -> None:
        while not cancelled.is_set():
            started.set()
            try:
                process.run(["sleep", "60"], timeout=60)
            except GpuAmiError as error:
                ended.append(error.message)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(under_way.run, job)
        assert started.wait(10)
        cancelled.set()
        under_way.end()
    assert len(ended) == 1 and "sleep" in ended[0]
