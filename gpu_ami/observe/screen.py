"""The screen of `gpu-ami observe`: what is there, where it was read, findings, and what captures Xids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpu_ami.errors import counted
from gpu_ami.observe.captures import capture_of, effective_config, places, shippers
from gpu_ami.observe.findings import Finding, Level
from gpu_ami.observe.observation import Observation
from validator.probes.agent import config as agent_config

_MARK = {Level.PROBLEM: "PROBLEM", Level.WARNING: "warning", Level.NOTE: "note"}


def text(
    observation: Observation, findings: Sequence[Finding], files: Sequence[str] = (), differences: Sequence[str] = ()
) -> str:
    """All of it. files: what was written. differences: from the recipe of --against."""
    return "\n".join([*_head(observation), "", *_components(observation), "", *_agent(observation), "",
                      *_findings(findings), *_differences(differences), *_written(files)])  # fmt: skip


def _head(observation: Observation) -> Iterator[str]:
    read = observation.document
    family, version = observation.node
    yield f"{read['read_of']}: as found"
    architecture = read["architecture"] or "unknown architecture"
    yield f"  system     {read['os']['name'] or read['os']['id'] or 'unknown'}, {architecture}"
    kernels = ", ".join(read["kernels"]) or "none installed"
    running = f"{read['running_kernel']} runs; " if observation.running else ""
    yield f"  kernel     {running}installed: {kernels}"
    yield f"  node       {family} {version}".rstrip()
    yield f"  login      {observation.settings['login_user'] or 'unknown'}"
    yield f"  packages   {read['packages']} ({read['package_database'] or 'no database could be read'})"
    if state := read.get("system_state"):
        yield f"  boot       ended: systemd says {state}"


def _components(observation: Observation) -> Iterator[str]:
    rows = [
        (found.label, _version(observation, name), found.where, found.disagreement)
        for name, found in observation.found.items()
        if not name.startswith("node_")
    ]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    for label, version, where, disagreement in rows:
        state = "sources differ" if disagreement else "agree" if "," in where else "one source"
        yield f"  {label:{widths[0]}}  {version:{widths[1]}}  {state:14}  {where}"
    absent = [
        observation.registry[name].label or name.replace("_", " ")
        for name in observation.absent
        if not name.startswith("node_")
    ]
    yield f"  absent by {' and '.join(observation.absent_sources)}: {', '.join(absent)}"


def _version(observation: Observation, name: str) -> str:
    version = observation.found[name].version or "there"
    return f"{version} {observation.flavour}".rstrip() if name == "nvidia_driver" else version


def _agent(observation: Observation) -> Iterator[str]:
    if "cloudwatch_agent" not in observation.found:
        yield "CloudWatch agent: not installed"
        yield from _ways(observation)
        return
    yield f"CloudWatch agent: configured by {', '.join(places(observation)) or 'nothing'}"
    config = effective_config(observation)
    try:
        measured = agent_config.measurements(config)
        logs = agent_config.log_files(config, {})
    except (ValueError, KeyError, TypeError) as error:
        yield f"  its configuration is not what the agent takes: {error}"
        return
    if measured:
        yield f"  metrics of GPUs: {', '.join(measured)}"
    for log in logs:
        yield f"  log {log.path} → {log.group} / {log.stream}"
    yield from _ways(observation)


def _ways(observation: Observation) -> Iterator[str]:
    for one in shippers(observation):
        sends = "metrics of GPUs" if one["metrics"] else "logs"
        to = f" → {', '.join(one['groups'])}" if one["groups"] else ""
        state = f": {one['off']}" if one["off"] else ""
        yield f"  {one['name']}{' (' + ', '.join(one['config']) + ')' if one['config'] else ''}: {sends}{to}{state}"
    for way in capture_of(observation):
        yield f"  Xids: {way.text}"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield f"{counted(len(findings), 'finding')}"
    for one in findings:
        yield f"  {_MARK[one.level]:8} {one.text}"
        yield f"           [{one.source}]" + (f" → {one.advice}" if one.advice else "")


def _differences(differences: Sequence[str]) -> Iterator[str]:
    if differences:
        yield ""
        yield counted(len(differences), "difference") + " from what was promised"
        yield from (f"  {line}" for line in differences)


def _written(files: Sequence[str]) -> Iterator[str]:
    if files:
        yield ""
        yield f"written: {', '.join(files)}"
