"""Each check of started containers, once green and once red with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from tests.validator.checks.test_container_toolkit import plan
from validator.checks import container_toolkit as toolkit
from validator.probes import compute, containers
from validator.probes.containers import Started

UUIDS = ["0a000000-1", "1b000000-1"]
COMPUTE = {
    "kind": "machine", "schema": compute.SCHEMA, "error": None, "unfinished": None, "count": 2, "replica": "",
}  # fmt: skip


def printed(*uuids: str, error: str = "") -> dict[str, Any]:
    """What a container answered."""
    failure = {"call": "cuInit", "number": 999, "name": error, "meaning": "", "what": "cuInit", "log": ""}
    rows = [COMPUTE | {"count": len(uuids), "error": failure if error else None}]
    for number, uuid in enumerate(uuids):
        gpu = {"kind": "gpu", "index": number, "error": None, "uuid": uuid, "computed_mib": 16, "peers": []}
        rows.append(gpu | {"free_mib": 20000, "pattern_mib": 200, "wrong": None, "pattern_wrong": None})
    nodes = ["/dev/nvidia-uvm", "/dev/nvidiactl", *(f"/dev/nvidia{number}" for number in range(len(uuids)))]
    return {"nodes": nodes, "status": 0, "errors": "", "printed": "".join(json.dumps(row) + "\n" for row in rows)}


REPLICA = "NVIDIA Container Runtime version 1.18.1\ncommit: replica\n"
ORIGINAL = "NVIDIA Container Runtime version 1.18.1\ncommit: 6b8a5b3\n"
LEGACY = '[nvidia-container-runtime]\nmode = "legacy"\n'


def ran(
    way: str,
    before: Any = None,
    after: Any = None,
    error: str = "",
    how: str = "runtime nvidia",
    runtime: tuple[str, str] = (REPLICA, ""),
) -> Started:
    row = {"way": way, "how": how, "error": error, "before": before, "after": after}
    document = {
        "schema": containers.SCHEMA,
        "engine": "docker",
        "version": "25.0.13",
        "cgroups": "systemd",
        "error": "",
    }
    return Started(
        containers.read(json.dumps(document | {"ways": [row]})), "", UUIDS, containers.read_runtime(*runtime)
    )


BOTH, ONE = printed(*UUIDS), printed(UUIDS[0])
STARTED: list[tuple[Any, Started, dict[str, Any], str, str]] = [
    (toolkit.test_container_computes_on_every_gpu, ran("runtime", BOTH), {"way": "runtime"}, "PASS", ""),
    (toolkit.test_container_computes_on_every_gpu, ran("cdi", BOTH), {"way": "cdi"}, "PASS", ""),
    (
        toolkit.test_container_computes_on_every_gpu,
        ran("cdi", ONE),
        {"way": "cdi"},
        "FAIL",
        "container by cdi (runtime nvidia): expected 2 GPUs (0a000000-1, 1b000000-1), got 1 (0a000000-1)",
    ),
    (
        toolkit.test_container_computes_on_every_gpu,
        ran("runtime", printed(error="CUDA_ERROR_UNKNOWN")),
        {"way": "runtime"},
        "FAIL",
        "CUDA does not start: cuInit: cuInit: CUDA_ERROR_UNKNOWN (999)",
    ),
    (
        toolkit.test_container_computes_on_every_gpu,
        ran("runtime", error="the container did not run: exit status 125: unknown runtime specified nvidia"),
        {"way": "runtime"},
        "FAIL",
        "unknown runtime specified nvidia",
    ),
    (
        toolkit.test_container_computes_on_every_gpu,
        Started(None, "the container probe printed no result", UUIDS, containers.read_runtime(REPLICA, "")),
        {"way": "runtime"},
        "FAIL",
        "the container probe printed no result",
    ),
    (
        toolkit.test_container_computes_on_every_gpu,
        ran("runtime", BOTH | {"printed": ""}),
        {"way": "runtime"},
        "FAIL",
        "the compute probe printed no result",
    ),
    (toolkit.test_container_has_no_other_gpu, ran("one", ONE), {}, "PASS", ""),
    (toolkit.test_container_has_no_other_gpu, ran("one", BOTH), {}, "FAIL", "expected 1 GPUs"),
    (
        toolkit.test_container_has_no_other_gpu,
        ran("one", ONE | {"nodes": BOTH["nodes"]}),
        {},
        "FAIL",
        "expected 1 GPUs, got ['/dev/nvidia0', '/dev/nvidia1']",
    ),
    (
        toolkit.test_container_has_no_other_gpu,
        Started(None, "", UUIDS[:1], containers.read_runtime(REPLICA, "")),
        {},
        "UNPROVEN",
        "the machine has one GPU",
    ),
    (toolkit.test_container_keeps_its_gpus, ran("cdi", BOTH, BOTH), {"way": "cdi"}, "PASS", ""),
    (
        toolkit.test_container_keeps_its_gpus,
        ran("runtime", BOTH, printed(error="CUDA_ERROR_NO_DEVICE")),
        {"way": "runtime"},
        "FAIL",
        "after systemctl daemon-reload, container by runtime (runtime nvidia): CUDA does not start",
    ),
    (
        toolkit.test_container_keeps_its_gpus,
        ran("runtime", BOTH, error="the container did not answer in time"),
        {"way": "runtime"},
        "FAIL",
        "the container did not answer in time",
    ),
    (  # what the replica did by CDI says nothing about an image whose runtime uses another way
        toolkit.test_container_computes_on_every_gpu,
        ran("runtime", BOTH, runtime=(REPLICA, LEGACY)),
        {"way": "runtime"},
        "UNPROVEN",
        "nvidia-container-runtime gives containers GPUs in mode legacy, /etc/nvidia-container-runtime/config.toml; the",
    ),
    (
        toolkit.test_container_computes_on_every_gpu,
        ran("cdi", error="the container did not run", runtime=(REPLICA, LEGACY)),
        {"way": "cdi"},
        "UNPROVEN",
        "replica has modes cdi and jit-cdi alone: validate the image on EC2",
    ),
    (
        toolkit.test_container_has_no_other_gpu,
        ran("one", ONE, runtime=(REPLICA.replace("1.18", "1.17"), "")),
        {},
        "UNPROVEN",
        "in mode legacy (mode auto of release 1.17)",
    ),
    (
        toolkit.test_container_keeps_its_gpus,
        ran("runtime", BOTH, BOTH, runtime=(REPLICA, LEGACY.replace("legacy", "csv"))),
        {"way": "runtime"},
        "UNPROVEN",
        "in mode csv",
    ),
    (  # full names of CDI devices are CDI in `auto` of each release
        toolkit.test_container_computes_on_every_gpu,
        ran("cdi", BOTH, runtime=(REPLICA.replace("1.18", "1.17"), "")),
        {"way": "cdi"},
        "PASS",
        "",
    ),
    (  # Docker's own CDI does not pass the runtime
        toolkit.test_container_computes_on_every_gpu,
        ran("cdi", BOTH, how="--device nvidia.com/gpu=all", runtime=(REPLICA, LEGACY)),
        {"way": "cdi"},
        "PASS",
        "",
    ),
    (
        toolkit.test_container_computes_on_every_gpu,
        ran("runtime", BOTH, runtime=(ORIGINAL, LEGACY)),
        {"way": "runtime"},
        "PASS",
        "",
    ),
    (
        toolkit.test_container_keeps_its_gpus,
        ran("runtime", BOTH, printed(error="CUDA_ERROR_NO_DEVICE"), runtime=(ORIGINAL, LEGACY)),
        {"way": "runtime"},
        "FAIL",
        "after systemctl daemon-reload",
    ),
    (  # the runtime does not start with such a file: the image's fault
        toolkit.test_container_computes_on_every_gpu,
        ran("runtime", error="failed to load config", runtime=(REPLICA, "mode = [")),
        {"way": "runtime"},
        "FAIL",
        "failed to load config",
    ),
    (
        toolkit.test_container_keeps_its_gpus,
        ran("runtime", ONE, ONE),
        {"way": "runtime"},
        "UNPROVEN",
        "did not compute before",
    ),
]


@pytest.mark.parametrize(("check", "started", "more", "verdict", "message"), STARTED)
def test_started_containers(
    judge: Judge, check: Any, started: Started, more: dict[str, Any], verdict: str, message: str
) -> None:
    found = judge(check, {}, plan=plan(), started=started, **more)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_containers_say_in_which_mode_they_got_their_gpus() -> None:
    native = ran("cdi", BOTH, how="--device nvidia.com/gpu=all")
    assert [ran(way, BOTH).text(way)[1] for way in ("runtime", "cdi")] == [
        "runtime nvidia, mode jit-cdi",
        "runtime nvidia, mode cdi",
    ]
    assert native.text("cdi")[1] == "--device nvidia.com/gpu=all"
