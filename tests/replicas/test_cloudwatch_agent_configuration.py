"""What the agent replica takes as configuration, how parts merge, what it refuses, and its control program."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from localregion.replicas.cloudwatch_agent.cwagent import agent, configuration, ctl, gpu

LOGS = {
    "logs": {
        "logs_collected": {
            "files": {
                "collect_list": [{"file_path": "/var/log/a", "log_group_name": "g", "log_stream_name": "{instance_id}"}]
            }
        }
    }
}
GPU = {
    "metrics": {
        "metrics_collected": {
            "nvidia_gpu": {"measurement": ["utilization_gpu", {"name": "power_draw", "unit": "Watts"}]}
        }
    }
}


def _with(document: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with one place changed; path like "metrics/namespace"."""
    copy: dict[str, Any] = json.loads(json.dumps(document))
    place: Any = copy
    *folders, last = path.split("/")
    for name in folders:
        place = place[int(name)] if isinstance(place, list) else place[name]
    place[last] = value
    return copy


_FILE = "logs/logs_collected/files/collect_list/0"


@pytest.mark.parametrize(
    ("config", "path", "said"),
    [
        (
            _with(GPU, "metrics/metrics_collected/nvidia_gpu/measurement", ["utilization_gpx"]),
            "nvidia_gpu/measurement",
            "'utilization_gpx' is invalid",
        ),
        (_with(GPU, "metrics/metrics_collected/nvidia_gpu/measurement", []), "nvidia_gpu/measurement", "at least one"),
        (
            _with(GPU, "metrics/metrics_collected/nvidia_gpu", ["utilization_gpu"]),
            "metrics_collected/nvidia_gpu",
            "expected an object",
        ),
        (_with(GPU, "metrics/metrics_collected", {}), "/metrics/metrics_collected", "at least 1 keys"),
        (_with(GPU, "metrics/name_space", "x"), "/metrics/name_space", "unknown key"),
        (_with(GPU, "metrics/force_flush_interval", 0), "/metrics/force_flush_interval", "1 to 172800"),
        (_with(GPU, "metrics/append_dimensions", ["InstanceId"]), "append_dimensions", "expected an object"),
        (_with(GPU, "metrics/aggregation_dimensions", ["InstanceId"]), "aggregation_dimensions/0", "expected a list"),
        (_with(LOGS, f"{_FILE}/retention_in_days", 31), "0/retention_in_days", "got 31"),
        (_with(LOGS, f"{_FILE}/file_path", ""), "0/file_path", "required"),
        (_with(LOGS, f"{_FILE}/timezone", "CET"), "0/timezone", "UTC, got 'CET'"),
        (_with(LOGS, f"{_FILE}/filters", [{"type": "include", "expression": "("}]), "0/filters/0", "expression"),
        (_with(LOGS, "logs/logs_collected/files/collect_list", {}), "collect_list", "expected a list"),
        ({"agent": []}, "/agent", "expected an object"),
    ],
)
def test_wrong_configuration_is_refused_with_its_path(config: dict[str, Any], path: str, said: str) -> None:
    found = configuration.check(config)
    assert len(found) == 1 and path in found[0] and said in found[0]


def test_right_configuration_passes() -> None:
    assert configuration.check(GPU) == configuration.check(LOGS) == configuration.check({}) == []
    # As the agent's own translator: a plugin name that it does not know is not a mistake.
    assert configuration.check({"metrics": {"metrics_collected": {"nvidia_gp": {"measurement": ["x"]}}}}) == []


def _write(folder: Path, **parts: object) -> list[str]:
    folder.mkdir(exist_ok=True)
    for name, part in parts.items():
        (folder / f"{name}.json").write_text(part if isinstance(part, str) else json.dumps(part))
    return [str(folder / f"{name}.json") for name in parts]


def test_parts_merge_and_lists_of_files_join(tmp_path: Path) -> None:
    other = _with(LOGS, f"{_FILE}/file_path", "/var/log/b")
    merged = configuration.combine(_write(tmp_path / "d", a=LOGS, b=other, c=GPU))
    files = merged["logs"]["logs_collected"]["files"]["collect_list"]
    assert [entry["file_path"] for entry in files] == ["/var/log/a", "/var/log/b"]
    assert "nvidia_gpu" in merged["metrics"]["metrics_collected"]


def test_parts_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    parts = _write(tmp_path / "d", a=_with(GPU, "metrics/namespace", "A"), b=_with(GPU, "metrics/namespace", "B"))
    with pytest.raises(
        configuration.Refused, match=r"/metrics/namespace . Error : Different values are specified: 'A' and 'B'"
    ):
        configuration.combine(parts)


