"""The result of a verification as text, as JSON and as an exit code."""

from __future__ import annotations

from gpu_ami.release.findings import Findings


def test_a_refusal_is_named_with_what_to_do() -> None:
    findings = Findings("out/demo")
    findings.hold("signature", "signed by release")
    findings.skip("place", "--offline")
    assert findings.exit_code == 0
    assert findings.text().splitlines()[-1] == "VERIFIED: out/demo"
    findings.refuse("level", "rehearsed", "prove it")
    assert findings.exit_code == 6
    assert findings.text().splitlines() == [
        "held           signature: signed by release",
        "not looked at  place: --offline",
        "refused        level: rehearsed",
        "               → prove it",
        "",
        "REFUSED: level: out/demo",
    ]
    assert findings.to_json() == {
        "certificate": "out/demo",
        "verified": False,
        "points": [
            {"name": "signature", "state": "held", "text": "signed by release", "hint": ""},
            {"name": "place", "state": "not looked at", "text": "--offline", "hint": ""},
            {"name": "level", "state": "refused", "text": "rehearsed", "hint": "prove it"},
        ],
    }
