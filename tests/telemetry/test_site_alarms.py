"""The alarms of a site: a template that CloudFormation's linter and moto take, and their runbooks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami import cli
from gpu_ami.plan import make_plan
from gpu_ami.recipes import read_site_alarms
from gpu_ami.telemetry.templates import SITE_ALARMS_FILE as FILE
from gpu_ami.telemetry.templates import site_template
from tests.telemetry.test_templates import PLACE

SITE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "site"


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """What `gpu-ami telemetry` writes of the example site."""
    shutil.copytree(SITE, tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plan", "monitored", "-q", "-o", "out"]) == 0
    assert cli.main(["telemetry", "out", "-o", "telemetry"]) == 0
    capsys.readouterr()
    return tmp_path / "telemetry" / FILE


class Loader(yaml.SafeLoader):
    """Reads CloudFormation's short forms as their arguments."""


Loader.add_multi_constructor("!", lambda loader, _, node: loader.construct_scalar(node))


def test_telemetry_makes_the_site_s_alarms(written: Path) -> None:
    resources = yaml.load(written.read_text(), Loader)["Resources"]
    assert list(resources) == ["CompanyMonitorLostFilter", "CompanyMonitorLostAlarm", "CompanyQueueLongAlarm"]
    lines = resources["CompanyMonitorLostFilter"]["Properties"]
    assert (lines["LogGroupName"], lines["FilterPattern"]) == ("/company/monitor", '"connection lost"')
    assert lines["MetricTransformations"][0]["MetricName"] == "${AWS::StackName}-company-monitor-lost"
    counted = resources["CompanyMonitorLostAlarm"]["Properties"]
    assert counted["MetricName"] == lines["MetricTransformations"][0]["MetricName"]
    assert counted["AlarmActions"] == ["TicketTopicArn"]
    queue = resources["CompanyQueueLongAlarm"]["Properties"]
    assert queue["Metrics"][0]["Expression"] == (
        'SELECT MAX(queue_length) FROM "Company" GROUP BY InstanceId ORDER BY MAX() DESC'
    )
    assert (queue["Threshold"], queue["EvaluationPeriods"], queue["AlarmActions"]) == (100, 10, ["PageTopicArn"])
    assert queue["AlarmDescription"].endswith("Runbook: gpu-ami runbook company-queue-long")


def test_metric_below_its_limit_takes_the_smallest(tmp_path: Path) -> None:
    file = tmp_path / "alarms.yml"
    text = (SITE / "alarms.yml").read_text().replace("above: 100", "below: 1").replace("queue_length", "queue-length")
    file.write_text(text)
    made: Any = site_template(make_plan(SITE / "recipes" / "monitored.yml", PLACE).document, read_site_alarms(file))
    queue = made["Resources"]["CompanyQueueLongAlarm"]["Properties"]
    assert queue["ComparisonOperator"] == "LessThanThreshold" and queue["Threshold"] == 1
    assert queue["Metrics"][0]["Expression"].startswith('SELECT MAX("queue-length")')
    assert queue["Metrics"][0]["Expression"].endswith("ASC")


@pytest.mark.usefixtures("written")
def test_runbook_and_checks_know_the_site(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["runbook", "gpu-telemetry-company-monitor-lost"]) == 0
    shown = capsys.readouterr().out
    assert "--log-group-name /company/monitor --filter-pattern '\"connection lost\"'" in shown
    assert "See whether the endpoint answers" in shown
    assert cli.main(["runbook", "company-queue-long", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["urgency"] == "page"
    assert cli.main(["runbook"]) == 0
    assert "company-queue-long      page    Jobs wait" in capsys.readouterr().out
    assert cli.main(["runbook", "company-monitor-lost", "--pattern"]) == 0
    assert capsys.readouterr().out == '"connection lost"\n'
    assert cli.main(["runbook", "company-queue-lng"]) == 2
    assert "did you mean company-queue-long?" in capsys.readouterr().err
    assert cli.main(["checks", "--role", "test_company_monitor"]) == 0
    assert "test_company_monitor::test_endpoint_is_the_planned_one" in capsys.readouterr().out
