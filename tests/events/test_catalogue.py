"""The Xid catalogue: name, cause, severity and action of a code, the action on EC2, and the sources."""

from __future__ import annotations

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.events import catalogue


@pytest.mark.parametrize("code", range(1, 178))
def test_every_xid_can_be_explained(code: int) -> None:
    explanation = catalogue.explain(str(code))
    assert explanation.name and explanation.severity and explanation.ec2_meaning and explanation.sources
    assert catalogue.as_text(explanation).startswith(f"Xid {code}: ")


def test_old_branch_had_another_meaning() -> None:
    assert catalogue.explain("139").name == "OFA1 Error"
    assert catalogue.explain("139", "535.129.03").name == "CUDA Fast Path Error"
    assert catalogue.explain("145", "555.42.02").name == "Reserved in this driver branch"


def test_switch_codes() -> None:
    explanation = catalogue.explain("22013")
    assert (explanation.kind, explanation.name) == ("sxid", "Minion Link DLREQ interrupt")
    assert explanation.causes == ("NVSwitch",)
    assert catalogue.explain("sxid 22013") == explanation
    assert "decides" in catalogue.explain("10000").notes[0]


def test_action_that_nvidia_has_not_published() -> None:
    assert any("none published" in source for source in catalogue.explain("175").sources.values())


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
        catalogue.explain(words[0], driver)
