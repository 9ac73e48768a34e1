"""The agent replica at work: what it sends arrives in moto as metrics and log streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from localregion.replicas.cloudwatch_agent.cwagent import agent, aws, ctl, gpu, logs, metrics, parameters
from localregion.replicas.cloudwatch_agent.cwagent.journal import Journal
from localregion.replicas.cloudwatch_agent.cwagent.metadata import Credentials, Metadata
from localregion.replicas.cloudwatch_agent.cwagent.tail import Tail
from localregion.replicas.cloudwatch_agent.cwagent.timestamps import TimestampFormat

NVIDIA = {"nvidia_gpu": {"measurement": ["utilization_gpu", "fan_speed"], "metrics_collection_interval": 10}}
DIMENSIONS = {"InstanceId": "i-1", "InstanceType": "g5.12xlarge", "ImageId": "ami-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


class Here:
    """What an agent's part needs around it: journal, stop event, services."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "agent.log"
        self.journal = Journal(str(self.log))
        self.stop = threading.Event()

    def service(self, name: str, endpoint: str) -> aws.Service:
        return aws.Service(name, "us-east-1", endpoint, Metadata(), self.journal, self.stop)

    def metrics(self, endpoint: str, section: dict[str, Any], **config: Any) -> metrics.Metrics:
        return metrics.Metrics(
            section, config, self.service("monitoring", endpoint), DIMENSIONS.get, self.journal, self.stop
        )

    def logs(self, endpoint: str, **entry: Any) -> logs.Logs:
        section = {"force_flush_interval": 0, "logs_collected": {"files": {"collect_list": [entry]}}}
        names = lambda text: agent.placeholders(text, "i-1")  # noqa: E731
        return logs.Logs(section, self.service("logs", endpoint), names, str(self.folder), self.journal, self.stop)


@pytest.fixture
def here(tmp_path: Path) -> Here:
    return Here(tmp_path)


def _client(name: str, endpoint: str) -> Any:
    return boto3.client(name, endpoint_url=endpoint, region_name="us-east-1")  # type: ignore[call-overload]


def _sample(*values: dict[str, float]) -> tuple[float, list[tuple[dict[str, str], dict[str, float]]]]:
    rows = [
        ({"index": str(index), "name": "NVIDIA A10G", "arch": "Ampere"}, value) for index, value in enumerate(values)
    ]
    return time.time(), rows


def test_gpu_metrics_arrive_with_their_dimensions(here: Here, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "sample", lambda **_: _sample({"utilization_gpu": 41.0}, {"utilization_gpu": 43.0}))
    section = {
        "namespace": "Arrival",
        "metrics_collected": NVIDIA,
        "aggregation_dimensions": [["InstanceId"], ["NotThere"]],
        "append_dimensions": {name: f"${{aws:{name}}}" for name in (*DIMENSIONS, "AutoScalingGroupName")},
    }
    work = here.metrics(endpoint, section)
    work.collect(work.plugins[0])
    work.flush()
    cloudwatch = _client("cloudwatch", endpoint)
    found = cloudwatch.list_metrics(Namespace="Arrival")["Metrics"]
    shapes = {tuple(sorted((d["Name"], d["Value"]) for d in metric["Dimensions"])) for metric in found}
    per_gpu = [
        tuple(sorted({**DIMENSIONS, "index": index, "name": "NVIDIA A10G", "arch": "Ampere"}.items())) for index in "01"
    ]
    assert shapes == {*per_gpu, (("InstanceId", "i-1"),)}
    assert {metric["MetricName"] for metric in found} == {"nvidia_smi_utilization_gpu"}  # fan_speed: absent, not zero
    now = time.time()
    dimensions = [{"Name": key, "Value": value} for key, value in per_gpu[1]]
    points = cloudwatch.get_metric_statistics(
        Namespace="Arrival",
        MetricName="nvidia_smi_utilization_gpu",
        Dimensions=dimensions,
        Period=60,
        StartTime=now - 120,
        EndTime=now + 60,
        Statistics=["Average"],
    )["Datapoints"]
    assert [point["Average"] for point in points] == [43.0]


