"""An image of a container as an archive that containerd imports (`ctr images import`): one layer, few files."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path


def write_image(archive: Path, name: str, files: Mapping[str, Path], command: Sequence[str]) -> None:
    """An archive in the format of `docker save`. files: path in the image → file. The same content, the same bytes.

    Source: github.com/moby/docker-image-spec, v1.2 (Combined Image JSON + Filesystem Changeset Format).
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, file in sorted(files.items()):
            _add(tar, path, file.read_bytes(), 0o755)
    diff = hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(command)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as tar:
        for path, content in ((config_name, config), ("layer.tar", layer.getvalue()), ("manifest.json", manifest)):
            _add(tar, path, content, 0o644)


def _add(tar: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))
