"""Runs the whole suite over transcripts: one process that has imported everything, a child of it for each transcript.

`python -m tests.validator.transcript_session OUT FOLDER…` writes OUT/<name>.json:
check id → [verdict, message, sourced].
"""

from __future__ import annotations

import json
import os
import sys
import traceback
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_ami.recipes import load_facts

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ROOT / "validator" / "checks"
_GPU = (
    "vendor", "name", "architecture", "compute_capability", "memory_mib", "power_limit_w", "max_clock_mhz", "pcie_gen",
    "pcie_width", "pci",
)  # fmt: skip


def instance_type(name: str) -> dict[str, Any]:
    """The row that a plan has of an instance type of the facts."""
    table = load_facts().instance_types
    row = table["instance_types"][name]
    gpu = row.get("gpu")
    of_model = {**table["gpus"][gpu["model"]], **gpu} if gpu and "model" in gpu else dict(gpu or {})
    entry = {"name": name, "gpu_count": gpu["count"] if gpu else 0, "nvswitch": bool(row.get("nvswitch"))}
    entry |= {key: row.get(key, 0) for key in ("efa_interfaces", "vcpus", "memory_gib")}
    if gpu:
        entry["gpu"] = {key: of_model[key] for key in _GPU if key in of_model}
    return entry | ({"neuron": row["neuron"]} if "neuron" in row else {})


def plan_of(values: Any) -> dict[str, Any]:
    """The plan document with which a transcript is judged: its own sections, and the facts of its instance type."""
    system = {"id": "ubuntu", "version": "24.04", "family": "debian"} | values.system
    return {
        "schema": "gpu-ami/plan/1", "image": "transcript", "os": system, "architecture": "x86_64",
        "kernel": {"version": "unknown"}, "instance_types": [instance_type(values.machine)], **values.plan,
    }  # fmt: skip


def _session(folder: Path, out: Path) -> None:
    import pytest

    from validator.results import HostResults
    from validator.transport import transcript, transcript_values

    values = transcript_values.load(folder)
    plan, results = out / f"{folder.name}.plan.json", out / f"{folder.name}.checks.json"
    plan.write_text(json.dumps(plan_of(values)))
    host = f"transcript://{urllib.parse.quote(str(folder), safe='')}"
    options = [
        "-q", "-c", os.devnull, "--rootdir", str(CHECKS), "-p", "validator.plugin", "-p", "no:cacheprovider",
        "--no-evidence", "--serial", f"--hosts={host}", f"--plan={plan}", f"--results={results}", str(CHECKS),
    ]  # fmt: skip
    status = pytest.main(options)
    if status not in (0, 1):
        raise SystemExit(f"{folder.name}: pytest ended with status {status}")
    composed = {_check(test, folder) for test, _, sourced in transcript.trace if not sourced}
    asked = {_check(test, folder) for test, *_ in transcript.trace}
    rows = {}
    for record in HostResults.load(results).checks:
        name = record.id
        rows[name] = [
            str(record.verdict),
            record.message,
            name not in composed and (name in asked or values.gpus_sourced),
        ]
    (out / f"{folder.name}.json").write_text(json.dumps(rows))


def _check(test: str, folder: Path) -> str:
    """`…/efa.py::test_x[transcript://FOLDER-a] (call)` → `efa::test_x[a]`."""
    path, _, name = test.partition(" (")[0].partition("::")
    plain, _, parameters = name.partition("[")
    own = f"-{parameters.rstrip(']')}-".replace(f"-transcript://{folder}-", "-", 1).strip("-")
    return f"{Path(path).stem}::{plain}" + (f"[{own}]" if own else "")


def _warm_up() -> None:
    """Imports what every session needs, once."""
    import importlib

    import pytest  # noqa: F401
    import testinfra.plugin  # noqa: F401

    import validator.plugin  # noqa: F401

    for path in sorted((ROOT / "validator" / "probes").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        importlib.import_module(name)


def main(arguments: Sequence[str], parallel: int = 2) -> int:
    """Exit status 0: each session ended."""
    out, folders = Path(arguments[0]), [Path(folder).resolve() for folder in arguments[1:]]
    os.environ.update(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTEST_ADDOPTS="")
    _warm_up()
    running: dict[int, Path] = {}
    failed = 0
    for folder in [*folders, None]:
        while running and (len(running) >= parallel or folder is None):
            pid, status = os.wait()
            failed += bool(status)
            running.pop(pid)
        if folder is None:
            break
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                log = os.open(out / f"{folder.name}.log", os.O_WRONLY | os.O_CREAT)
                os.dup2(log, 1)
                os.dup2(log, 2)
                _session(folder, out)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        running[pid] = folder
    return 1 if failed else 0


def shown(rows: Mapping[str, Sequence[Any]]) -> str:
    return "\n".join(f"{verdict:9} {name}: {message[:150]}" for name, (verdict, message, _) in rows.items())


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