@pytest.mark.parametrize(("appended", "has_host"), [({}, True), ({"InstanceId": "${aws:InstanceId}"}, False)])
def test_host_is_a_dimension_only_when_nothing_is_appended(
    here: Here, appended: dict[str, str], has_host: bool
) -> None:
    work = here.metrics("http://127.0.0.1:9", {"metrics_collected": NVIDIA, "append_dimensions": appended})
    assert ("host" in work.agent_metrics) is has_host


def test_names_units_and_resolution_follow_the_configuration(here: Here) -> None:
    plugin = {
        "measurement": [{"name": "utilization_gpu", "rename": "busy", "unit": "Percent"}, "nvidia_smi_power_draw"]
    }
    work = here.metrics(
        "http://127.0.0.1:9", {"metrics_collected": {"nvidia_gpu": plugin}}, metrics_collection_interval=10
    )
    only = work.plugins[0]
    assert only.published == {"utilization_gpu": ("busy", "Percent"), "power_draw": ("nvidia_smi_power_draw", "None")}
    assert only.interval == 10
    body = metrics.encode(
        "N", work.datums(only, "busy", "Percent", 1.5, {"index": "0"}, 0.0, "utilization_gpu")
    ).decode()
    assert "MetricData.member.1.StorageResolution=1" in body and "Value=1.5" in body and "Unit=Percent" in body
    assert "Timestamp=1970-01-01T00%3A00%3A00Z" in body and "Dimensions.member.1.Name=index" in body


def test_failed_sample_is_logged_and_forgotten(here: Here, tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA-SMI has failed; exit 9\n")
    program.chmod(0o755)
    with pytest.raises(gpu.SampleFailed, match="ended with 9: NVIDIA-SMI has failed"):
        gpu.sample(str(program))
    with pytest.raises(gpu.SampleFailed, match="XML"):
        gpu.parse(b"text mixed into <xml", "1.300071.0")


def test_nvidia_smi_that_hangs_costs_a_sample_after_five_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    assert gpu.SECONDS == 5.0
    monkeypatch.setattr(gpu, "SECONDS", 0.5)
    with pytest.raises(gpu.SampleFailed, match=r"timed out after 0\.5 seconds"):
        gpu.sample(str(program), release="1.300071.0")


def test_processor_time_of_nvidia_smi_is_not_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An emulated processor needs seconds for what the original computes in a tenth of one."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nsleep 1; echo '<nvidia_smi_log/>'\n")
    program.chmod(0o755)
    monkeypatch.setattr(gpu, "SECONDS", 0.4)
    started = time.monotonic()
    monkeypatch.setattr(gpu, "processor_seconds", lambda _: time.monotonic() - started - 0.1)
    assert gpu.sample(str(program), release="1.300071.0")[1] == []


