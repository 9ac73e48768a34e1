"""`gpu-ami image-builder`: a test component for EC2 Image Builder, which says what is in the image that it built."""

from __future__ import annotations

import argparse
import base64
import json
import lzma
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.progress import Progress

_EPILOG = """\
Writes a component document of AWS Task Orchestrator and Executor (AWSTOE) for the test phase of an image pipeline. On
the test instance one program reads what is in the image, with the system's Python 3.6 or newer; nothing is installed or
left. With --s3 the result is uploaded, and `gpu-ami observe --read` judges it where gpu-ami is.

examples:
  gpu-ami image-builder -o gpu-ami-test.yml --s3 s3://my-bucket/observations
  aws s3 cp gpu-ami-test.yml s3://my-bucket/gpu-ami-test.yml
  aws imagebuilder create-component --name gpu-ami-test --semantic-version 1.0.0 --platform Linux \\
      --uri s3://my-bucket/gpu-ami-test.yml
  gpu-ami observe --read observation.json --strict
"""
_FOLDER = "/tmp/gpu-ami-observation"
_LINE = 76

# A component has at most 64 KB, and 16,000 characters unless it is in S3 (quotas and CreateComponent of Image Builder).
_UNPACK = (
    "import base64,json,lzma,sys\n"
    "files=json.loads(lzma.decompress(base64.b64decode(sys.stdin.read())).decode())\n"
    'for name in files: open(name,"w").write(files[name])'
)


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("image-builder", help="write a test component for EC2 Image Builder", epilog=_EPILOG)
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="file for the component (default: printed)")
    parser.add_argument("--s3", default="", metavar="URL", help="upload the observation to s3://BUCKET/PREFIX")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.files import write_text

    if args.s3 and not args.s3.startswith("s3://"):
        raise UsageError(f"--s3 {args.s3}: expected s3://BUCKET/PREFIX")
    text = component(args.s3.rstrip("/"))
    if args.out is None:
        return Outcome(text, {"component": text})
    write_text(args.out, text)
    return Outcome(f"written: {args.out}", {"component": str(args.out)})


def component(s3: str) -> str:
    """The document (schema 1.0 of AWSTOE): a test phase that collects and, with an S3 URL, uploads."""
    import yaml

    steps: list[dict[str, object]] = [
        {"name": "Observe", "action": "ExecuteBash", "timeoutSeconds": 600, "inputs": {"commands": [script()]}}
    ]
    if s3:
        upload = {"source": f"{_FOLDER}/observation.json", "destination": f"{s3}/observation.json"}
        steps.append({"name": "Upload", "action": "S3Upload", "inputs": [upload]})
    remove = {"name": "Remove", "action": "ExecuteBash", "inputs": {"commands": [f"rm -rf {_FOLDER}"]}}
    document = {
        "name": "gpu-ami-observe",
        "description": "Reads what is in a GPU image: components by all their sources, agent, capture of Xids",
        "schemaVersion": 1.0,
        "phases": [{"name": "test", "steps": [*steps, remove]}],
    }
    return yaml.safe_dump(document, sort_keys=False, width=200)


def script() -> str:
    """Bash that waits for the end of the boot, runs the reading program, and leaves observation.json in its folder."""
    from gpu_ami.observe import request
    from validator import remote

    files = {"observation.py": remote.program("observation"), "request.json": json.dumps(request())}
    packed = base64.b64encode(lzma.compress(json.dumps(files).encode(), preset=9 | lzma.PRESET_EXTREME)).decode()
    lines = [packed[start : start + _LINE] for start in range(0, len(packed), _LINE)]
    return "\n".join(
        [
            "set -eu",
            "if command -v cloud-init >/dev/null; then cloud-init status --wait >/dev/null 2>&1 || true; fi",
            f"umask 077; mkdir -p {_FOLDER}; cd {_FOLDER}",
            f"python3 -IS -c '{_UNPACK}' <<'END'",
            *lines,
            "END",
            "python3 -IS observation.py --running <request.json >observation.json",
            "rm -f observation.py request.json",
            "wc -c observation.json",
        ]
    )
