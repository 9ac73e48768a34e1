"""The former system's metrics: its names, dimensions and units, and what is different."""

from __future__ import annotations

import json
import select
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.events.reader import parser_module
from tests.onhost.event_parser.parser_bench import Bench, make_bench  # noqa: F401  (make_bench is the fixture `bench`)
from tests.onhost.event_parser.test_snapshot import fake_nvidia_smi

seed = parser_module("seed")
INSTANCE = {"InstanceId": "i-1", "InstanceType": "p4d.24xlarge"}
ROWS = (
    "0, NVIDIA A100-SXM4-40GB, 550.163.01, 7, 40529, 0, 0, 210, 1215, 0\n"
    "1, NVIDIA A100-SXM4-40GB, 550.163.01, 9, 40527, 5, 1, 1410, 1215, [N/A]\n"
)
# aws-efa-nccl-baseami-pipeline 9d8a9273: keys of nvidia-exporter, dimensions of accel-to-cw.py and efa-to-cw.py.
OLD_GPU = {"Mem_used", "Mem_free", "Util_gpu", "Clock_sm", "Util_mem", "Clock_mem", "Uncorr_ecc"}
OLD_GPU_DIMENSIONS = ["Id", "InstanceType", "AcceleratorIndex", "AcceleratorName", "AcceleratorDriver"]
OLD_EFA_DIMENSIONS = ["Id", "InstanceType", "EFAIndex", "EFAName", "EFADriver"]


def metrics(script: str, tmp_path: Path, root: Path | None = None) -> Any:
    program = fake_nvidia_smi(tmp_path, script)
    return seed.SeedMetrics(program, 10.0, str(root or tmp_path / "no-root"))


def run(found: Any, instance: dict[str, str] | None = None) -> list[dict[str, Any]]:
    """One period: starts nvidia-smi, and takes its answer."""
    poller = select.poll()
    identity = INSTANCE if instance is None else instance
    made = list(found.step(poller, [], identity, found.next_due()))
    while found.query is not None:
        ready = [fd for fd, _ in poller.poll(5000)]
        made += found.step(poller, ready, identity, time.monotonic())
    return made


def efa(root: Path, name: str, **counters: int) -> None:
    folder = root / f"sys/class/infiniband/{name}/ports/1/hw_counters"
    folder.mkdir(parents=True, exist_ok=True)
    for file, value in counters.items():
        (folder / file).write_text(f"{value}\n")
    (root / "sys/module/efa").mkdir(parents=True, exist_ok=True)
    (root / "sys/module/efa/version").write_text("3.3.0g\n")


def test_gpu_metrics_are_those_of_the_former_system(tmp_path: Path) -> None:
    first, second = run(metrics(f"printf '{ROWS}'", tmp_path))
    (directive,) = first["_aws"]["CloudWatchMetrics"]
    assert directive["Namespace"] == "AcceleratorMetrics"
    assert directive["Dimensions"] == [
        OLD_GPU_DIMENSIONS, [name for name in OLD_GPU_DIMENSIONS if name != "AcceleratorIndex"],
    ]  # fmt: skip
    assert {metric["Name"] for metric in directive["Metrics"]} == OLD_GPU
    assert {(metric["Unit"], metric["StorageResolution"]) for metric in directive["Metrics"]} == {("None", 1)}
    assert [first[name] for name in OLD_GPU_DIMENSIONS] == [
        "i-1", "p4d.24xlarge", "0", "NVIDIA A100-SXM4-40GB", "550.163.01",
    ]  # fmt: skip
    assert (first["Mem_used"], first["Mem_free"], second["Clock_sm"], second["Util_gpu"]) == (7, 40529, 1410, 5)
    assert "Uncorr_ecc" not in second, "[N/A] ended the former system"


def test_nvidia_smi_is_asked_for_what_is_published(tmp_path: Path) -> None:
    run(metrics(f'printf "%s\\n" "$*" > {tmp_path}/asked', tmp_path))
    assert (tmp_path / "asked").read_text() == " ".join(seed.QUERY) + "\n"