def test_a_program_that_nvidia_smi_is_replaced_by_may_start_it(tmp_path: Path) -> None:
    """The wrappers of seeded faults: the seconds that what they start computes are counted with theirs."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n({sys.executable} -c 'while True: pass') | cat\n")
    program.chmod(0o755)
    deadline = time.monotonic() + 120.0  # on a busy machine it waits for its turn
    with subprocess.Popen([program], start_new_session=True) as process:
        try:
            while (seconds := gpu.processor_seconds(process.pid)) < 1.0 and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
    assert seconds >= 1.0


LAYOUT = (
    '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_{layout}.dtd">\n<nvidia_smi_log><gpu>'
    "<temperature><gpu_temp>30 C</gpu_temp></temperature>{power}</gpu></nvidia_smi_log>"
)
OLD = "<power_readings><power_draw>27.34 W</power_draw></power_readings>"
R535 = "<gpu_power_readings><power_draw>27.34 W</power_draw></gpu_power_readings>"
R570 = (
    "<gpu_power_readings><average_power_draw>N/A</average_power_draw>"
    "<instant_power_draw>27.34 W</instant_power_draw></gpu_power_readings>"
)


@pytest.mark.parametrize(
    ("release", "layout", "power", "draw", "warned"),
    [
        ("1.300033.0b1", "v11", OLD, 27.34, False),
        ("1.300033.0b1", "v12", R535, None, True),
        ("1.300034.0", "v12", R535, 27.34, False),
        ("1.300055.2", "v12", R570, None, False),
        ("1.300055.2", "v13", R570, None, True),
        ("1.300056.0", "v12", R570, 27.34, False),
        ("1.300071.0", "v13", R570, 27.34, True),
    ],
)
def test_each_release_reads_the_layouts_that_it_knows(
    monkeypatch: pytest.MonkeyPatch, release: str, layout: str, power: str, draw: float | None, warned: bool
) -> None:
    monkeypatch.setattr(gpu, "warned_schemas", set())
    warnings: list[str] = []
    document = LAYOUT.format(layout=layout, power=power).encode()
    for _ in range(2):
        _, ((_, values),) = gpu.parse(document, release, warnings.append)
        assert (values["temperature_gpu"], values.get("power_draw")) == (30, draw)
    text = f'[inputs.nvidia_smi] Unknown schema version "{layout}", using latest know schema for parsing.'
    assert warnings == ([text] if warned else [])


@pytest.mark.parametrize(("layout", "arch"), [("v10", None), ("v11", None), ("v12", "Turing"), ("v13", "Turing")])
def test_architecture_is_read_from_layout_12_on(layout: str, arch: str | None) -> None:
    """schema_v11/parser.go has no such tag: the series of drivers before R525 have no dimension `arch`."""
    document = LAYOUT.format(layout=layout, power="<product_architecture>Turing</product_architecture>").encode()
    ((dimensions, _),) = gpu.parse(document, "1.300071.0")[1]
    assert dimensions.get("arch") == arch


@pytest.mark.parametrize("text", ["GPU is lost", "[Unknown Error]", "ERR!", "N/A", "", "12.5 C", "1e3"])
def test_what_is_no_integer_is_not_sent(text: str) -> None:
    document = f"<log><gpu><temperature><gpu_temp>{text}</gpu_temp></temperature></gpu></log>".encode()
    assert gpu.parse(document, "1.300071.0")[1] == [({"index": "0"}, {})]


def test_host_plugins_measure_this_machine(here: Here) -> None:
    wanted = {
        "mem": {"measurement": ["mem_used_percent"]},
        "disk": {"measurement": ["used_percent"]},
        "cpu": {"measurement": ["usage_idle"]},
    }
    work = here.metrics("http://127.0.0.1:9", {"metrics_collected": {**wanted, "statsd": {}}})
    samples = {plugin.name: plugin.sample(here.journal.warn)[1] for plugin in work.plugins}
    assert 0 < samples["mem"][0][1]["used_percent"] < 100
    assert "statsd is not collected" in here.log.read_text()
    assert samples["cpu"] == []  # a share needs two looks


def _events(endpoint: str, group: str) -> list[tuple[int, str]]:
    found = _client("logs", endpoint).get_log_events(logGroupName=group, logStreamName="i-1", startFromHead=True)[
        "events"
    ]
    return [(event["timestamp"], event["message"]) for event in found]


def test_lines_arrive_once_through_rotation_and_restart(here: Here, endpoint: str) -> None:
    file = here.folder / "gpuevent.log"
    entry = {
        "file_path": str(file),
        "log_group_name": "/rotation",
        "log_stream_name": "{instance_id}",
        "retention_in_days": 30,
    }
    file.write_text("one\n")
    work = here.logs(endpoint, **entry)
    _settle(work)
    with file.open("a") as handle:
        handle.write("two\n")
    file.rename(here.folder / "gpuevent.log.1")
    file.write_text("three\n")
    _settle(work)
    again = here.logs(endpoint, **entry)  # a restart
    with file.open("a") as handle:
        handle.write("four\nunfinished")
    _settle(again)
    assert [text for _, text in _events(endpoint, "/rotation")] == ["one", "two", "three", "four"]
    groups = _client("logs", endpoint).describe_log_groups(logGroupNamePrefix="/rotation")["logGroups"]
    assert groups[0]["retentionInDays"] == 30


def _settle(work: logs.Logs) -> None:
    """Steps until everything complete in the files is sent: an event waits half a second for its continuation."""
    deadline = time.monotonic() + 10
    quiet = 0
    while quiet < 3 and time.monotonic() < deadline:
        work.step()
        for stream in work.streams.values():
            stream.opened = 0.0  # the half second is over
        busy = any(stream.events or stream.pending for stream in work.streams.values())
        quiet = 0 if busy else quiet + 1
    assert quiet == 3


def test_rotation_while_the_agent_was_down_loses_what_the_original_loses(here: Here, endpoint: str) -> None:
    """The saved offset has no file: the rest of the old one is not sent, and the new one is read from there on."""
    file = here.folder / "down.log"
    entry = {"file_path": str(file), "log_group_name": "/down", "log_stream_name": "{instance_id}"}
    file.write_text("one\n")
    _settle(here.logs(endpoint, **entry))
    with file.open("a") as handle:
        handle.write("two\n")
    file.rename(here.folder / "down.log.1")
    file.write_text("three\nfour\n")
    _settle(here.logs(endpoint, **entry))
    assert [text for _, text in _events(endpoint, "/down")] == ["one", "e", "four"]


def test_offset_of_the_images_builder_skips_the_start_of_the_log(here: Here, endpoint: str) -> None:
    """amazon-cloudwatch-agent#2184: logs/state in an image holds an offset and a path, two lines."""
    file = here.folder / "baked.log"
    state = here.folder / f"{str(file).replace('/', '_').lstrip('_')}"
    state.write_text(f"8\n{file}\n")
    file.write_text("first\n")
    work = here.logs(endpoint, file_path=str(file), log_group_name="/baked", log_stream_name="{instance_id}")
    _settle(work)
    with file.open("a") as handle:
        handle.write("second\nthird\n")
    _settle(work)
    assert [text for _, text in _events(endpoint, "/baked")] == ["cond", "third"]
    assert state.read_text() == f"{len('first second third ')}\n{file}\n"