def test_folder_is_read_without_unfinished_parts(tmp_path: Path) -> None:
    _write(tmp_path / "d", a=LOGS)
    (tmp_path / "d/file_b.json.tmp").write_text("{")
    assert configuration.load_folder(str(tmp_path / "d")) == LOGS
    assert configuration.load_folder(str(tmp_path / "none")) == {}


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A HOME of the agent, and systemctl at the door."""
    for name in ("etc/amazon-cloudwatch-agent.d", "logs/state", "bin"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "bin/CWAGENT_VERSION").write_text("1.300071.0\n")
    home = str(tmp_path)
    for module in (ctl, agent):
        monkeypatch.setattr(module, "HOME", home)
        monkeypatch.setattr(module, "PARTS", f"{home}/etc/amazon-cloudwatch-agent.d")
        monkeypatch.setattr(module, "version", lambda: "1.300071.0")
    monkeypatch.setattr(ctl, "TRANSLATED", (f"{home}/etc/amazon-cloudwatch-agent.toml", ""))
    return tmp_path


def _ctl(action: str, part: str, *more: str) -> int:
    return ctl.main(["-a", action, "-m", "ec2", "-c", part, *more])


def test_ctl_fetches_appends_and_removes(installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[str, ...]] = []
    monkeypatch.setattr(ctl, "systemctl", lambda *words: told.append(words) or 0)
    parts = installed / "etc/amazon-cloudwatch-agent.d"
    base, gpu_part = _write(tmp_path / "in", base=LOGS, gpu=GPU)
    assert _ctl("fetch-config", f"file:{gpu_part}") == 0
    assert _ctl("fetch-config", f"file:{base}") == 0  # replaces
    assert [path.name for path in parts.iterdir()] == ["file_base.json"]
    assert _ctl("append-config", f"file:{gpu_part}", "-s") == 0
    assert sorted(path.name for path in parts.iterdir()) == ["file_base.json", "file_gpu.json"]
    assert (parts / "file_gpu.json").read_text() == Path(gpu_part).read_text()
    assert told == [
        ("enable", "--quiet", "amazon-cloudwatch-agent.service"),
        ("restart", "amazon-cloudwatch-agent.service"),
    ]
    assert _ctl("remove-config", "file:/anywhere/gpu.json") == 0
    assert [path.name for path in parts.iterdir()] == ["file_base.json"]
    assert _ctl("remove-config", "file:/anywhere/gpu.json") == 1


def test_ctl_changes_nothing_on_a_mistake(installed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, broken = _write(tmp_path / "in", good=LOGS, bad=_with(GPU, "metrics/x", 1), broken="{")
    assert _ctl("fetch-config", f"file:{good}") == 0
    assert _ctl("append-config", f"file:{bad}") == 1
    assert "Configuration validation first phase failed" in capsys.readouterr().err
    assert _ctl("fetch-config", f"file:{broken}") == 1
    assert "unable to parse JSON" in capsys.readouterr().err
    assert _ctl("fetch-config", "file:/no/such/file") == 1
    assert _ctl("fetch-config", "ssm:name") == 1
    assert [path.name for path in (installed / "etc/amazon-cloudwatch-agent.d").iterdir()] == ["file_good.json"]


def test_ctl_status_has_the_agents_keys(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = {"ActiveState": "active", "ExecMainStartTimestampMonotonic": "1000000"}
    monkeypatch.setattr(ctl, "show", lambda *names: {name: shown[name] for name in names})
    assert ctl.main(["-a", "status", "-m", "ec2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["configstatus"], found["version"]) == ("running", "not configured", "1.300071.0")
    assert found["starttime"].endswith("+00:00")


@pytest.mark.parametrize("words", [[], ["-a"], ["-a", "dance"], ["-a", "set-log-level", "-l", "LOUD"], ["--help"]])
def test_ctl_refuses_what_it_does_not_know(
    installed: Path, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert ctl.main(words) == 1
    assert "usage:" in capsys.readouterr().err


def test_agent_refuses_to_start_without_nvidia_smi(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The start-up trap of the original: one missing program, and not even the logs are shipped."""
    _write(installed / "etc/amazon-cloudwatch-agent.d", file_base=LOGS, file_gpu=GPU)
    monkeypatch.setattr(gpu.check_rights, "__defaults__", (str(tmp_path / "nvidia-smi"),))
    assert agent.main() == 1
    log = (installed / "logs/amazon-cloudwatch-agent.log").read_text()
    assert " E! Error running agent: plugin nvidia_smi cannot be started:" in log and "No such file" in log


def test_rights_of_nvidia_smi_are_checked(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    assert gpu.check_rights(str(program)) is not None
    program.touch(mode=0o755)
    assert gpu.check_rights(str(program)) is None
    program.chmod(0o555)
    assert "lacks read or write" in (gpu.check_rights(str(program)) or "")


def test_agent_without_configuration_says_what_to_do(installed: Path) -> None:
    assert agent.main() == 1
    assert "fetch-config" in (installed / "logs/amazon-cloudwatch-agent.log").read_text()


def test_status_imports_nothing_of_the_network() -> None:
    """The checks ask for it after each boot: most of an emulated machine's 8 s were the import of an HTTP client."""
    package = "localregion.replicas.cloudwatch_agent.cwagent"
    program = f"import sys, {package}.ctl; print(sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert f"{package}.ctl" in done.stdout and "'http.client'" not in done.stdout
