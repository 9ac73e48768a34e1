"""Cost of `gpu-ami fleet` with many machines: attach and status of 1, 20 and 100 machines, through Systems Manager.

The machines are simulated, as in tests/fleet: threads with the local region's SSM Agent, each of which runs the
documents' real shell scripts in its own folder. The machines and the API run in this process and its children, on the
same CPUs, unlike real machines: the cost of an additional machine is an upper bound. The calls are those that AWS would
receive.

    python bench/bench_systems_manager.py
    python bench/bench_systems_manager.py --machines 1 8 --max-concurrency 50
"""

from __future__ import annotations

import argparse
import collections
import logging
import os
import resource
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ["MOTO_EC2_LOAD_DEFAULT_AMIS"] = "false"

from gpu_ami.cloud import systems_manager  # noqa: E402
from gpu_ami.cloud.systems_manager import Limits, Selection  # noqa: E402
from gpu_ami.fleet import attachment, condition, payload  # noqa: E402
from gpu_ami.progress import Progress  # noqa: E402
from tests.fleet.service_machines import fleet  # noqa: E402
from tests.localregion.conftest import World, served  # noqa: E402


def cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(count: int, concurrency: str) -> dict[str, tuple[float, float, collections.Counter[str]]]:
    """Verb → seconds of wall time, of CPU time, and the calls that were made."""
    found = {}
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder) / "home")
        with served(world) as endpoint, fleet(world, endpoint, Path(folder)) as service:
            for _ in range(count):
                service.add(agent=True)
            service.wait()
            calls: collections.Counter[str] = collections.Counter()
            for name in ("ssm", "ec2", "logs"):
                events: Any = service.cloud.client(name).meta.events
                events.register("before-call", lambda model, **_: calls.update([model.name]))
            chosen = systems_manager.find(service.cloud, Selection(tags={"fleet": "train"}))
            bundle, limits = payload.bundle(service.plan), Limits(concurrency, "0")
            task = attachment.Attachment(service.cloud, bundle, chosen, limits, Progress("quiet"))
            verbs = {
                "attach": lambda: [each.status for each in task.attach().values()],
                "status": lambda: [each.state for each in condition.ask(service.cloud, bundle, chosen, limits)],
            }
            for verb, run in verbs.items():
                calls.clear()
                started, used = time.monotonic(), cpu_seconds()
                states = run()
                if set(states) - {"Success", "ok"} or len(states) != count:
                    raise SystemExit(f"{verb} of {count}: {collections.Counter(states)}")
                found[verb] = (time.monotonic() - started, cpu_seconds() - used, calls.copy())
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, nargs="+", default=[1, 20, 100], help="numbers of machines [1 20 100]")
    parser.add_argument("--max-concurrency", default="10", help="as for gpu-ami fleet [%(default)s]")
    args = parser.parse_args()
    print("| machines | verb | wall s | ratio to the first | CPU s | calls | most often |")
    print("|---|---|---|---|---|---|---|")
    first: dict[str, float] = {}
    for count in args.machines:
        with ProcessPoolExecutor(1) as process:  # the region's state is its process's
            rows = process.submit(measure, count, args.max_concurrency).result()
        for verb, (wall, cpu, calls) in rows.items():
            ratio = wall / first.setdefault(verb, wall)
            often = ", ".join(f"{number} {name}" for name, number in calls.most_common(2))
            print(
                f"| {count} | {verb} | {wall:.1f} | {ratio:.1f} | {cpu:.1f} | {calls.total()} | {often} |", flush=True
            )


if __name__ == "__main__":
    main()
