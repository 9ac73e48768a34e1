"""Command documents of schema 2.2: AWS's own that the region knows, and a document's steps with its parameters.

The content of AWS's documents is not copied: these do on a machine what theirs do, by the same parameters. Sources:
user guide, "Command document plugin reference" (aws:runShellScript, aws:configurePackage, aws:runDocument, onFailure is
exit); CloudWatch user guide, "Installing the CloudWatch agent using AWS Systems Manager", read 2026-11-23.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from localregion.backends import Refused

# User guide, "Creating SSM document content": 64 KB, with the parameters that are given at run time.
MAX_BYTES = 64 * 1024
RUN_SHELL, CONFIGURE_PACKAGE, RUN_DOCUMENT = "aws:runShellScript", "aws:configurePackage", "aws:runDocument"
_MAX_NESTED = 3  # user guide, "aws:runDocument": documents that run documents
_REFERENCE = re.compile(r"\{\{\s*([\w.:/-]+)\s*\}\}")
_CTL = "$GPU_AMI_ROOT/opt/aws/amazon-cloudwatch-agent/bin/amazon-cloudwatch-agent-ctl"
_MANAGE_AGENT = f"""\
ctl="{_CTL}"
[ -x "$ctl" ] || {{ echo 'the CloudWatch agent is not installed' >&2; exit 1; }}
restart=
[ '{{{{ optionalRestart }}}}' = no ] || restart=-s
case '{{{{ optionalConfigurationSource }}}}' in
  ssm) from='ssm:{{{{ optionalConfigurationLocation }}}}' ;;
  *) from='{{{{ optionalConfigurationSource }}}}' ;;
esac
case '{{{{ action }}}}' in
  configure) "$ctl" -a fetch-config -m '{{{{ mode }}}}' -c "$from" $restart ;;
  'configure (append)') "$ctl" -a append-config -m '{{{{ mode }}}}' -c "$from" $restart ;;
  'configure (remove)') "$ctl" -a remove-config -m '{{{{ mode }}}}' -c "$from" $restart ;;
  *) "$ctl" -a '{{{{ action }}}}' -m '{{{{ mode }}}}' ;;
