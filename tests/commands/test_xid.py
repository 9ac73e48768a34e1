"""`gpu-ami xid`: the explanation of one code or several, and of a driver's branch."""

from __future__ import annotations

import json

import pytest

from gpu_ami import cli


def test_63_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "63"]) == 0
    out = capsys.readouterr().out
    for words in ("Xid 63: GPU memory remapping event", "hardware, driver, GPU memory", "warning", "IGNORE", "on EC2",
                  "NVIDIA Xid-Catalog.xlsx", "next GPU reset"):  # fmt: skip
        assert words in out


def test_several_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "79", "Xid 48", "--json"]) == 0
    explanations = json.loads(capsys.readouterr().out)
    assert [(row["code"], row["severity"], row["ec2_action"]) for row in explanations] == [
        (79, "fatal", "stop_start"), (48, "critical", "reboot"),
    ]  # fmt: skip


def test_explanations_are_separated_by_an_empty_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "63", "12028"]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.startswith("Xid 63: ") and second.startswith("SXid 12028: ")


@pytest.mark.parametrize(("words", "name"), [([], "OFA1 Error"), (["--driver", "535.129.03"], "CUDA Fast Path Error")])
def test_driver_selects_the_meaning(words: list[str], name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "139", *words]) == 0
    assert capsys.readouterr().out.startswith(f"Xid 139: {name}\n")


def test_one_invalid_code_fails_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["xid", "63", "abc"]) == 2
    output = capsys.readouterr()
    assert "'abc' is not an Xid" in output.err and output.out == ""
