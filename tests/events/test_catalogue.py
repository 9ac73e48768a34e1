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


@pytest.mark.parametrize(
    ("word", "kind", "ec2_action"),
    [
        ("RM_INIT_FAILED", "gpu_init_failed", "stop_start"), ("gsp_boot_failed", "gpu_init_failed", "stop_start"),
        ("PROBE_FAILED", "gpu_init_failed", "stop_start"), ("ALREADY_LOST", "gpu_init_failed", "stop_start"),
        ("not-supported-by-driver", "gpu_init_failed", "update_driver"), ("DMA_ERROR", "neuron", "stop_start"),
    ],
)  # fmt: skip
def test_codes_that_are_names(word: str, kind: str, ec2_action: str) -> None:
    explanation = catalogue.explain(word)
    assert (explanation.kind, explanation.ec2_action) == (kind, ec2_action)
    text = catalogue.as_text(explanation)
    assert text.splitlines()[0].endswith(f"{explanation.code}: {explanation.name}") and "source" in text


def test_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(UsageError) as error:
        catalogue.explain("RM_BROKEN")
    assert "RM_INIT_FAILED" in str(error.value.hint)


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
