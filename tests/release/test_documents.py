"""Documents of a release: strict JSON, envelopes, findings, and how they are printed.

A scanner of the user's: its exit code is a check, which a waiver accepts until its last day.
"""

from __future__ import annotations

import base64
import datetime
import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from gpu_ami import cli
from gpu_ami.errors import UsageError
from gpu_ami.release import comparison, keys, scan, statement
from gpu_ami.release.comparison import Comparison, Row, Section
from gpu_ami.release.verification import Findings
from gpu_ami.report import document
from tests.release import examples
from validator.results import CheckRecord, WaiverState

# JSON that two readers could read in two ways is refused.


@pytest.mark.parametrize(
    ("data", "duplicate"),
    [
        (b'{"a": 1, "a": 1}', "a"),
        (b'{"x": [{"b": 1, "b": 2}]}', "b"),
        (b"{", ""),
        (b"[]", ""),
        (b"\xff{}", ""),
        (b"[" * 100_000, ""),
    ],
)
def test_refused(data: bytes, duplicate: str) -> None:
    with pytest.raises(statement.InvalidJson) as error:
        statement.loads(data)
    assert error.value.duplicate == duplicate


def test_the_object_is_returned() -> None:
    assert statement.loads(b'{"a": {"b": [1]}}') == {"a": {"b": [1]}}


# The result of a verification as text, as JSON and as an exit code.


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


# The envelope on disk: DSSE as its specification has it. Forgeries are in test_verification.py.


TODAY = datetime.date(2026, 11, 22)


def test_the_signature_is_over_the_pre_authentication_encoding(tmp_path: Path) -> None:
    """By hand, without the library that signed: https://github.com/secure-systems-lab/dsse, protocol.md."""
    statement.sign(b'{"a":1}', [examples.signer(tmp_path)], tmp_path)
    content = examples.envelope(tmp_path)
    assert content["payloadType"] == "application/vnd.in-toto+json"
    assert base64.b64decode(content["payload"]) == b'{"a":1}'
    public = load_pem_public_key((tmp_path / "release.key.pub").read_bytes())
    signature = base64.b64decode(content["signatures"][0]["sig"])
    public.verify(signature, b'DSSEv1 28 application/vnd.in-toto+json 7 {"a":1}')  # type: ignore[union-attr,call-arg]


def test_the_payload_comes_with_its_signers(tmp_path: Path) -> None:
    signers = [examples.signer(tmp_path), examples.signer(tmp_path, "second.key")]
    data = statement.sign(b"{}", signers, tmp_path).read_bytes()
    trusted = [
        keys.TrustedKey(name, keys.load_public(str(tmp_path / f"{name}.key.pub"))) for name in ("second", "release")
    ]
    signed = statement.open_envelope(data, trusted, TODAY)
    assert (signed.payload, [key.name for key in signed.signers]) == (b"{}", ["release", "second"])


def test_a_wrong_signature_beside_a_right_one_is_refused(tmp_path: Path) -> None:
    signers = [examples.signer(tmp_path), examples.signer(tmp_path, "second.key")]
    statement.sign(b"{}", signers, tmp_path)
    content = examples.envelope(tmp_path)
    content["signatures"][1]["sig"] = content["signatures"][0]["sig"]
    examples.write_envelope(tmp_path, content)
    trusted = [
        keys.TrustedKey(name, keys.load_public(str(tmp_path / f"{name}.key.pub"))) for name in ("release", "second")
    ]
    with pytest.raises(statement.RefusedEnvelope) as error:
        statement.open_envelope((tmp_path / examples.ENVELOPE).read_bytes(), trusted, TODAY)
    assert error.value.name == "wrong-signature"


# A comparison as text, Markdown, HTML and JSON; what a machine says cannot become markup.


HOSTILE = Row("package <b>x</b> | y", "", "<script>alert(1)</script>\x1b[31m")
COMPARED = Comparison(
    "demo (a)",
    "demo (b)",
    (
        Section("versions", (Row("cuda.version", "12.4", "13.0"),)),
        Section("files", (HOSTILE, *(Row(f"f{number}", "1", "2") for number in range(60)))),
        Section("units"),
        Section("checks", missing="the report of one image is not at hand"),
    ),
    ("demo (b): no report",),
)


def test_text() -> None:
    lines = comparison.text(COMPARED).splitlines()
    assert lines[:4] == ["demo (a) → demo (b)", "", "versions:", "  cuda.version: 12.4 → 13.0"]
    assert "  and 21 more (--format html or json has all)" in lines
    assert lines[-6:] == [
        "checks: not compared: the report of one image is not at hand",
        "",
        "the same: units",
        "",
        "not at hand:",
        "  demo (b): no report",
    ]


