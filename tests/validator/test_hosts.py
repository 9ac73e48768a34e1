"""What a host is: identity, PCI devices, its agent's configuration."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest

from gpu_ami.recipes.agent import agent_config, gpu_config
from tests.validator.conftest import Run, folder_of
from tests.validator.probes.test_hardware import PCI
from validator import pci, selection
from validator.agent_document import AgentConfig, AgentGpuConfig
from validator.probes import hardware
from validator.probes.agent.lint import lint

# The shell command that says whether a host's GPUs are real, on hosts with real and simulated ones.


@pytest.mark.parametrize(
    ("listed", "kind"),
    [
        (PCI, "real"),
        ("0000:00:1e.0 0x10de 0x1eb8 0x030200\n", "real"),
        ("0000:00:1f.0 0x1af4 0x1110 0x050000 nvidia\n", "simulated"),
        (PCI + "0000:00:1f.0 0x1af4 0x1110 0x050000 nvidia\n", "simulated"),
        ("0000:00:05.0 0x1d0f 0xec20 0x020000 ena\n", ""),
    ],
)
def test_shell_command_agrees_with_is_simulated(listed: str, kind: str) -> None:
    command = pci.KIND.replace(pci.PCI_LIST, f"printf '%s' '{listed}'")
    assert command != pci.KIND
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == kind
    assert (kind != "real") == hardware.is_simulated(hardware.pci_devices(listed))


# Ids of checks: the file, the function, the parameters; unique within a run.


def test_no_check_hides_another_of_its_name(run: Run, tmp_path: Path) -> None:
    """A red check must not be overwritten by a green one: of another class, another file, or another host."""
    classes = "".join(
        f"class Test{name}:\n    def test_it(self, host):\n        assert host.run('{name}').rc == 0\n"
        for name in ("false", "true")
    )
    twin = "def test_it(host):\n    assert host.run('{}').rc == 0\n"
    local = "import testinfra\n\ndef test_here():\n    assert testinfra.get_host('local://').exists('sh')\n"
    files = {"test_a.py": classes, "x/test_b.py": twin.format("false"), "y/test_b.py": twin.format("true") + local}
    outcome = run(folder_of(tmp_path, files))
    assert {one["id"]: one["verdict"] for one in outcome.document["checks"]} == {
        "test_a::Testfalse::test_it": "FAIL",
        "test_a::Testtrue::test_it": "PASS",
        "test_b::test_it": "FAIL",
        "mine/y/test_b::test_it": "PASS",
        "test_b::test_here": "PASS",  # it asks no host, and belongs to the only one
    }


@pytest.mark.parametrize(
    ("case", "shown"),
    [
        ("ssh://ip-10-0-0-7.ec2.internal:22", ""),
        ("ssh://ip-10-0-0-7.ec2.internal:22-raw-log", "[raw-log]"),
        ("raw-log-ssh://ip-10-0-0-7.ec2.internal:22", "[raw-log]"),
    ],
)
def test_host_is_not_a_parameter_of_the_id(case: str, shown: str) -> None:
    backend = SimpleNamespace(get_pytest_id=lambda: "ssh://ip-10-0-0-7.ec2.internal:22")
    callspec = SimpleNamespace(id=case, params={"_testinfra_host": SimpleNamespace(backend=backend)})
    assert selection.host_parameters(SimpleNamespace(callspec=callspec)) == shown  # type: ignore[arg-type]


# The types of the agent's planned configuration.


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
