"""`gpu-ami publish`: only what `gpu-ami verify` accepts, at the level that is asked for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import cli, pipeline
from gpu_ami.cloud.place import ApiAccess, Credentials, MachineTraits
from gpu_ami.region import provider
from gpu_ami.report import writer
from tests.json_documents import valid
from tests.publish.conftest import HOME, Account
from tests.publish.conftest import account as account
from tests.release import examples


def rehearsed(account: Account) -> Path:
    """A folder whose certificate says `rehearsed`."""
    out = account.build()
    report = replace(examples.certified_report(simulated=True), image="ami-00000000000000001")
    for path in (out / "evidence").rglob("inventory.jsonl.gz"):
        path.unlink()
    writer.write(report, out)
    pipeline.certify_stage(report, out, [examples.signer(Path())])
    return out


def test_a_rehearsal_is_refused_by_its_name(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    out = rehearsed(account)
    assert account.publish(out, "--json") == 6
    data = json.loads(capsys.readouterr().out)
    valid(data, "publish")
    assert [point["name"] for point in data["points"] if point["state"] == "refused"] == ["level"]
    assert account.publish(out) == 6
    assert "level: rehearsed, certified was asked for" in (printed := capsys.readouterr().out)
    assert printed.endswith("not published\n")
    assert account.parameters(HOME) == {} and not (out / "publication.json").exists()
    assert account.publish(out, "--level", "rehearsed") == 2
    assert "--level rehearsed: aws is no simulated place" in capsys.readouterr().err


def test_a_rehearsal_is_published_in_the_local_region(
    account: Account, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    api = ApiAccess(endpoint=account.endpoint, credentials=Credentials("local", "local"))
    place = account.place(name="local", api=api, machines=MachineTraits(simulated=True))
    monkeypatch.setattr(provider(), "running", lambda: place)
    out = rehearsed(account)
    words = ["publish", str(out), "--key", "release.key.pub", "-q"]
    assert cli.main(words) == 6
    assert cli.main([*words, "--level", "rehearsed"]) == 0
    assert account.record(out)["image"]["level"] == "rehearsed" and len(account.parameters(HOME)) == 2


def test_a_changed_file_and_a_missing_region_are_refused(
    account: Account, capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    out = account.build()
    assert cli.main(["publish", str(out), "--key", "release.key.pub"]) == 2
    assert "the AMI's place is not known, and the local region is down" in capsys.readouterr().err
    examples.flip(out / "report.json")
    assert account.publish(out) == 6
    assert "changed-report" in capsys.readouterr().out


def test_no_key_and_no_policy_are_mistakes_of_the_command(account: Account, capsys: pytest.CaptureFixture[str]) -> None:
    out = account.build()
    assert cli.main(["publish", str(out), "--where", "aws.yml"]) == 2
    assert "no trusted key given" in capsys.readouterr().err
    assert account.publish(out, "--policy", "none.yml") == 2
    assert "none.yml: No such file" in capsys.readouterr().err