def test_markdown_is_a_table_whatever_a_name_holds() -> None:
    text = comparison.markdown(COMPARED)
    assert "| cuda.version | 12.4 | 13.0 |" in text
    assert "| package &lt;b>x&lt;/b> \\| y | - |" in text
    assert "- checks: the report of one image is not at hand" in text
    assert comparison.notes(COMPARED).splitlines()[0] == "# demo (b): changes since demo (a)"
    assert "No difference" in comparison.markdown(Comparison("a", "b", (Section("units"),)))


def test_html_is_escaped_and_whole() -> None:
    page = comparison.html(COMPARED)
    assert "<script>" not in page and "&lt;script&gt;" in page and "\x1b" not in page
    assert page.count("<tr>") == 2 and page.count('<tr class="find">') == 1 + 61
    assert "<h2>Files by component</h2>" in page and "No difference: Units." in page


def test_json_has_all() -> None:
    data = comparison.to_json(COMPARED)
    assert (data["before"], data["after"]) == ("demo (a)", "demo (b)")
    sections = data["sections"]
    assert isinstance(sections, tuple) and len(sections[1]["rows"]) == 61


WAIVER = "- {{check: 'scan::sh', reason: no fix yet, owner: release, expires: {day}}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    examples.write_folder(tmp_path / "out")
    return tmp_path / "out"


def certify(folder: Path, script: str, *words: str) -> int:
    return cli.main(["certify", str(folder), "--scan", f"sh -c '{script}' sh {{sbom}}", *words])


def record(folder: Path) -> CheckRecord:
    report = document.load(folder / "report.json")
    (found,) = [check for host in report.hosts for check in host.checks if check.role == "scan"]
    return found


def test_the_scanner_gets_the_bill_and_its_output_is_kept(folder: Path) -> None:
    assert certify(folder, "grep -c nvidia-utils $1") == 0
    assert (record(folder).verdict, record(folder).tier) == ("PASS", "T0")
    kept = (folder / "evidence/scan-sh.txt").read_text().splitlines()
    assert kept[0].startswith("$ sh -c") and int(kept[1]) > 0 and kept[-1] == "exit code 0"


def test_what_it_refuses_fails_the_image(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certify(folder, "echo CVE-2026-1 in nvidia-utils; exit 2") == 1
    assert record(folder).message.endswith("exit code 2\nCVE-2026-1 in nvidia-utils")
    assert not (folder / "certificate.json").exists()
    assert "CVE-2026-1 in nvidia-utils" in capsys.readouterr().out


def test_a_second_scan_replaces_the_first(folder: Path) -> None:
    assert certify(folder, "exit 2") == 1
    assert certify(folder, "exit 0") == 0
    assert record(folder).verdict == "PASS"


@pytest.mark.parametrize(("day", "code", "state"), [("2100-01-01", 0, "used"), ("2020-01-01", 1, "expired")])
def test_a_waiver_accepts_it_until_its_last_day(folder: Path, tmp_path: Path, day: str, code: int, state: str) -> None:
    (tmp_path / "waivers.yml").write_text(WAIVER.format(day=day))
    assert certify(folder, "exit 2", "--waivers", str(tmp_path / "waivers.yml")) == code
    (waiver,) = document.load(folder / "report.json").hosts[0].waivers
    assert waiver.state == WaiverState(state)
    if code == 0:
        certificate = json.loads((folder / "certificate.json").read_text())
        assert any("scan::sh: FAIL, waived by release" in line for line in certificate["not_proven"])


def test_a_scanner_that_is_not_there_proves_nothing(folder: Path) -> None:
    assert cli.main(["certify", str(folder), "--scan", "no-such-scanner {sbom}"]) == 4
    assert not (folder / "certificate.json").exists()
    assert record(folder).verdict == "ERROR" and "no-such-scanner" in record(folder).message


def test_without_a_bill_it_is_unproven(folder: Path) -> None:
    (folder / "evidence/image-files/materials.json").unlink()
    assert certify(folder, "exit 0") == 4
    assert record(folder).verdict == "ERROR" and "no bill of materials" in record(folder).message


def test_no_shell_reads_the_command(folder: Path, tmp_path: Path) -> None:
    cli.main(["certify", str(folder), "--scan", f"echo {{sbom}}; touch {tmp_path}/made"])
    assert not (tmp_path / "made").exists() and record(folder).verdict == "PASS"


@pytest.mark.parametrize("command", ["grype", "grype 'x", "{sbom}", ""])
def test_a_command_without_the_bill_is_refused(command: str) -> None:
    with pytest.raises(UsageError):
        scan.parse(command)
