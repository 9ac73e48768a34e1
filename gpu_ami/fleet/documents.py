"""The Command documents (schema 2.2) and parameters of a plan, by names that hold the image's.

<name>            the program on the machine, with the action as parameter: prepare, install, status, detach, clean
<name>-files-N    a part of the files each: all of them are too large for one document (64 KB)
<name>-future     all of it in one, for a State Manager association
Parameters: AmazonCloudWatch-<name>-base, and -gpu for machines with nvidia-smi. The managed policies of the agent let
it read parameters with this beginning alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_ami.fleet import payload
from validator import remote

if TYPE_CHECKING:
    from gpu_ami.plan import Plan

ACTIONS = ("prepare", "install", "status", "detach", "clean")
CONFIGURE_PACKAGE, MANAGE_AGENT = "AWS-ConfigureAWSPackage", "AmazonCloudWatch-ManageAgent"
PACKAGE = "AmazonCloudWatchAgent"
_STATE = "/var/lib/gpu-ami-fleet"
_ROOT = '"$GPU_AMI_ROOT"'  # empty on a machine; tests have a folder there
_CTL = f"{_ROOT}/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
_SECONDS = 600
Document = Mapping[str, Any]


@dataclass(frozen=True)
class Names:
    """What an attachment of an image makes is named after it."""

    image: str

    @property
    def document(self) -> str:
        return f"gpu-ami-telemetry-{self.image}"

    @property
    def future(self) -> str:
        return f"{self.document}-future"

    def files(self, number: int) -> str:
        return f"{self.document}-files-{number}"

    @property
    def base(self) -> str:
        return f"AmazonCloudWatch-{self.document}-base"

    @property
    def gpu(self) -> str:
        return f"AmazonCloudWatch-{self.document}-gpu"


@dataclass(frozen=True)
class Bundle:
    """All of a plan's documents and parameters, by name. parts: how many documents the files take."""

    names: Names
    digest: str
    documents: Mapping[str, Document]
    parameters: Mapping[str, str]
    parts: int

    @property
    def part_names(self) -> list[str]:
        return [self.names.files(number) for number in range(1, self.parts + 1)]


def bundle(plan: Plan) -> Bundle:
    """What attach makes for a plan."""
    names, packed = Names(plan.image), payload.pack(plan.document)
    own: dict[str, Any] = {
        "plan": plan.digest,
        "image": plan.image,
        "archive": packed.sha256,
        "parts": len(packed.parts),
    }
    own["logs"] = [plan.document["event_parser"][name] for name in ("raw_log", "json_log")]
    parts = {names.files(number): _part(number, text) for number, text in enumerate(packed.parts, start=1)}
    parameters = _parameters(plan, names)
    main = {names.document: _program(own), **parts}
    future = _future(names, list(parts), names.gpu in parameters)
    return Bundle(names, plan.digest, {**main, names.future: future}, parameters, len(packed.parts))


def _parameters(plan: Plan, names: Names) -> dict[str, str]:
    """The agent's configuration as the plan has it for images: for every machine, and for those with a GPU."""
    agent = plan.document["cloudwatch_agent"]
    found = {names.base: _compact(agent["config"])}
    return found | ({names.gpu: _compact(agent["gpu_config"])} if agent.get("gpu_config") else {})


def _compact(document: Mapping[str, Any]) -> str:
    return json.dumps(document, separators=(",", ":"))


def _document(description: str, steps: list[Document], parameters: Mapping[str, Any] | None = None) -> Document:
    rows: dict[str, Any] = {"schemaVersion": "2.2", "description": description}
    return rows | ({"parameters": dict(parameters)} if parameters else {}) | {"mainSteps": steps}


def _shell(name: str, *lines: str) -> Document:
    inputs = {"onFailure": "exit", "timeoutSeconds": str(_SECONDS), "runCommand": list(lines)}
    return {"action": "aws:runShellScript", "name": name, "inputs": inputs}


def _program(own: Mapping[str, Any]) -> Document:
    text = remote.python("telemetry_attachment", "ACTION", json.dumps(own)).replace(" ACTION ", " {{ action }} ", 1)
    action = {"action": {"type": "String", "default": "status", "allowedValues": list(ACTIONS)}}
    return _document("Telemetry of gpu-ami on this machine", [_shell("telemetry", *text.split("\n"))], action)


def _part(number: int, text: str) -> Document:
    lines = (
        f"umask 077 && mkdir -p {_ROOT}{_STATE}/parts &&",
        f"cat >{_ROOT}{_STATE}/parts/{number} <<'END_OF_PART'",
        *(text[start : start + 1000] for start in range(0, len(text), 1000)),
        "END_OF_PART",
    )
    return _document(f"Part {number} of the event parser's files", [_shell("files", *lines)])


def _future(names: Names, parts: list[str], has_gpu: bool) -> Document:
    """Everything in the order of attach, on a machine that nobody has looked at before."""
    steps = [
        _nested("prepare", names.document, action="prepare"),
        {
            "action": "aws:configurePackage",
            "name": "agent",
            "inputs": {"onFailure": "exit", "name": PACKAGE, "action": "Install"},
        },
        *(_nested(f"files{number}", part) for number, part in enumerate(parts, start=1)),
        _nested("install", names.document, action="install"),
        _nested(
            "configure", MANAGE_AGENT, action="configure", optionalConfigurationSource="ssm",
            optionalConfigurationLocation=names.base,
        ),
    ]  # fmt: skip
    # AmazonCloudWatch-ManageAgent has no condition: the agent does not start with it and without nvidia-smi
    if has_gpu:
        append = f"{_CTL} -a append-config -m ec2 -c ssm:{names.gpu} -s"
        steps.append(_shell("gpus", f"test ! -x {_ROOT}/usr/bin/nvidia-smi || {append}"))
    return _document("Telemetry of gpu-ami on machines to come", steps)


def _nested(name: str, document: str, **parameters: str) -> Document:
    inputs = {
        "onFailure": "exit", "documentType": "SSMDocument", "documentPath": document,
        "documentParameters": json.dumps(parameters),
    }  # fmt: skip
    return {"action": "aws:runDocument", "name": name, "inputs": inputs}
