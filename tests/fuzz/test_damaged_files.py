"""Files that are damaged, cut or of another shape end a command with a message: no traceback, and not late.

Each example starts from a good file and changes values, names or bytes. `GPU_AMI_FUZZ_EXAMPLES=5000 pytest tests/fuzz`
tries more of each kind than CI does.
"""

from __future__ import annotations

import base64
import bz2
import contextlib
import copy
import gzip
import io
import json
import lzma
import os
import random
import resource
import shutil
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from gpu_ami import cli, pipeline
from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.plan.document import digest_of
from gpu_ami.release import statement as statements
from gpu_ami.report import writer
from tests.observe import foreign_images
from tests.release import examples

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
EXAMPLES = int(os.environ.get("GPU_AMI_FUZZ_EXAMPLES", "25"))
SECONDS, MEMORY_KIB = 60.0, 256 * 1024
ODD: list[Any] = [
    None, "", 0, -1, 1.5, True, [], {}, "x" * 300, ["a", 1], {"a": 1}, "\0", "../../etc/passwd", "é\ufffd", 10**30,
    [[]], {"": None}, "1:2", "{{user `x`}}", "{{env `X`}}", "${var.x}", float("nan"), float("inf"), "2026-13-45",
    "-", "*",
]  # fmt: skip
LOG = [
    "<6>Nov 25 10:00:00 ip kernel: [  11.66] NVRM: Xid (PCI:0000:00:1e): 79, pid=1, GPU has fallen off the bus.",
    "[12.3] NVRM: Xid (PCI:0000:09:00.0): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
    "2026-11-25T10:00:00.1+00:00 h kernel: nvidia-nvswitch0: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 03 LTSSM",
    "NVRM: Xid (PCI:0000:18:00): 145, RLW_SRC_TRACK NONFATAL XC1 i0 Link 00 (0x1 0x2 0x3 0x4 0x5 0x6)",
    "NVRM: GPU 0000:09:00.0: RmInitAdapter failed! (0x22:0x56:894)",
    '{"log":"NVRM: Xid (PCI:0000:00:1e): 31, pid=1","stream":"stdout"}',
]  # fmt: skip
PLACE = {
    "region": "us-east-1", "subnet_id": "subnet-1", "instance_profile": "p", "security_group_ids": ["sg-1"],
    "endpoint": "http://127.0.0.1:9", "tags": {"a": "b"}, "zones": ["us-east-1a"], "budget_usd": 5,
}  # fmt: skip
AGENT = {
    "agent": {"metrics_collection_interval": 60},
    "metrics": {
        "namespace": "x", "append_dimensions": {"InstanceId": "${aws:InstanceId}"},
        "aggregation_dimensions": [["InstanceId"]],
        "metrics_collected": {
            "nvidia_gpu": {"measurement": ["utilization_gpu", {"name": "memory_used", "unit": "y"}]},
            "cpu": {"resources": ["*"], "measurement": ["usage_idle"], "totalcpu": True},
        },
    },
    "logs": {"logs_collected": {"files": {"collect_list": [{"file_path": "/var/log/a", "log_group_name": "g"}]}}},
}  # fmt: skip
TEMPLATE = {
    "variables": {"x": "1", "region": "{{env `R`}}", "v": None},
    "builders": [
        {
            "type": "amazon-ebs", "region": "{{user `region`}}", "instance_type": "g5.xlarge",
            "ami_name": "a-{{timestamp}}",
            "source_ami_filter": {"filters": {"name": "ubuntu/*"}, "owners": ["1"], "most_recent": True},
            "launch_block_device_mappings": [{"device_name": "/dev/sda1", "volume_size": 50}], "tags": {"a": "b"},
        }
    ],
    "provisioners": [
        {"type": "shell", "inline": ["apt-get install nvidia-driver-550"]},
        {"type": "shell", "environment_vars": ["A=b"], "script": "x.sh"},
    ],
}  # fmt: skip


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a document has a value: the keys to it."""
    if at:
        yield at
    rows: Any = (
        document.items() if isinstance(document, dict) else enumerate(document if isinstance(document, list) else ())
    )
    for key, value in rows:
        yield from places(value, (*at, key))


def altered(document: Any, source: random.Random) -> Any:
    """One to three values gone, replaced by odd ones, renamed or repeated."""
    result = copy.deepcopy(document)
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        found = list(places(result))
        if not found:
            return copy.deepcopy(source.choice(ODD))
        *path, key = source.choice(found)
        parent = result
        for step in path:
            parent = parent[step]
        match source.randrange(4), parent:
            case 0, _:
                del parent[key]
            case 1, dict():
                parent[source.choice(("x", "id", f"{key}_"))] = parent.pop(key)
            case 1, list():
                parent.append(copy.deepcopy(parent[key]))
            case _:
                parent[key] = copy.deepcopy(source.choice(ODD))  # a later change may be made in it
    return result


def damaged(data: bytes, source: random.Random) -> bytes:
    """Bytes gone, replaced, inserted, repeated, or the end cut off."""
    content = bytearray(data)
    for _ in range(source.randint(1, 6)):
        at = source.randrange(len(content) + 1)
        match source.randrange(5):
            case 0:
                del content[at : at + source.randint(1, 40)]
            case 1:
                content[at : at + 1] = bytes([source.randrange(256)])
            case 2:
                content[at:at] = bytes(source.randrange(256) for _ in range(source.randint(1, 5)))
            case 3:
                content[at:at] = content[max(0, at - 200) : at]
            case _:
                del content[at:]
    return bytes(content)


def text_of(document: Any, source: random.Random, write: Callable[[Any], str] = json.dumps) -> bytes:
    data = write(altered(document, source)).encode("utf-8", "replace")
    return damaged(data, source) if source.random() < 0.15 else data


def recipe(folder: Path, source: random.Random) -> list[str]:
    document = yaml.safe_load(source.choice(sorted((ROOT / "variables/recipes").glob("*.yml"))).read_text())
    (folder / "a.yml").write_bytes(text_of(document, source, yaml.safe_dump))
    return ["plan", str(folder / "a.yml"), "-o", str(folder / "out")]


# Tables of facts that the recipe of `facts` needs, of sizes that are read in a moment.
TABLES = ("nccl", "cuda", "cudnn", "nvidia_drivers", "operating_systems", "telemetry", "tuning", "prices", "deadlines")


def facts(folder: Path, source: random.Random) -> list[str]:
    """A table of a site, which is one of ours with changes: its rows replace ours."""
    name = source.choice(TABLES)
    document = yaml.safe_load((ROOT / "variables/facts" / f"{name}.yml").read_text())
    (folder / "site/facts").mkdir(parents=True)
    (folder / "site/facts" / f"{name}.yml").write_bytes(text_of(document, source, yaml.safe_dump))
    shutil.copy(ROOT / "variables/recipes/debian12-gpu.yml", folder / "a.yml")
    return ["plan", str(folder / "a.yml"), "-o", str(folder / "out")]


def place(folder: Path, source: random.Random) -> list[str]:
    (folder / "aws.yml").write_bytes(text_of(PLACE, source, yaml.safe_dump))
    plain = str(ROOT / "variables/recipes/al2023-inf1.yml")
    return ["plan", plain, "-o", str(folder / "out"), "--where", str(folder / "aws.yml")]


def agent_document(folder: Path, source: random.Random) -> list[str]:
    (folder / "agent.json").write_bytes(text_of(AGENT, source))
    return ["lint-agent", str(folder / "agent.json")]


def json_template(folder: Path, source: random.Random) -> list[str]:
    (folder / "t.json").write_bytes(text_of(TEMPLATE, source))
    return ["import", str(folder / "t.json"), "-o", "-"]


def hcl_template(folder: Path, source: random.Random) -> list[str]:
    (folder / "t.pkr.hcl").write_bytes(
        damaged(source.choice(sorted((ROOT / "packer").glob("*.pkr.hcl"))).read_bytes(), source)
    )
    return ["import", str(folder / "t.pkr.hcl"), "-o", "-"]


def log(folder: Path, source: random.Random) -> list[str]:
    (folder / "kern.log").write_bytes(damaged(lines(source), source))
    return ["events", str(folder / "kern.log"), *["--json"] * source.randrange(2)]


def lines(source: random.Random) -> bytes:
    return "\n".join(source.choice(LOG) for _ in range(source.randint(1, 30))).encode()


def archive(folder: Path, source: random.Random) -> list[str]:
    content, buffer = lines(source), io.BytesIO()
    kind = source.choice((".gz", ".xz", ".bz2", ".tar", ".tar.gz", ".zip"))
    if kind in (".gz", ".xz", ".bz2"):
        buffer.write({".gz": gzip, ".xz": lzma, ".bz2": bz2}[kind].compress(content))  # type: ignore[attr-defined]
    elif kind == ".zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as members:
            members.writestr("var/log/kern.log", content)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz" if kind == ".tar.gz" else "w") as members:
            member = tarfile.TarInfo("var/log/kern.log")
            member.size = len(content)
            members.addfile(member, io.BytesIO(content))
    (folder / f"kern.log{kind}").write_bytes(damaged(buffer.getvalue(), source))
    return ["events", str(folder / f"kern.log{kind}")]


@cache
def planned() -> dict[str, Any]:
    return json.loads(
        json.dumps(make_plan(ROOT / "variables/recipes/debian12-gpu.yml", Place("aws", "us-east-1")).document)
    )  # type: ignore[no-any-return]


def plan(folder: Path, source: random.Random) -> list[str]:
    """A plan whose digest was renewed after its values were changed."""
    document = altered(planned(), source)
    if isinstance(document, dict):
        document["digest"] = digest_of(document)
    (folder / "plan.json").write_text(json.dumps(document))
    shutil.copy(certified() / "build.json", folder / "build.json")
    commands = (
        ["telemetry", str(folder), "-o", str(folder / "made")],
        ["launch-template", str(folder)],
        ["diff", str(folder), str(folder / "plan.json")],
        ["diff", "--notes", str(folder), str(certified())],
        ["validate", str(folder), "--root", str(folder / "none")],
        ["build", "-o", str(folder), "--layers"],
        ["certify", str(folder)],
    )
    return source.choice(commands)


def statement(folder: Path, source: random.Random) -> list[str]:
    """A statement of another content that a trusted key signed."""
    shutil.copytree(certified(), folder / "proof")
    payload = altered(examples.payload(certified()), source)
    text = json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()
    statements.sign(
        damaged(text, source) if source.random() < 0.1 else text, [examples.signer(certified())], folder / "proof"
    )
    words = ["verify", str(folder / "proof"), "--key", str(certified() / "release.key.pub")]
    return [
        *words,
        *source.choice((["--offline"], ["--offline", "--level", "rehearsed"], ["--offline", "--path", "/etc"])),
    ]


TRUST = {"keys": [{"name": "a", "file": "release.key.pub", "expires": "2030-01-01"}, {"name": "b", "file": "b.pub"}]}
POLICY = {
    "regions": [{"region": "us-east-1"}, {"region": "eu-central-1", "kms_key": "alias/x"}],
    "share": {"accounts": ["111122223333"], "organizations": [], "public": False}, "ssm": {"prefix": "/images/a"},
    "deprecate_after": 90, "keep": 3, "retire_after": 30, "images": {"demo": {"ssm": {"prefix": "/images/b"}}},
}  # fmt: skip


def trust(folder: Path, source: random.Random) -> list[str]:
    for name in ("release.key.pub", "b.pub"):
        key = (certified() / "release.key.pub").read_bytes()
        (folder / name).write_bytes(damaged(key, source) if source.random() < 0.2 else key)
    (folder / "trust.yml").write_bytes(text_of(TRUST, source, yaml.safe_dump))
    return ["verify", str(certified()), "--trust", str(folder / "trust.yml"), "--offline"]


def policy(folder: Path, source: random.Random) -> list[str]:
    (folder / "publish.yml").write_bytes(text_of(POLICY, source, yaml.safe_dump))
    (folder / "aws.yml").write_bytes(text_of(PLACE, source, yaml.safe_dump))
    words = ["publish", str(certified()), "--policy", str(folder / "publish.yml"), "--where", str(folder / "aws.yml")]
    return [*words, "-n", "--key", str(folder / "none.pub")]  # ends there: AWS is not asked


@cache
def observed() -> dict[str, Any]:
    """What is read of a team's image: driver, libraries, the agent's configuration, a script that reads dmesg."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-ami-fuzz-"))
    root = foreign_images.snapshot_script(folder / "tree")
    with contextlib.redirect_stdout(io.StringIO()):
        assert cli.main(["observe", "--root", str(root), "-o", str(folder / "out"), "-q"]) == 0
    document: dict[str, Any] = json.loads((folder / "out/observation.json").read_text())
    shutil.rmtree(folder)
    return document


