"""Proofs under `aws-like` with many seeds: whether refused or delayed calls make a check fail or leave resources.

One image is built once. For each seed the region is started again, the image is proven on one instance type (its files
and one boot, without restarts), and leftover resources are listed. Results of an earlier run are kept: the script runs
only the seeds that have none.

    python bench/bench_seeds.py                          seeds 0 to 19
    python bench/bench_seeds.py --seeds 3 4 --out out/seeds
    python bench/bench_seeds.py --table                  print the existing results; run nothing
    python bench/bench_seeds.py --scripted               plan to publication, no machine, ten times faster

With --scripted, Packer and machines are simulated by tests/killed_driver: API calls, refusals and waits are those of
the region, the results on the machine are scripted. Both restarts are included.

Exit code 1: with some seed, a check failed, the run ended with an exit code other than 0 and 7 (only restarts were left
out), or a resource was left.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from gpu_ami.files import home_dir, read_json, write_json  # noqa: E402

RECIPE, INSTANCE_TYPE = "debian12-gpu", "g5.12xlarge"
CONDITIONS = "aws-like"
SECONDS = 1200.0
LEFT_OUT = 7  # nothing failed, and restarts were left out on purpose


@dataclass(frozen=True)
class Row:
    """One seed. failed: checks that are FAIL, FLAKY or ERROR. refused: calls by the error that they got, all of which
    the run had to repeat or to go without. boot: seconds of each stage. attempts: of launches. left: what was there
    afterwards.
    """

    seed: int
    exit_code: int
    verdict: str
    failed: list[str]
    refused: dict[str, int]
    seconds: float
    boot: dict[str, float]
    attempts: list[str]
    left: list[str]

    @property
    def is_good(self) -> bool:
        return self.exit_code in (0, LEFT_OUT) and not self.failed and not self.left


def gpu_ami(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpu_ami", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, cwd=ROOT, check=False)


def data(*words: str) -> Any:
    done = gpu_ami(*words, "--json")
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"{' '.join(words)}: {done.stdout[-500:]}{done.stderr[-2000:]}") from None


def build(out: Path) -> str:
    """The AMI, which a sandbox makes without conditions; one that is there is used again."""
    if not (out / "plan.json").exists():
        gpu_ami("plan", RECIPE, "-o", str(out), "-q")
    return str(data("build", str(out), "--layers", "auto")["ami"])


def prove(seed: int, ami: str, built: Path, out: Path) -> Row:
    folder = out / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "plan.json").write_bytes((built / "plan.json").read_bytes())
    (folder / "build.json").write_bytes((built / "build.json").read_bytes())
    gpu_ami("region", "down", "-q")
    up = gpu_ami("region", "up", "--conditions", f"{CONDITIONS}:{seed}", "-q")
    if up.returncode:
        raise SystemExit(f"region up: {up.stderr}")
    started = time.monotonic()
    words = ["validate", str(folder), "--ami", ami, "--instance-type", INSTANCE_TYPE, "--restarts", "none"]
    done = gpu_ami(*words)
    seconds = time.monotonic() - started
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    status = data("region", "status")
    swept = data("sweep")
    left = [f"instance {row['id']}" for row in status["instances"] if row["state"] != "terminated"]
    left += [f"{row['kind']} {row['id']}" for row in swept]
    left += [f"run {path.name}" for path in (home_dir() / "runs").glob("*")]
    gpu_ami("region", "down", "-q")
    report = read_json(folder / "report.json") or {}
    hosts = report.get("hosts", [])
    return Row(
        seed, done.returncode, str(report.get("verdict", "no report")), red(hosts),
        status.get("refused", {}), round(seconds, 1),
        next((host["boot"] for host in hosts if host.get("boot")), {}),
        [attempt["answer"] for host in hosts for attempt in host.get("attempts", [])], left,
    )  # fmt: skip


def play(seed: int, out: Path) -> Row:
    """The same of scripted machines, which a publication follows."""
    from tests.killed_driver import account
    from tests.killed_driver.project import COMMANDS, project, published, quickened

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    folder = out / f"seed-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / "project", ignore_errors=True)
    with quickened(), project(folder / "project", f"{CONDITIONS}:{seed}") as played:
        started = time.monotonic()
        code = played.drivers.run(COMMANDS)
        seconds = time.monotonic() - started
        report = played.document("report.json") or {}
        build = played.document("build.json") or {}
        left = [
            f"{kind} {name}" for kind, names in account.left(played.endpoint, played.home).items() for name in names
        ]
        if code == 0:
            published(played)
        refused = played.world.decisions.refused()
    hosts = report.get("hosts", [])
    attempts = [*build.get("attempts", []), *(row for host in hosts for row in host.get("attempts", []))]
    return Row(
        seed, code, str(report.get("verdict", "no report")), red(hosts), refused, round(seconds, 1), {},
        [attempt["answer"] for attempt in attempts], left,
    )  # fmt: skip


def red(hosts: list[dict[str, Any]]) -> list[str]:
    """Checks that are FAIL, FLAKY or ERROR, and what kept machines from being checked."""
    bad = ("FAIL", "FLAKY", "ERROR")
    found = [
        f"{check['verdict']} {check['id']}" for host in hosts for check in host["checks"] if check["verdict"] in bad
    ]
    return found + [f"error: {host['error'].splitlines()[0]}" for host in hosts if host.get("error")]


def table(rows: list[Row]) -> str:
    lines = [
        "| seed | exit code | verdict | calls refused, and repeated | launches | boot s | seconds | blamed | left |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        refused = ", ".join(f"{code} {count}" for code, count in sorted(row.refused.items())) or "none"
        boot = " · ".join(f"{name} {seconds:.0f}" for name, seconds in row.boot.items())
        blamed, left = (", ".join(found) or "nothing" for found in (row.failed, row.left))
        launches = ", ".join(answer.partition(":")[0] for answer in row.attempts)
        cells = (row.seed, row.exit_code, row.verdict, refused, launches, boot, f"{row.seconds:.0f}", blamed, left)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    good = sum(row.is_good for row in rows)
    return "\n".join([*lines, "", f"{good} of {len(rows)} without an image that was blamed, and nothing left"])


def rows_of(out: Path, seeds: list[int]) -> list[Row]:
    found = [read_json(out / f"seed-{seed}" / "row.json") for seed in seeds]
    return [Row(**row) for row in found if row]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(20)), help="seeds to run (default: 0 to 19)")
    parser.add_argument("--out", type=Path, default=Path("out", "seeds"), help="results folder (default: %(default)s)")
    parser.add_argument("--table", action="store_true", help="print the existing results; run nothing")
    parser.add_argument("--scripted", action="store_true", help="run from plan to publication without a machine")
    args = parser.parse_args()
    args.out = args.out.resolve() / "scripted" if args.scripted else args.out.resolve()
    done = {row.seed for row in rows_of(args.out, args.seeds)}
    if not args.table and set(args.seeds) - done:
        built = args.out / RECIPE
        ami = "" if args.scripted else build(built)
        for seed in args.seeds:
            if seed not in done:
                row = play(seed, args.out) if args.scripted else prove(seed, ami, built, args.out)
                write_json(args.out / f"seed-{seed}" / "row.json", asdict(row))
                print(table([row]).splitlines()[2], flush=True)
    rows = rows_of(args.out, args.seeds)
    print(table(rows))
    return 0 if all(row.is_good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
