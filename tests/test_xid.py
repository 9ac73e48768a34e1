"""`gpu-ami xid`: a code's name, cause, severity, action, its meaning on EC2, and the source of each."""

from __future__ import annotations

import json

import pytest

from gpu_ami import xid
from gpu_ami.cli import main
from gpu_ami.errors import UsageError


def test_63_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xid", "63"]) == 0
    out = capsys.readouterr().out
    for words in ("Xid 63: GPU memory remapping event", "hardware, driver, GPU memory", "warning", "IGNORE", "on EC2",
                  "NVIDIA Xid-Catalog.xlsx", "next GPU reset"):  # fmt: skip
        assert words in out


def test_several_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["xid", "79", "Xid 48", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["code"], one["severity"], one["ec2_action"]) for one in found] == [
        (79, "fatal", "stop_start"), (48, "critical", "reset_gpu"),
    ]  # fmt: skip


@pytest.mark.parametrize("code", range(1, 178))
def test_every_xid_can_be_explained(code: int) -> None:
    found = xid.explain(str(code))
    assert found.name and found.severity and found.ec2_meaning and found.sources
    assert xid.as_text(found).startswith(f"Xid {code}: ")


def test_old_branch_had_another_meaning() -> None:
    assert xid.explain("139").name == "OFA1 Error"
    assert xid.explain("139", "535.129.03").name == "CUDA Fast Path Error"
    assert xid.explain("145", "555.42.02").name == "Reserved in this driver branch"


def test_switch_codes() -> None:
    found = xid.explain("22013")
    assert (found.kind, found.name, found.causes) == ("sxid", "Minion Link DLREQ interrupt", ("NVSwitch",))
    assert xid.explain("sxid 22013") == found
    assert "decides" in xid.explain("10000").notes[0]


def test_none_published_is_said_to_be_ours() -> None:
    assert any("none published" in source for source in xid.explain("175").sources)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["abc"], "'abc' is not an Xid"),
        (["-1"], "not an Xid"),
        (["999"], "999: not in the catalogue"),
        (["99999"], "99999: not in the catalogue"),
        (["9" * 30], "is not an Xid"),
        (["63", "--driver", "new"], "--driver 'new' is not a driver version"),
    ],
)
def test_wrong_codes(words: list[str], complaint: str) -> None:
    driver = words[2] if len(words) > 1 else None
    with pytest.raises(UsageError, match=complaint):
        xid.explain(words[0], driver)
