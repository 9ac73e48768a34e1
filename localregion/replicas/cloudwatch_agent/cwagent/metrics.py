"""Metrics: sampling each plugin at its interval, dimensions and roll-ups, and PutMetricData in batches."""

from __future__ import annotations

import os
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import TypedDict

from . import configuration, gpu, host
from .aws import Service, ServiceError, Stopping
from .configuration import Section, get_items, get_number, get_section, get_text
from .journal import Journal

_LARGEST_BATCH = 1000  # datums in one PutMetricData
_VERSION = "2010-08-01"
_UNITS = {
    "mem": {"used_percent": "Percent", "available_percent": "Percent"},
    "disk": {"used_percent": "Percent"},
    "cpu": dict.fromkeys(configuration.PLUGINS["cpu"][1], "Percent"),
}
_BYTES = {"mem": ("total", "available", "free", "used"), "disk": ("total", "free", "used")}


class Datum(TypedDict):
    """One value to publish; time: seconds since the epoch; resolution: 1 or 60 s."""

    name: str
    unit: str
    value: float
    time: float
    resolution: int
    dimensions: dict[str, str]


class Plugin:
    """One section of metrics_collected: what it measures, how often, under which names."""

    def __init__(self, name: str, config: Section, default_interval: float) -> None:
        self.name = name
        self.config = config
        self.interval = get_number(config, "metrics_collection_interval", default_interval)
        self.due = 0.0
        prefix = configuration.PLUGINS[name][0]
        self.published: dict[str, tuple[str, str]] = {}  # measurement → (metric name, unit)
        for item in get_items(config, "measurement"):
            measurement: Section = item if isinstance(item, dict) else {"name": item}
            bare = configuration.bare_name(name, get_text(measurement, "name"))
            unit = "Bytes" if bare in _BYTES.get(name, ()) else _UNITS.get(name, {}).get(bare, "None")
            self.published[bare] = (
                get_text(measurement, "rename", f"{prefix}_{bare}"),
                get_text(measurement, "unit", unit),
            )
        self.dropped = {configuration.bare_name(name, str(item)) for item in get_items(config, "drop_original_metrics")}
        self.dimensions = {key: str(value) for key, value in get_section(config, "append_dimensions").items()}
        self._cpu = host.Cpu()

    def sample(self, warn: Callable[[str], None]) -> tuple[float, host.Sample]:
        if self.name == "nvidia_gpu":
            return gpu.sample(warn=warn)
        source: Callable[[Section], host.Sample] = {
            "cpu": self._cpu.sample,
            "mem": host.memory,
            "disk": host.disk,
        }[self.name]
        return time.time(), source(self.config)


