"""Whether a machine's connections to CloudWatch are dropped, by the probe itself on this machine."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from localregion.machines.firewall import DroppedPort
from tests.scripted_host import Reply, on_this_machine, table_host
from validator.checks import metrics
from validator.cloudwatch import ApiRefused, Point, Series
from validator.probes.agent import delivery

ADDRESS = "127.99.5.5"


def plan_for(url: str) -> Any:
    return {"cloudwatch_agent": {"config": {"logs": {"endpoint_override": url}}}}


@pytest.mark.parametrize(
    ("region", "plan", "expected"),
    [
        ("eu-central-1", None, ("logs.eu-central-1.amazonaws.com", 443)),
        ("cn-north-1", {"cloudwatch_agent": {"config": {"logs": {}}}}, ("logs.cn-north-1.amazonaws.com.cn", 443)),
        ("us-east-1", plan_for("http://169.254.169.251"), ("169.254.169.251", 80)),
        ("us-east-1", plan_for("https://mirror.example:8443"), ("mirror.example", 8443)),
    ],
)
def test_the_endpoint_is_the_plans_or_aws_s(region: str, plan: Any, expected: tuple[str, int]) -> None:
    assert delivery.endpoint("logs", region, plan) == expected


def this_machine() -> Any:
    """A host whose commands run here, with short deadlines and without instance metadata."""

    def run(command: str) -> Reply:
        short = command.replace(f", {delivery.SECONDS})", ", 0.5)")
        return on_this_machine(short.replace("http://169.254.169.254", "http://127.0.0.1:9"))

    return table_host(run)


@contextmanager
def dropped() -> Iterator[int]:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        port = int(probe.getsockname()[1])
    closed = DroppedPort(ADDRESS, port)
    yield port
    closed.close()


def test_a_connection_that_times_out_is_not_the_image_s_fault() -> None:
    with dropped() as port, pytest.raises(ApiRefused, match=f"to {ADDRESS} port {port}: timed out"):
        delivery.raise_if_dropped(this_machine(), "logs", "us-east-1", plan_for(f"http://{ADDRESS}:{port}"))


def test_refused_and_open_connections_decide_nothing() -> None:
    with socket.create_server((ADDRESS, 0)) as server:
        port = server.getsockname()[1]
        delivery.raise_if_dropped(this_machine(), "logs", "us-east-1", plan_for(f"http://{ADDRESS}:{port}"))
    delivery.raise_if_dropped(this_machine(), "logs", "us-east-1", plan_for(f"http://{ADDRESS}:{port}"))
    delivery.raise_if_dropped(this_machine(), "logs", "us-east-1", plan_for("http://no-such-host.invalid"))


def test_security_group_and_port_are_named() -> None:
    host = table_host({"python3*": "dropped\tclosed\tnode\n"})
    with pytest.raises(ApiRefused) as caught:
        delivery.raise_if_dropped(host, "monitoring", "us-east-1", None)
    assert str(caught.value) == (
        "connecting from this machine to monitoring.us-east-1.amazonaws.com port 443: timed out after 15 s (security"
        " group closed, node) (allow TCP 443 out in security group closed, node; look at routes and network ACLs of"
        " its subnet)"
    )


def test_only_metrics_of_which_none_arrived_are_asked_about() -> None:
    series = Series("CWAgent", "power", ())
    host = table_host({"python3*": "dropped"})
    metrics.require_way_out(metrics.Arrival({series: None}, {series: Point(1.0, 2.0)}, 1.0), host, "us-east-1", None)
    with pytest.raises(ApiRefused, match="timed out"):
        metrics.require_way_out(metrics.Arrival({series: None}, {series: None}, 1.0), host, "us-east-1", None)
