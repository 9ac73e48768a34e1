"""Recipe and facts → the plan's document. Deterministic: same files, same document."""

from __future__ import annotations

import hashlib
from typing import Any

from gpu_ami.recipes.agent import agent_config, gpu_config
from gpu_ami.recipes.facts import Facts, Row
from gpu_ami.recipes.layers import Recipe

_GPU_KEYS = (
    "vendor", "name", "architecture", "compute_capability", "memory_mib", "power_limit_w", "max_clock_mhz",
    "pcie_gen", "pcie_width", "pci",
)  # fmt: skip
_AGENT_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}
# Carried for the roles that install them; where there is no such role, recorded only.
_CARRIED = ("cuda", "cudnn", "nccl", "efa", "mkl")


def resolve(recipe: Recipe, facts: Facts) -> dict[str, Any]:
    """The plan's document, without digest and as it is carried out on AWS itself."""
    values = recipe.values
    system = facts.operating_systems[values["os"]]
    telemetry = _telemetry(values["telemetry"], facts)
    sources = _Sources()
    document: dict[str, Any] = {
        "schema": "gpu-ami/plan/1",
        "image": recipe.name,
        "description": values.get("description", ""),
        "flag": values["flag"],
        "recipe": {"file": recipe.file.name, "sha256": hashlib.sha256(recipe.file.read_bytes()).hexdigest()},
        "os": {key: system[key] for key in ("id", "version", "codename", "family", "ssh_user")},
        "architecture": values["architecture"],
        "node": values["node"],
        "source_ami": values.get("source_ami") or system["source_ami"][values["architecture"]],
        "build": values["build"],
        "instance_types": [_instance_type(name, facts, sources) for name in values["instance_types"]],
        "roles": values["roles"],
    }
    sources.add(f"operating system {values['os']}", system)
    if "version" in values.get("nvidia_driver", {}):
        document["nvidia_driver"] = _driver(values, system, facts, sources)
    document |= {key: values[key] for key in _CARRIED if key in values}
    document["cloudwatch_agent"] = _agent(values, system, facts, sources) | {
        "config": agent_config(telemetry, values["event_parser"], None),
        "gpu_config": gpu_config(telemetry, None),
    }
    sources.add(f"metric set {telemetry['profile']}", facts.telemetry[telemetry["profile"]])
    return document | {
        "event_parser": values["event_parser"],
        "hygiene": {},
        "telemetry": telemetry,
        "sources": sources.rows,
        "notes": sources.notes,
    }


class _Sources:
    """The rows that the plan relies on, and what of them is not established."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.notes: list[str] = []

    def add(self, fact: str, row: Row) -> None:
        unverified = bool(row.get("unverified", False))
        entry = {"fact": fact, "source": row["source"], "date": row["date"], "unverified": unverified}
        if entry in self.rows:
            return
        self.rows.append(entry)
        if unverified:
            self.notes.append(" ".join(str(row.get("note") or f"not established: {fact} ({row['source']})").split()))


def _instance_type(name: str, facts: Facts, sources: _Sources) -> dict[str, Any]:
    row = facts.instance_types[name]
    gpu = row.get("gpu")
    sources.add(f"instance type {name}", row)
    entry = {
        "name": name,
        "gpu_count": gpu["count"] if gpu else 0,
        **{key: row[key] for key in ("nvswitch", "efa_interfaces", "vcpus", "memory_gib")},
    }
    if gpu:
        entry["gpu"] = {key: gpu[key] for key in _GPU_KEYS if key in gpu}
        sources.add(f"GPU {gpu['name']}", gpu)
    return entry


def _telemetry(asked: Row, facts: Facts) -> dict[str, Any]:
    return {
        "profile": asked["profile"],
        "interval_s": asked["interval_s"],
        "namespace": asked["namespace"],
        "measurements": asked.get("measurements") or facts.telemetry[asked["profile"]]["measurements"],
        "raw_log_group": asked["raw_log_group"],
        "json_log_group": asked["json_log_group"],
        "log_stream": asked["log_stream"],
        **({"retention_days": asked["retention_days"]} if "retention_days" in asked else {}),
    }


def _driver(values: Row, system: Row, facts: Facts, sources: _Sources) -> dict[str, Any]:
    asked = values["nvidia_driver"]
    names = facts.driver_packages[system["family"]]
    repository = facts.driver_packages["repository"]
    package_version = f"{asked['version']}{names['revision']}"
    folder = (
        f"{repository['base_url']}/{system['nvidia_repository']}/{repository['architectures'][values['architecture']]}"
    )
    sources.add(f"driver packages of {system['family']}", names)
    sources.add("NVIDIA's repository and its key", repository)
    return {
        "version": asked["version"],
        "flavour": asked["flavour"],
        "package": names["module"][asked["flavour"]],
        "package_version": package_version,
        "packages": dict.fromkeys(names["with"], package_version),
        "repository": {
            "url": f"{folder}/",
            "suite": repository["suite"],
            "components": [],
            "key_url": f"{folder}/{repository['key_file']}",
            "key_fingerprint": repository["key_fingerprint"],
        },
    }


def _agent(values: Row, system: Row, facts: Facts, sources: _Sources) -> dict[str, Any]:
    agent = facts.cloudwatch_agent
    version = values["cloudwatch_agent"]["version"]
    release = agent["versions"].get(version, {"directory": version, "source": agent["source"], "date": agent["date"]})
    package = "deb" if system["family"] == "debian" else "rpm"
    architecture = _AGENT_ARCHITECTURES[values["architecture"]]
    url = (
        f"{agent['base_url']}/{system['cloudwatch_agent']}/{architecture}/{release['directory']}"
        f"/amazon-cloudwatch-agent.{package}"
    )
    sources.add(f"CloudWatch agent {version}", release)
    sources.add("the CloudWatch agent's signing key", agent)
    return {
        "version": version,
        "url": url,
        "signature_url": f"{url}.sig",
        "key_url": agent["key_url"],
        "key_fingerprint": agent["key_fingerprint"],
    }