def test_timestamps_multi_line_events_and_filters(here: Here, endpoint: str) -> None:
    file = here.folder / "events.jsonl"
    stamp = time.time() - 60
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(stamp)) + ".250000Z"
    file.write_text(f'{{"time": "{at}", "code": 79}}\n  continued\nnoise\nno time of its own\n')
    work = here.logs(
        endpoint,
        file_path=str(file),
        log_group_name="/stamped",
        log_stream_name="i-1",
        timestamp_format="%Y-%m-%dT%H:%M:%S.%f",
        timezone="UTC",
        filters=[{"type": "exclude", "expression": "^noise$"}],
    )
    _settle(work)
    wanted = int(stamp) * 1000 + 250
    assert _events(endpoint, "/stamped") == [
        (wanted, f'{{"time": "{at}", "code": 79}}\n  continued'),
        (wanted, "no time of its own"),
    ]


@pytest.mark.parametrize(
    ("form", "line", "utc", "seconds"),
    [
        ("%Y-%m-%dT%H:%M:%S.%f", '{"time": "2026-11-21T13:00:00.500000Z"}', True, 1795266000.5),
        ("%Y-%m-%dT%H:%M:%S%z", "x 2026-11-21T15:00:00+02:00 y", False, 1795266000.0),
        ("%d/%b/%Y:%H:%M:%S %z", "[21/Nov/2026:13:00:00 +0000]", False, 1795266000.0),
        ("%m/%d/%y %I:%M:%S %p", "11/21/26 01:00:00 PM", True, 1795266000.0),
        ("%Y-%m-%d", "no time here", True, None),
    ],
)
def test_timestamp_formats(form: str, line: str, utc: bool, seconds: float | None) -> None:
    assert TimestampFormat(form, utc=utc).find(line) == seconds


def test_unknown_timestamp_directive_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown directive %Q"):
        TimestampFormat("%Q", utc=True)


def test_truncated_file_is_read_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_text("a longer first line\n")
    tail = Tail(str(file), str(tmp_path))
    assert [line for line, _, _ in tail.lines()] == [b"a longer first line"]
    file.write_text("new\n")
    assert [line for line, _, _ in tail.lines()] == [b"new"]
    tail.close()


def test_batches_keep_to_the_services_limits() -> None:
    day = 24 * 3600 * 1000
    assert len(logs.batch_of([(0, "x", 1, 1)] * 10001)) == 10000
    assert len(logs.batch_of([(0, "x", 1, 1), (day + 1, "y", 1, 2)])) == 1
    assert len(logs.batch_of([(0, "x" * 600000, 1, 1)] * 2)) == 1