class Metrics:
    """Runs the metrics section in a thread of its own."""

    def __init__(
        self,
        metrics: Section,
        agent: Section,
        service: Service,
        resolve: Callable[[str], str | None],
        journal: Journal,
        stop: threading.Event,
    ) -> None:
        self._service, self._journal, self._stop, self._resolve = service, journal, stop, resolve
        self._namespace = get_text(metrics, "namespace", "CWAgent")
        self._flush_every = get_number(metrics, "force_flush_interval", 60)
        default = get_number(agent, "metrics_collection_interval", 60)
        collected = get_section(metrics, "metrics_collected")
        self.plugins = [
            Plugin(name, get_section(collected, name), default) for name in collected if name in configuration.PLUGINS
        ]
        for name in collected.keys() - configuration.PLUGINS.keys():
            journal.warn(
                f"[metrics] {name} is not collected: "
                + ("the replica has no such plugin" if name in configuration.FOREIGN_PLUGINS else "no such plugin")
            )
        rollups = [names for names in get_items(metrics, "aggregation_dimensions") if isinstance(names, list)]
        self._rollups = [[str(name) for name in names] for names in rollups]
        appended = get_section(
            metrics, "append_dimensions"
        )  # the agent leaves out names and values that it does not know
        self._appended_names = [name for name in configuration.APPENDABLE if appended.get(name) == f"${{aws:{name}}}"]
        # The agent drops `host` as soon as anything is appended (ruleTagExclude.go).
        self.agent_metrics = {} if self._appended_names or agent.get("omit_hostname") else {"host": os.uname().nodename}
        self._appended: dict[str, str] | None = None
        self.queue: list[Datum] = []

    def run(self) -> None:
        flush_at = time.monotonic() + self._flush_every
        while not self._stop.is_set():
            now = time.time()
            for plugin in self.plugins:
                if now >= plugin.due:
                    # At whole multiples of the interval, as the agent (round_interval).
                    plugin.due = (now // plugin.interval + 1) * plugin.interval
                    self.collect(plugin)
            if self.queue and (time.monotonic() >= flush_at or len(self.queue) >= _LARGEST_BATCH):
                self.flush()
                flush_at = time.monotonic() + self._flush_every
            until = min([plugin.due - time.time() for plugin in self.plugins] + [flush_at - time.monotonic()])
            self._stop.wait(max(0.05, until if self.queue or self.plugins else 1.0))
        self.flush(last=True)

    def collect(self, plugin: Plugin) -> None:
        try:
            stamp, rows = plugin.sample(self._journal.warn)
        except (gpu.SampleFailed, OSError) as error:
            self._journal.error(f"[inputs.{configuration.PLUGINS[plugin.name][0]}] Error in plugin: {error}")
            return
        appended = self._append()
        for dimensions, values in rows:
            full = {**dimensions, **self.agent_metrics, **plugin.dimensions, **appended}
            for measurement, (name, unit) in plugin.published.items():
                if measurement in values:
                    self.queue += self.datums(plugin, name, unit, values[measurement], full, stamp, measurement)

    def datums(
        self,
        plugin: Plugin,
        name: str,
        unit: str,
        value: float,
        dimensions: dict[str, str],
        stamp: float,
        measurement: str,
    ) -> list[Datum]:
        """The metric, and one copy for each set of aggregation_dimensions that it has all dimensions of."""
        published = [] if measurement in plugin.dropped else [dimensions]
        for names in self._rollups:
            if all(key in dimensions for key in names) and len(names) < len(dimensions):
                published.append({key: dimensions[key] for key in names})
        resolution = 1 if plugin.interval < 60 else 60
        return [
            Datum(name=name, unit=unit, value=value, time=stamp, resolution=resolution, dimensions=each)
            for each in published
        ]

    def _append(self) -> dict[str, str]:
        if self._appended is None:
            values = {name: self._resolve(name) for name in self._appended_names}
            self._appended = {name: value for name, value in values.items() if value}
        return self._appended

    def flush(self, *, last: bool = False) -> None:
        while self.queue:
            batch = self.queue[:_LARGEST_BATCH]
            try:
                self._service.call(
                    "application/x-www-form-urlencoded; charset=utf-8", encode(self._namespace, batch), last=last
                )
            except ServiceError as error:
                self._journal.error(f"[outputs.cloudwatch] {len(batch)} datums dropped: {error}")
            except Stopping as error:
                if not last:
                    return  # run() flushes once more
                self._journal.error(f"[outputs.cloudwatch] {len(self.queue)} datums lost at the end: {error}")
                self.queue.clear()
            del self.queue[: len(batch)]


def encode(namespace: str, batch: list[Datum]) -> bytes:
    """PutMetricData in the query protocol."""
    pairs = [("Action", "PutMetricData"), ("Version", _VERSION), ("Namespace", namespace)]
    for number, datum in enumerate(batch, 1):
        base = f"MetricData.member.{number}."
        pairs.append((base + "MetricName", datum["name"]))
        for position, (key, value) in enumerate(sorted(datum["dimensions"].items()), 1):
            pairs += [
                (f"{base}Dimensions.member.{position}.Name", key),
                (f"{base}Dimensions.member.{position}.Value", value),
            ]
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(datum["time"]))
        pairs += [
            (base + "Timestamp", stamp),
            (base + "Value", repr(float(datum["value"]))),
            (base + "Unit", datum["unit"]),
        ]
        if datum["resolution"] == 1:
            pairs.append((base + "StorageResolution", "1"))
    return urllib.parse.urlencode(pairs).encode()