esac
"""


def _text(default: str | None = None, allowed: Sequence[str] = ()) -> dict[str, Any]:
    row: dict[str, Any] = {"type": "String"}
    row |= {} if default is None else {"default": default}
    return row | ({"allowedValues": list(allowed)} if allowed else {})


def _document(parameters: Mapping[str, Any], action: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    step = {"action": action, "name": action.partition(":")[2], "inputs": dict(inputs)}
    return {"schemaVersion": "2.2", "parameters": dict(parameters), "mainSteps": [step]}


AWS_DOCUMENTS: Mapping[str, Mapping[str, Any]] = {
    "AWS-RunShellScript": _document(
        {"commands": {"type": "StringList"}, "executionTimeout": _text("3600")},
        RUN_SHELL,
        {"runCommand": "{{ commands }}", "timeoutSeconds": "{{ executionTimeout }}"},
    ),
    "AWS-ConfigureAWSPackage": _document(
        {
            "action": _text(None, ("Install", "Uninstall")),
            "installationType": _text("Uninstall and reinstall", ("Uninstall and reinstall", "In-place update")),
            "name": _text(),
            "version": _text(""),
            "additionalArguments": {"type": "StringMap", "default": {}},
        },
        CONFIGURE_PACKAGE,
        {"name": "{{ name }}", "action": "{{ action }}", "version": "{{ version }}"},
    ),
    "AmazonCloudWatch-ManageAgent": _document(
        {
            "action": _text(
                "configure",
                ("configure", "configure (append)", "configure (remove)", "start", "status", "stop"),
            ),
            "mode": _text("ec2", ("ec2", "onPremise", "auto")),
            "optionalConfigurationSource": _text("ssm", ("ssm", "default", "all")),
            "optionalConfigurationLocation": _text(""),
            "optionalRestart": _text("yes", ("yes", "no")),
        },
        RUN_SHELL,
        {"runCommand": _MANAGE_AGENT.splitlines()},
    ),
}
_KNOWN_ACTIONS = (RUN_SHELL, CONFIGURE_PACKAGE, RUN_DOCUMENT)


@dataclass(frozen=True)
class Step:
    """One plugin of a document, with its inputs as the machine gets them."""

    name: str
    action: str
    inputs: Mapping[str, Any]

    @property
    def timeout_seconds(self) -> float:
        return float(self.inputs.get("timeoutSeconds") or 3600)


def require_size(content: str) -> None:
    """Refused: CreateDocument and UpdateDocument take no more."""
    if len(content.encode()) > MAX_BYTES:
        raise Refused("MaxDocumentSizeExceeded", "The size limit of a document is 64 KB.")


def steps(
    document: Mapping[str, Any],
    parameters: Mapping[str, Sequence[str]],
    look_up: Callable[[str], Mapping[str, Any]],
    depth: int = 0,
) -> list[Step]:
    """The plugins of a document with the parameters' values in place. Refused: InvalidParameters, InvalidDocument."""
    values = _values(document.get("parameters") or {}, parameters)
    found: list[Step] = []
    for row in document["mainSteps"]:
        action, inputs = row["action"], _substituted(row.get("inputs", {}), values)
        if action not in _KNOWN_ACTIONS:
            raise Refused("InvalidDocument", f"the local region runs {', '.join(_KNOWN_ACTIONS)}, not {action}")
        if action == RUN_DOCUMENT:
            found += _nested(row["name"], inputs, look_up, depth)
        else:
            found.append(Step(row["name"], action, inputs))
    return found


def _nested(
    name: str, inputs: Mapping[str, Any], look_up: Callable[[str], Mapping[str, Any]], depth: int
) -> Iterator[Step]:
    if depth >= _MAX_NESTED:
        raise Refused("InvalidDocument", f"{name}: documents run each other more than {_MAX_NESTED} deep")
    given = inputs.get("documentParameters") or {}
    given = json.loads(given) if isinstance(given, str) else given
    listed = {key: value if isinstance(value, list) else [str(value)] for key, value in given.items()}
    inner = steps(look_up(str(inputs["documentPath"])), listed, look_up, depth + 1)
    for step in inner:
        yield Step(name if len(inner) == 1 else f"{name}-{step.name}", step.action, step.inputs)


def _values(declared: Mapping[str, Any], given: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Value of each declared parameter: text, or a list for StringList."""
    if unknown := sorted(set(given) - set(declared)):
        raise Refused("InvalidParameters", f"Parameters are not defined in the document: {', '.join(unknown)}")
    values: dict[str, Any] = {}
    for name, row in declared.items():
        if name not in given and "default" not in row:
            raise Refused("InvalidParameters", f"Parameter {name} is required")
        value: Any = given.get(name, row.get("default"))
        if row["type"] == "String":
            value = value[0] if isinstance(value, list) else value
            allowed = row.get("allowedValues")
            if allowed and value not in allowed:
                raise Refused("InvalidParameters", f"Parameter {name}: {value!r} is not one of {allowed}")
        values[name] = value
    return values


def _substituted(value: Any, values: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _substituted(each, values) for key, each in value.items()}
    if isinstance(value, list):
        return [_substituted(each, values) for each in value]
    if not isinstance(value, str):
        return value
    whole = _REFERENCE.fullmatch(value)
    if whole and whole[1] in values:
        return values[whole[1]]
    return _REFERENCE.sub(lambda match: _known(match[1], values), value)


def _known(name: str, values: Mapping[str, Any]) -> str:
    if name not in values:
        raise Refused("InvalidDocumentContent", f"Parameter {name} is not defined in the document")
    return str(values[name])