def test_signature_is_amazons_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against botocore's signer: same key, same request, same signature."""
    from botocore.auth import SigV4Auth
    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials as BotoCredentials

    body = b"Action=PutMetricData"
    headers = {
        "Host": "monitoring.us-east-1.amazonaws.com",
        "Content-Type": "application/x-www-form-urlencoded; charset=utf-8",
    }
    request = AWSRequest("POST", "https://monitoring.us-east-1.amazonaws.com/", data=body, headers=headers)
    SigV4Auth(BotoCredentials("AKID", "secret", "token"), "monitoring", "us-east-1").add_auth(request)
    now = time.mktime(time.strptime(request.headers["X-Amz-Date"], "%Y%m%dT%H%M%SZ")) - time.timezone
    ours = aws.sign(Credentials("AKID", "secret", "token", 0.0), "us-east-1", "monitoring", headers, body, now)
    assert ours["authorization"] == request.headers["Authorization"]


class _Answers(BaseHTTPRequestHandler):
    statuses: list[int] = []  # noqa: RUF012
    seen = 0

    def do_POST(self) -> None:
        type(self).seen += 1
        self.rfile.read(int(self.headers["Content-Length"]))
        status = self.statuses.pop(0)
        body = (
            b'{"__type": "x#ServiceUnavailableException"}'
            if status == 503
            else b'{"__type": "x#InvalidParameterException"}'
        )
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def moody(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(aws, "FIRST_WAIT", 0.01)
    server = HTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()


def test_transport_is_retried_and_a_refusal_is_not(here: Here, moody: str) -> None:
    _Answers.statuses, _Answers.seen = [503, 503, 200, 503, 503, 503, 200, 400], 0
    service = here.service("logs", moody)
    service.call("application/x-amz-json-1.1", b"{}", "Logs_20140328.PutLogEvents")
    # The SDK's own attempts are silent.
    assert _Answers.seen == 3 and (not here.log.exists() or " E! " not in here.log.read_text())
    service.call("application/x-amz-json-1.1", b"{}", "Logs_20140328.PutLogEvents")
    assert _Answers.seen == 7 and "try 3 failed" in here.log.read_text()
    with pytest.raises(aws.ServiceError, match="InvalidParameterException"):
        service.call("application/x-amz-json-1.1", b"{}", "Logs_20140328.PutLogEvents")
    assert _Answers.seen == 8


def test_agent_that_ends_gives_up_after_three_tries(here: Here) -> None:
    here.stop.set()
    with pytest.raises(aws.Stopping):
        here.service("logs", "http://127.0.0.1:9").call("t", b"{}", "Logs_20140328.PutLogEvents", last=True)
    assert here.log.read_text().count(" E! ") == 1


def test_what_is_queued_is_sent_at_the_end(here: Here, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "sample", lambda **_: _sample({"utilization_gpu": 7.0}))
    work = here.metrics(endpoint, {"namespace": "Last", "force_flush_interval": 3600, "metrics_collected": NVIDIA})
    thread = threading.Thread(target=work.run)
    thread.start()
    deadline = time.monotonic() + 10
    while not work.queue and time.monotonic() < deadline:
        time.sleep(0.01)
    here.stop.set()
    thread.join(10)
    assert len(_client("cloudwatch", endpoint).list_metrics(Namespace="Last")["Metrics"]) == 1


class OfTheRegion(Metadata):
    """Metadata of an instance with a role."""

    def document(self) -> dict[str, object]:
        return {"region": "us-east-1"}

    def credentials(self) -> Credentials:
        return Credentials("ASIA0", "secret", "token", float("inf"))


def test_a_configuration_comes_from_parameter_store(endpoint: str, tmp_path: Path) -> None:
    _client("ssm", endpoint).put_parameter(Name="AmazonCloudWatch-x", Value='{"agent": {}}', Type="String")
    log = str(tmp_path / "log")
    assert parameters.fetch("AmazonCloudWatch-x", log, endpoint, OfTheRegion()) == '{"agent": {}}'
    with pytest.raises(parameters.NotFetched, match="ParameterNotFound"):
        parameters.fetch("AmazonCloudWatch-y", log, endpoint, OfTheRegion())


def test_a_part_is_named_by_its_source() -> None:
    given = ("default", "file:/a/base.json", "ssm:AmazonCloudWatch-x", "ssm:/team/x")
    assert [ctl.part_name(source) for source in given] == [
        "default",
        "file_base.json",
        "ssm_AmazonCloudWatch-x",
        "ssm_x",
    ]
