"""The Command documents (schema 2.2) and parameters of a plan, by names that hold the image's.

<name>            the program on the machine, with the action as parameter: prepare, install, status, detach, clean
<name>-files-N    a part of the files each: all of them are too large for one document (64 KB)
<name>-future     all of it in one, for a State Manager association
Parameters: AmazonCloudWatch-<name>-base, and -gpu for machines with nvidia-smi. The managed policies of the agent let
it read parameters with this beginning alone.

What is installed on a machine, packed from the files of role event_parser: there is no second copy of them.

Templates of the role are rendered with the plan's variables, as Ansible does it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.files import data_dir
from validator import remote

if TYPE_CHECKING:
    from gpu_ami.plan import Plan
    from gpu_ami.recipes import PlanDocument

HOME = "/opt/aws/cloudwatch/nvidia"
_UNIT = "aws-hw-monitor.service"
_PROGRAMS = {  # as roles/event_parser/vars/main.yml
    "diagnose.py": "gpu-ami-diagnose",
    "compute_probe.py": "compute_probe.py",
    "support_bundle.py": "support_bundle.py",
    "bug_report.sh": "bug_report.sh",
}
_PART = 45_000  # characters of base64: a document has at most 64 KB


@dataclass(frozen=True)
class Payload:
    """The archive (tar, xz) in parts of base64, and its SHA-256."""

    parts: tuple[str, ...]
    sha256: str


def pack(plan: PlanDocument) -> Payload:
    """The archive of a plan: the same bytes for the same plan and roles."""
    packed = lzma.compress(_archive(files(plan)), preset=9 | lzma.PRESET_EXTREME)
    text = base64.b64encode(packed).decode()
    parts = tuple(text[start : start + _PART] for start in range(0, len(text), _PART))
    return Payload(parts, hashlib.sha256(packed).hexdigest())


def files(plan: PlanDocument) -> dict[str, tuple[bytes, int]]:
    """Path → content and mode of each file; a link has the mode 0 and its target as content."""
    role = data_dir("roles", "event_parser")
    parser = dict(_parser_files())
    unit = (role / "files" / _UNIT).read_bytes()
    drop_in = _drop_in(role, plan)
    units = {f"/etc/systemd/system/{_UNIT}": unit, f"/etc/systemd/system/{_UNIT}.d/paths.conf": drop_in}
    sums = {path.removeprefix(f"{HOME}/"): content for path, (content, _) in parser.items()} | units
    lines = "".join(f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sums.items())
    return {
        **parser,
        **{path: (content, 0o644) for path, content in units.items()},
        f"{HOME}/SHA256SUMS": (lines.encode(), 0o644),
        "/usr/bin/gpu-ami-diagnose": (f"{HOME}/gpu-ami-diagnose".encode(), 0),
        "/etc/gpu-ami/xid-policy.json": ((role / "files" / "xid-policy.json").read_bytes(), 0o644),
        "/etc/logrotate.d/gpu-ami-events": (_logrotate(role, plan), 0o644),
    }


def _parser_files() -> Iterator[tuple[str, tuple[bytes, int]]]:
    folder = remote.PROGRAMS / "event_parser"
    patterns = ("*.py", "README.md", "hwevents/*.py", "hwevents/data/*")  # as in the role's vars
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        mode = 0o755 if path.name == "aws-hwaccel-event-parser.py" else 0o644
        yield f"{HOME}/{path.relative_to(folder)}", (path.read_bytes(), mode)
    for source, name in _PROGRAMS.items():
        mode = 0o755 if name == "gpu-ami-diagnose" else 0o644
        yield f"{HOME}/{name}", ((remote.PROGRAMS / source).read_bytes(), mode)


def _drop_in(role: Path, plan: PlanDocument) -> bytes:
    """The unit's drop-in, by the role's own template."""
    import posixpath

    from jinja2 import Environment, StrictUndefined

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    environment.filters["dirname"] = posixpath.dirname
    template = environment.from_string((role / "templates" / "paths.conf.j2").read_text(encoding="utf-8"))
    return template.render(_variables(plan)).encode()


def _variables(plan: PlanDocument) -> dict[str, Any]:
    """The role's variables: its defaults, and the plan's section over them."""
    import yaml

    role = data_dir("roles", "event_parser")
    defaults: Mapping[str, Any] = yaml.safe_load((role / "defaults" / "main.yml").read_text(encoding="utf-8"))
    own = {f"event_parser_{key}": value for key, value in plan["event_parser"].items()}
    return {**defaults, **own, "ansible_managed": "Written by gpu-ami fleet attach", "__event_parser_home": HOME}


def _logrotate(role: Path, plan: PlanDocument) -> bytes:
    parser = plan["event_parser"]
    text = (role / "files" / "gpu-ami-events.logrotate").read_text(encoding="utf-8")
    return re.sub(r"(?m)^/.* {$", f"{parser['raw_log']} {parser['json_log']} {{", text).encode()


def _archive(content: Mapping[str, tuple[bytes, int]]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for path, (data, mode) in sorted(content.items()):
            entry = tarfile.TarInfo(path.lstrip("/"))
            entry.uname = entry.gname = "root"
            if mode:
                entry.size, entry.mode = len(data), mode
                archive.addfile(entry, io.BytesIO(data))
            else:
                entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, data.decode(), 0o777
                archive.addfile(entry)
    return packed.getvalue()


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
    names, packed = Names(plan.image), pack(plan.document)
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
            "configure", MANAGE_AGENT, action="configure (append)", optionalConfigurationSource="ssm",
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
