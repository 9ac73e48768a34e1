"""What is packed is what the role installs: the role's own files and templates."""

from __future__ import annotations

import base64
import hashlib
import io
import lzma
import tarfile
from pathlib import Path
from typing import Any

from gpu_ami.files import data_dir
from gpu_ami.fleet import payload
from validator import remote

PARSER = {"raw_log": "/data/raw.log", "json_log": "/var/log/gpuevent.jsonl", "log_buf_len": "4M"}
PLAN: Any = {"event_parser": PARSER}


def test_every_file_of_the_role_is_there() -> None:
    found = payload.files(PLAN)
    folder = remote.PROGRAMS / "event_parser"
    for path in [*folder.glob("hwevents/*.py"), *folder.glob("hwevents/data/*"), *folder.glob("*.py")]:
        assert found[f"{payload.HOME}/{path.relative_to(folder)}"][0] == path.read_bytes()
    assert found["/usr/bin/gpu-ami-diagnose"] == (f"{payload.HOME}/gpu-ami-diagnose".encode(), 0)


def test_paths_follow_the_footprint_of_the_role() -> None:
    import yaml

    rows = yaml.safe_load(Path(data_dir("roles", "event_parser"), "meta", "footprint.yml").read_text())["files"]
    listed = [path for row in rows for path in (row["path"] if isinstance(row["path"], list) else [row["path"]])]
    known = payload.files(PLAN)
    from fnmatch import fnmatch

    assert [path for path in known if not any(fnmatch(path, pattern) for pattern in listed)] == []


def test_templates_are_the_role_s() -> None:
    found = payload.files(PLAN)
    unit = found["/etc/systemd/system/aws-hw-monitor.service.d/paths.conf"][0].decode()
    assert "--raw-log /data/raw.log --json-log /var/log/gpuevent.jsonl" in unit
    assert "ReadWritePaths=/data /var/log" in unit and "PrivateNetwork" not in unit
    seed = payload.files({"event_parser": {**PARSER, "seed_metrics_s": 10}})  # type: ignore[typeddict-item]
    assert b"--seed-metrics 10" in seed["/etc/systemd/system/aws-hw-monitor.service.d/paths.conf"][0]
    assert found["/etc/logrotate.d/gpu-ami-events"][0].count(b"\n/data/raw.log /var/log/gpuevent.jsonl {\n") == 1


def test_checksums_are_those_of_the_files() -> None:
    found = payload.files(PLAN)
    for line in found[f"{payload.HOME}/SHA256SUMS"][0].decode().splitlines():
        digest, _, name = line.partition("  ")
        path = name if name.startswith("/") else f"{payload.HOME}/{name}"
        assert hashlib.sha256(found[path][0]).hexdigest() == digest


def test_parts_make_the_archive_again() -> None:
    packed = payload.pack(PLAN)
    assert len(packed.parts) > 1 and packed == payload.pack(PLAN)
    whole = base64.b64decode("".join(packed.parts))
    assert hashlib.sha256(whole).hexdigest() == packed.sha256
    with tarfile.open(fileobj=io.BytesIO(lzma.decompress(whole))) as archive:
        modes = {f"/{entry.name}": (entry.mode, entry.uid) for entry in archive}
    assert modes[f"{payload.HOME}/gpu-ami-diagnose"] == (0o755, 0) and set(modes) == set(payload.files(PLAN))
