"""What is shown of neuron-monitor's metrics is what its publisher writes."""

from __future__ import annotations

from gpu_ami.telemetry import neuron_metrics
from tests.neuron_monitor.programs import report, runtime
from tests.neuron_monitor.test_documents import made, series


def test_each_metric_is_published_and_shown_once() -> None:
    documents, _ = made(report(runtime("job", 0, 1)))
    published = {name for name, *_ in series(documents)}
    names = [one.metric for one in neuron_metrics.SHOWN]
    assert set(names) <= published and len(set(names)) == len(names)
    assert {neuron_metrics.UTILIZATION, neuron_metrics.DEVICES} <= set(names)
