"""The types of the agent's planned configuration."""

from __future__ import annotations

from typing import get_args, get_type_hints

from gpu_ami.recipes.agent import agent_config, gpu_config
from validator.agent_document import AgentConfig, AgentGpuConfig
from validator.probes.agent.lint import lint

TELEMETRY = {
    "interval_s": 10, "namespace": "CWAgent", "measurements": ["utilization_gpu"], "raw_log_group": "raw",
    "json_log_group": "json", "log_stream": "{instance_id}", "retention_days": 7,
}  # fmt: skip
PARSER = {"raw_log": "/var/log/gpuevent.log", "json_log": "/var/log/gpuevent.jsonl"}


def agree(value: object, declared: object, path: str = "") -> None:
    """Every key of the value is declared, at every depth."""
    if isinstance(declared, type) and isinstance(value, dict) and hasattr(declared, "__total__"):
        hints = get_type_hints(declared)
        assert set(value) <= set(hints), path
        for key, item in value.items():
            agree(item, hints[key], f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            agree(item, get_args(declared)[0], f"{path}[]")


def test_rendered_configuration_has_the_declared_keys() -> None:
    endpoint = "http://169.254.169.251"
    agree(agent_config(TELEMETRY, PARSER, endpoint), AgentConfig)
    agree(gpu_config(TELEMETRY, endpoint), AgentGpuConfig)


def test_linter_knows_every_rendered_key() -> None:
    whole = {**agent_config(TELEMETRY, PARSER, None), **gpu_config(TELEMETRY, None)}
    assert [finding for finding in lint(whole) if "unknown key" in finding.message] == []
