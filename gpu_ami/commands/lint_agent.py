"""`gpu-ami lint-agent FILE…`: check CloudWatch agent configurations before an instance uses them."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome
from validator.inputs import parse_json, read_text

if TYPE_CHECKING:
    from collections.abc import Collection

    from gpu_ami.progress import Progress
    from validator.probes.agent import Finding

_EPILOG = """\
Reports what the agent's own check refuses (docs/lint-agent.md names its release; --schema: that of another release),
and what it accepts although the agent or the service does not: plugin and measurement names, placeholders, dimensions,
and what CloudWatch Logs rejects (characters and length of names, time zones, retention, duplicate streams).
Exit 0: no error (warnings are printed). Exit 1: an error; the agent or the service rejects it. Exit 2: a file could
not be read; the findings of the other files are still printed.

examples:
  gpu-ami lint-agent config.json
  gpu-ami lint-agent config.json --writes /var/log/gpuevent.log --writes /var/log/gpuevent.jsonl
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("lint-agent", help="check a CloudWatch agent configuration", epilog=_EPILOG)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="configuration of the agent, JSON")
    parser.add_argument(
        "--writes",
        action="append",
        metavar="PATH",
        help="log file that the image writes (repeatable); any other log file is an error",
    )
    text = "check also with a schema of the agent (translator/config/schema.json of its repository)"
    parser.add_argument("--schema", type=Path, metavar="FILE", help=text)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.errors import counted
    from validator.probes.agent import ERROR

    check = _own_schema(args.schema) if args.schema else None
    findings: list[tuple[Path, Finding]] = []
    exit_code = 0
    for path in args.files:
        readable, of_file = _lint(path, args.writes, check)
        findings += [(path, finding) for finding in of_file]
        failed = any(finding.severity == ERROR for finding in of_file)
        exit_code = max(exit_code, 1 if failed and readable else 0, 0 if readable else 2)
    lines = [f"{path}: {finding}" for path, finding in findings]
    lines = lines or [f"{counted(len(args.files), 'file')}: no findings"]
    data = [{"file": str(path)} | asdict(finding) for path, finding in findings]
    return Outcome("\n".join(lines), data, exit_code)


def _own_schema(path: Path) -> Any:
    """A validator of the agent's JSON schema. UsageError where the file or jsonschema cannot be used."""
    import importlib

    from gpu_ami.errors import UsageError

    try:
        jsonschema = importlib.import_module("jsonschema")
    except ImportError as error:
        raise UsageError("--schema needs the package jsonschema", hint="pip install 'gpu-ami[schema]'") from error
    try:
        schema = parse_json(read_text(path))
        kind = jsonschema.validators.validator_for(schema)
        kind.check_schema(schema)
    except (OSError, ValueError, jsonschema.SchemaError) as error:
        reason = str(getattr(error, "message", error))
        raise UsageError(
            f"{path}: no JSON schema: {reason}", hint="name translator/config/schema.json of the agent"
        ) from error
    return kind(schema)


def _lint(path: Path, writes: Collection[str] | None, check: Any) -> tuple[bool, list[Finding]]:
    """Whether the file could be read, and its findings."""
    from validator.probes.agent import ERROR, Finding, lint_text

    try:
        text = read_text(path)
    except UnicodeDecodeError as error:
        return False, [Finding(ERROR, "", f"expected UTF-8 text: {error}")]
    except OSError as error:
        return False, [Finding(ERROR, "", f"cannot be read: {error.strerror or error}")]
    findings = lint_text(text, files=writes)
    return True, [*findings, *_of_schema(text, check)] if check is not None else findings


def _of_schema(text: str, check: Any) -> list[Finding]:

    from validator.probes.agent import ERROR, Finding

    try:
        config = parse_json(text)
    except ValueError:
        return []  # lint_text has said so
    return [
        Finding(ERROR, ".".join(map(str, error.path)), f"{error.message[:300]} (--schema)")
        for error in check.iter_errors(config)
    ]
