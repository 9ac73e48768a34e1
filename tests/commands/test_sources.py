"""`gpu-ami sources`: recipes and plans at the vendors' addresses, at a mirror, at the local region's mirror."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli
from gpu_ami.plan.document import with_digest
from gpu_ami.progress import Progress
from localregion.loopback import MIRROR_ADDRESS
from localregion.mirror import mirror
from localregion.mirror import table as replica_table
from tests.localregion.mirror.replica_samples import PLAN, TABLE, write_table
from tests.sources import conftest as samples
from tests.sources.conftest import Signer, Web, put_apt

signers, vendor, web = samples.signers, samples.vendor, samples.web


def call(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, Any]:
    code = cli.main(["sources", *words, "--json", "-q"])
    data = json.loads(capsys.readouterr().out)
    return code, data


SKETCH = {
    "schema": "gpu-ami/plan/1", "image": "test", "roles": [], "instance_types": [], "source_ami": {"id": "ami-1"},
}  # fmt: skip


SYSTEM = {
    "id": "debian", "version": "12", "codename": "bookworm", "family": "debian", "ssh_user": "admin",
    "python": "/usr/bin/python3", "end_of_life": "2028-06-30",
}  # fmt: skip


def write_plan(folder: Path, document: Any) -> Path:
    folder.mkdir(exist_ok=True)
    whole = SKETCH | document
    whole["os"] = SYSTEM | whole.get("os", {})
    (folder / "plan.json").write_text(json.dumps(with_digest(whole)))
    return folder


def vendors_plan(folder: Path, signer: Signer, version: str = "1.0-1") -> Path:
    repository = {
        "url": "https://vendor.example/flat/", "suite": "./", "key_url": "https://vendor.example/key.pub",
        "key_fingerprint": signer.fingerprint,
    }  # fmt: skip
    tool = {"version": "1", "package": "tool", "package_version": version, "repository": repository}
    return write_plan(folder, {"os": {"family": "debian"}, "architecture": "x86_64", "roles": ["tool"], "tool": tool})


def test_plan_at_a_mirror_with_the_vendors_signatures(
    web: Web, vendor: Signer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_apt(web, vendor, path="/vendor.example/flat/")
    web.put("/vendor.example/key.pub", vendor.public)
    out = vendors_plan(tmp_path / "out", vendor)
    code, data = call(capsys, str(out), "--mirror", f"{web.url}/")
    assert code == 0
    (survey,) = data
    assert survey["findings"][0]["state"] == "there" and survey["exit_code"] == 0
    assert survey["indexes"][0]["digest"].startswith("sha256:")
    # a second run asks for what may have changed, and transfers no index whose digest it knows
    before = len(web.requests)
    assert call(capsys, str(out / "plan.json"), "--mirror", web.url)[0] == 0
    assert [path for _, path, _ in web.requests[before:]] == [
        "/vendor.example/key.pub",
        "/vendor.example/flat/InRelease",
    ]


def test_exit_codes(web: Web, vendor: Signer, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put_apt(web, vendor, path="/vendor.example/flat/")
    web.put("/vendor.example/key.pub", vendor.public)
    good = str(vendors_plan(tmp_path / "good", vendor))
    bad = str(vendors_plan(tmp_path / "bad", vendor, "9.9-1"))
    assert call(capsys, good, bad, "--mirror", web.url)[0] == 2
    assert cli.main(["sources", bad, "--mirror", web.url, "-q"]) == 2
    assert "nearest: tool 2.0-1" in capsys.readouterr().out
    web.put("/vendor.example/flat/InRelease", b"", status=503)
    code, data = call(capsys, good, "--mirror", web.url, "--no-cache")
    assert code == 4
    assert data[0]["findings"][0]["details"] == ["https://vendor.example/flat/InRelease: HTTP 503"]


def test_recipe_is_asked_at_the_vendors_addresses(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu_ami.sources import http
    from gpu_ami.sources.http import Unreachable

    asked: list[str] = []

    def ask(_self: object, method: str, url: str, *_: object) -> None:
        asked.append(url)
        raise Unreachable(f"{url}: not in a test")

    monkeypatch.setattr(http.Client, "ask", ask)
    code, data = call(capsys, "debian12-gpu")
    assert code == 4 and data[0]["image"] == "debian12-gpu"
    assert all(url.startswith("https://") for url in asked) and len({url.split("/")[2] for url in asked}) >= 4
    states = {one["state"] for one in data[0]["findings"]}
    assert states <= {"unreachable", "unknown", "unasked"}


# As PLAN, with the build of libtool that the planned tool needs.
REGIONS_PLAN = PLAN | {"tool": PLAN["tool"] | {"packages": {"libtool": PLAN["tool"]["package_version"]}}}


def test_recipe_is_asked_at_the_mirror_of_its_place(
    web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its index is signed with the mirror's key; the source AMI is looked up in the place."""
    from gpu_ami import plan as plans

    where = tmp_path / "aws.yml"
    where.write_text(f"region: eu-central-1\nmirror: {{url: '{web.url}', key_fingerprint: '{'A' * 40}'}}\n")
    ami = {"id": "ami-1", "name": "debian", "created": "2026-11-01", "through": "ssm:/x", "root_device": "/dev/xvda"}
    monkeypatch.setattr(plans, "resolve_source_ami", lambda cloud, document: ami)
    code, data = call(capsys, "debian12-gpu", "--where", str(where))
    assert code == 2  # an empty mirror
    paths = {path.split("/")[1] for _, path, _ in web.requests}
    assert len(paths) >= 4 and all("." in host for host in paths)
    source_ami = next(one for one in data[0]["findings"] if one["component"] == "source_ami")
    assert (source_ami["state"], source_ami["planned"]) == ("there", "ami-1")


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A home with a small mirror, and a plan for it."""
    folder = tmp_path_factory.mktemp("region")
    table = write_table(folder / "table", TABLE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replica_table, "REPLICAS", table)
        tree = mirror.ensure(folder / "home", plan=REGIONS_PLAN, progress=Progress("quiet"))
    return folder, table, tree


def at_mirror(value: Any, tree: mirror.MirrorTree) -> Any:
    if isinstance(value, dict):
        placed = {key: at_mirror(item, tree) for key, item in value.items()}
        placed |= {"key_fingerprint": tree.key_fingerprint} if "key_fingerprint" in placed else {}
        return placed | {"commit": next(iter(tree.commits.values()))} if "commit" in placed else placed
    return value.replace("https://", f"http://{MIRROR_ADDRESS}/") if isinstance(value, str) else value


def test_same_code_asks_the_local_regions_mirror(
    region: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every form that the mirror has: a flat repository, packages, an installer, a git repository, keys."""
    folder, table, tree = region
    monkeypatch.setattr(replica_table, "REPLICAS", table)
    monkeypatch.setenv("GPU_AMI_HOME", str(folder / "home"))
    out = write_plan(tmp_path / "out", at_mirror(REGIONS_PLAN, tree))
    code, data = call(capsys, str(out))
    found = {one["item"]: one["state"] for one in data[0]["findings"] if one["state"] != "unasked"}
    items = ("tool-1", "libtool", "agent.deb", "installer-0.9.tar.gz", "source.git")
    assert (code, found) == (0, dict.fromkeys(items, "there")), [one["details"] for one in data[0]["findings"]]
    assert {one["signature"] for one in data[0]["findings"] if one["key_days"]} == {tree.key_fingerprint}


def test_package_that_the_mirror_lacks_is_missing(
    region: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, table, tree = region
    monkeypatch.setattr(replica_table, "REPLICAS", table)
    monkeypatch.setenv("GPU_AMI_HOME", str(folder / "home"))
    monkeypatch.setattr(mirror, "ensure", lambda *_, **__: tree)
    document = at_mirror(REGIONS_PLAN, tree)
    document["tool"]["packages"] = {"libtool": "9.9-1"}
    code, data = call(capsys, str(write_plan(tmp_path / "out", document)))
    missing = next(one for one in data[0]["findings"] if one["item"] == "libtool")
    assert code == 2 and missing["state"] == "missing" and missing["near"] == ["libtool 1.2.3-1+x2"]