def observation(folder: Path, source: random.Random) -> list[str]:
    file = folder / "observation.json"
    file.write_bytes(text_of(observed(), source))
    return source.choice((["observe", "--read", str(file), "-o", str(folder / "out")], ["diff", str(file), str(file)]))


@cache
def certified() -> Path:
    """A folder of a proof, certified and signed; its key is release.key.pub."""
    folder = Path(tempfile.mkdtemp(prefix="gpu-ami-fuzz-"))
    report = examples.write_folder(folder)
    with contextlib.redirect_stdout(io.StringIO()):
        writer.write(report, folder)
        pipeline.certify_stage(report, folder, [examples.signer(folder)])
    return folder


def of_a_proof(name: str, *commands: tuple[str, ...]) -> Callable[[Path, random.Random], list[str]]:
    """A command on a folder in which the JSON file `name` is damaged."""

    def make(folder: Path, source: random.Random) -> list[str]:
        shutil.copytree(certified(), folder / "proof")
        file = folder / "proof" / name
        file.write_bytes(text_of(json.loads(file.read_text()), source))
        return [word.replace("PROOF", str(folder / "proof")) for word in source.choice(commands)]

    return make


KEY = ("--key", "PROOF/release.key.pub")
KINDS: dict[str, Callable[[Path, random.Random], list[str]]] = {
    "recipe": recipe,
    "place": place,
    "facts": facts,
    "agent": agent_document,
    "JSON template": json_template,
    "HCL template": hcl_template,
    "log": log,
    "archive": archive,
    "report": of_a_proof("report.json", ("merge", "PROOF", "-o", "PROOF/merged"), ("verify", "PROOF", *KEY)),
    "build": of_a_proof("build.json", ("verify", "PROOF", *KEY)),
    "envelope": of_a_proof("certificate.dsse.json", ("verify", "PROOF", *KEY)),
    "certificate": of_a_proof("certificate.json", ("verify", "PROOF", *KEY)),
    "certified build": of_a_proof("build.json", ("diff", "PROOF", "PROOF"), ("launch-template", "PROOF")),
    "shown report": of_a_proof("report.json", ("diff", "PROOF", "PROOF"), ("diff", "--notes", "PROOF", "PROOF")),
    "materials": of_a_proof(
        "evidence/image-files/materials.json", ("certify", "PROOF"), ("verify", "PROOF", *KEY, "--offline")
    ),
    "plan": plan,
    "statement": statement,
    "trust file": trust,
    "release policy": policy,
    "observation": observation,
}


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """No file makes this process larger than that, all kinds together."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEMORY_KIB


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=True,
    phases=[Phase.generate],  # a plan takes seconds: the file as it was found is small enough
)
@given(st.randoms(use_true_random=False))
def test_a_damaged_file_ends_with_a_message(kind: str, source: random.Random) -> None:
    with tempfile.TemporaryDirectory() as folder:
        words = KINDS[kind](Path(folder), source)
        shown, started = io.StringIO(), time.monotonic()
        with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
            code = cli.main(words)
        assert code in range(8), words
        assert "Traceback" not in shown.getvalue() and (code == 0 or shown.getvalue().strip())
        assert time.monotonic() - started < SECONDS, words


SIGNED = (
    "certificate.dsse.json", "certificate.json", "report.json", "certificate.md", "report.html", "summary.md",
    "junit.xml", "evidence/image-files/materials.json", "evidence/image-files/inventory.jsonl.gz",
)  # fmt: skip


def means_the_same(before: bytes, after: bytes) -> bool:
    """Whether two envelopes have one statement: JSON and base64 have several spellings of it."""
    one, other = json.loads(before), json.loads(after)
    return one["payloadType"] == other["payloadType"] and all(
        base64.b64decode(one[key]) == base64.b64decode(other[key]) for key in ("payload",)
    )


@settings(
    max_examples=3 * EXAMPLES,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
    derandomize=True,
    phases=[Phase.generate],
)
@given(st.randoms(use_true_random=False))
def test_what_was_changed_is_never_verified(source: random.Random) -> None:
    name = source.choice(SIGNED)
    with tempfile.TemporaryDirectory() as folder:
        proof = shutil.copytree(certified(), Path(folder) / "proof")
        before = (proof / name).read_bytes()
        is_json = name.endswith(".json") and source.random() < 0.7
        after = text_of(json.loads(before), source) if is_json else damaged(before, source)
        (proof / name).write_bytes(after)
        words = ["verify", str(proof), "--key", str(certified() / "release.key.pub"), "--offline"]
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            code = cli.main(words)
    assert code == 6 or after == before or (name == SIGNED[0] and means_the_same(before, after)), code