@pytest.mark.parametrize("script", ["exit 9", "echo No devices were found", "printf '0, A, B\\n'", "true"])
def test_a_failing_nvidia_smi_costs_one_reading(tmp_path: Path, script: str) -> None:
    found = metrics(script, tmp_path)
    assert run(found) == []
    assert found.failures == 1
    assert run(found) == [], "it is asked again"


@pytest.mark.parametrize("text", ["[GPU is lost]", "[Unknown Error]", "ERR!", ""])
def test_an_unknown_value_is_no_zero(tmp_path: Path, text: str) -> None:
    cells = ", ".join([text] * len(seed.GPU_METRICS))
    found = metrics(f"echo '0, NVIDIA H100, 580.105.08, {cells}'", tmp_path)
    assert run(found) == [] and found.failures == 1


def test_efa_counters_are_differences(tmp_path: Path) -> None:
    efa(tmp_path, "rdmap0s6", rx_bytes=1000, tx_bytes=500, rdma_read_bytes=0)
    efa(tmp_path, "rdmap9s0", rx_bytes=5)
    found = metrics("exit 0", tmp_path, tmp_path)
    assert run(found) == [], "the total since the boot says nothing of this period"
    efa(tmp_path, "rdmap0s6", rx_bytes=1700, tx_bytes=500, rdma_read_bytes=64)
    efa(tmp_path, "rdmap9s0", rx_bytes=2)
    (document,) = run(found)
    assert [document[name] for name in OLD_EFA_DIMENSIONS] == ["i-1", "p4d.24xlarge", "0", "rdmap0s6", "3.3.0g"]
    assert (document["Rx_bytes"], document["Tx_bytes"], document["Rdma_read"]) == (700, 0, 64)
    (directive,) = document["_aws"]["CloudWatchMetrics"]
    assert directive["Namespace"] == "EFAMetrics" and directive["Metrics"][0]["Unit"] == "Bytes"
    assert directive["Dimensions"] == [OLD_EFA_DIMENSIONS, [n for n in OLD_EFA_DIMENSIONS if n != "EFAIndex"]]
    efa(tmp_path, "rdmap9s0", rx_bytes=10)
    assert [row["Rx_bytes"] for row in run(found)] == [0, 8], "after a reset the next reading is the first"


def test_nothing_without_the_instance_s_identity(tmp_path: Path) -> None:
    found = metrics(f"printf '{ROWS}'", tmp_path, tmp_path)
    assert run(found, {"InstanceId": "i-1"}) == []
    data = tmp_path / "run/cloud-init"
    data.mkdir(parents=True)
    (data / "instance-data.json").write_text(json.dumps({"ds": {"meta_data": {"instance-type": "g5.xlarge"}}}))
    assert {row["InstanceType"] for row in run(found, {"InstanceId": "i-1"})} == {"g5.xlarge"}
    assert run(found, {}) == []


def test_service_writes_them_into_the_json_log(bench: Bench) -> None:
    bench.options.nvidia_smi = fake_nvidia_smi(bench.folder, f"printf '{ROWS}'")
    bench.options.seed_metrics_s = 10.0
    service = bench.start()
    service.instance = INSTANCE
    poller = select.poll()
    service.publish_seed(poller, [])
    while service.seed_process.query is not None:
        service.publish_seed(poller, [fd for fd, _ in poller.poll(5000)])
    found = [document for document in bench.documents() if document["kind"] == "seed_metrics"]
    assert [row["AcceleratorIndex"] for row in found] == ["0", "1"]
    assert service.timeout_ms(float("inf")) <= 10_001


def test_service_publishes_none_unless_asked(bench: Bench) -> None:
    service = bench.start()
    assert service.seed_process is None
    service.publish_seed(select.poll(), [])
    assert bench.documents() == []
