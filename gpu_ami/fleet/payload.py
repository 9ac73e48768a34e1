"""What is installed on a machine, packed from the files of role event_parser: there is no second copy of them.

Templates of the role are rendered with the plan's variables, as Ansible does it.
"""

from __future__ import annotations

import base64
import hashlib
import io
import lzma
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.data import data_dir

if TYPE_CHECKING:
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
    parser = dict(_parser_files(role / "files"))
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


def _parser_files(folder: Path) -> Iterator[tuple[str, tuple[bytes, int]]]:
    import validator

    patterns = ("*.py", "README.md", "hwevents/*.py", "hwevents/data/*")  # as in the role's vars
    for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
        mode = 0o755 if path.name == "aws-hwaccel-event-parser.py" else 0o644
        yield f"{HOME}/{path.relative_to(folder)}", (path.read_bytes(), mode)
    programs = Path(validator.__file__).parent / "remote"
    for source, name in _PROGRAMS.items():
        yield f"{HOME}/{name}", ((programs / source).read_bytes(), 0o755 if name == "gpu-ami-diagnose" else 0o644)


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
