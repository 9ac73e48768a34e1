"""What `verify` accepts, and every forgery that it refuses, each by its name."""

from __future__ import annotations

import base64
import datetime
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import pipeline
from gpu_ami.errors import UsageError
from gpu_ami.release import keys, verification
from gpu_ami.release import statement as envelopes
from gpu_ami.release import statement as statements
from gpu_ami.release.verification import Findings
from gpu_ami.report import ReportLayer, document, writer
from gpu_ami.report import certificate as certificates
from tests.release import examples
from tests.report.examples import a_check, a_host
from validator.results import CarriedOver, WaiverRecord, WaiverState

NOW = datetime.datetime(2026, 11, 22, 12, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return examples.signed_folder(tmp_path / "out", tmp_path)


def verify(
    folder: Path, asked: verification.Requirements | None = None, expires: datetime.date | None = None, key: str = ""
) -> Findings:
    public = keys.load_public(str(folder.parent / (key or "release.key.pub")))
    trusted = [keys.TrustedKey("release", public, expires)]
    return verification.verify(folder, trusted, asked or verification.Requirements(), NOW)[0]


def test_a_signed_certificate_is_verified(folder: Path) -> None:
    findings = verify(folder)
    assert findings.exit_code == 0, findings.text()
    assert [point.name for point in findings.points if point.state == "held"] == [
        "signature", "certificate", "report", "bom", "inventory", "pages", "evidence", "inventory-root",
        "image", "level", "age", "waivers",
    ]  # fmt: skip
    assert findings.text().splitlines()[-1] == f"VERIFIED: {folder}"


def change_payload(folder: Path, change: Callable[[bytes], bytes]) -> None:
    content = examples.envelope(folder)
    content["payload"] = base64.b64encode(change(base64.b64decode(content["payload"]))).decode()
    examples.write_envelope(folder, content)


MATERIALS = "evidence/image-files/materials.json"


def edit_text(path: Path, before: str, after: str) -> None:
    text = path.read_text()
    path.write_text(text.replace(before, after) + ("" if before in text else " "))


def change_envelope(**changes: object) -> Callable[[Path], None]:
    return lambda folder: examples.write_envelope(folder, examples.envelope(folder) | changes)


def change_signature(folder: Path) -> None:
    content = examples.envelope(folder)
    signature = bytearray(base64.b64decode(content["signatures"][0]["sig"]))
    signature[5] ^= 1
    content["signatures"][0]["sig"] = base64.b64encode(signature).decode()
    examples.write_envelope(folder, content)


def signature_of_another(folder: Path) -> None:
    """The same key has signed another folder; its signature is put under this statement."""
    report = replace(examples.write_folder(folder.parent / "other"), run="run-2")
    other = examples.signed_folder(folder.parent / "other", folder.parent, report)
    change_envelope(signatures=examples.envelope(other)["signatures"])(folder)


def statement_of_another(folder: Path) -> None:
    other = folder.parent / "other"
    shutil.copytree(folder, other)
    report = replace(document.load(other / "report.json"), run="run-2")
    writer.write(report, other)
    pipeline.certify_stage(report, other, [examples.signer(folder.parent)])
    shutil.copy(other / examples.ENVELOPE, folder)


def signed_by_another_key(folder: Path) -> None:
    report = document.load(folder / "report.json")
    pipeline.certify_stage(report, folder, [examples.signer(folder.parent, "stranger.key")])


def duplicate_key(folder: Path) -> None:
    text = (folder / examples.ENVELOPE).read_text()
    (folder / examples.ENVELOPE).write_text(text.replace("{", '{"payload": "e30=",', 1))


def truncate(folder: Path) -> None:
    path = folder / examples.ENVELOPE
    path.write_bytes(path.read_bytes()[:-40])


def sign_again(folder: Path, **changes: object) -> None:
    """A statement with other subjects, signed by the trusted key: a mistake of the publisher's own tools."""
    signed = statements.parse(base64.b64decode(examples.envelope(folder)["payload"]))
    payload = replace(signed, **changes).to_bytes()  # type: ignore[arg-type]
    envelopes.sign(payload, [examples.signer(folder.parent)], folder)


def edit_certificate(folder: Path, sign: bool, **changes: object) -> None:
    path = folder / "certificate.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    if sign:
        report = document.load(folder / "report.json")
        statement = statements.of_folder(folder, certificates.load(path), report, (examples.SNAPSHOT,))
        envelopes.sign(statement.to_bytes(), [examples.signer(folder.parent)], folder)


def of_another_report(folder: Path) -> None:
    edit_certificate(folder, sign=True, report_sha256=f"sha256:{'0' * 64}")


def rehearsal_given_as_certified(folder: Path) -> None:
    """The report is of simulated hardware; the certificate was edited and signed by the trusted key."""
    report = replace(document.load(folder / "report.json"), simulated=True)
    writer.write(report, folder)
    digest = certificates.report_digest(report.to_json())
    edit_certificate(folder, sign=True, report_sha256=digest, level="certified", simulated_hardware=False)


def other_image(folder: Path, **changes: str) -> None:
    path = folder / "certificate.json"
    image = json.loads(path.read_text())["image"] | changes
    signed = statements.parse(base64.b64decode(examples.envelope(folder)["payload"]))
    edit_certificate(folder, sign=False, image=image)
    files = dict(signed.files) | {"certificate.json": statements.sha256_of(folder, path.name)}
    sign_again(folder, files=files)


FORGERIES: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed byte in the payload": (
        lambda f: change_payload(f, lambda p: p.replace(b"us-east-1", b"us-west-1")),
        "wrong-signature",
    ),
    "changed byte in the signature": (change_signature, "wrong-signature"),
    "changed byte in the certificate": (lambda f: examples.flip(f / "certificate.json"), "changed-certificate"),
    "changed byte in the report": (lambda f: examples.flip(f / "report.json"), "changed-report"),
    "changed byte in the inventory": (lambda f: examples.flip(f / examples.INVENTORY), "changed-inventory"),
    "changed byte in the bill of materials": (lambda f: examples.flip(f / "bom.cdx.json"), "changed-bom"),
    "level edited in the certificate": (
        lambda f: edit_certificate(f, sign=False, level="rehearsed"),
        "changed-certificate",
    ),
    "payload type of another document": (change_envelope(payloadType="application/json"), "payload-type"),
    "no signature": (change_envelope(signatures=[]), "no-signature"),
    "no envelope": (lambda f: (f / examples.ENVELOPE).unlink(), "no-signature"),
    "signature of another statement": (signature_of_another, "wrong-signature"),
    "envelope of another certificate": (statement_of_another, "changed-certificate, changed-pages, changed-report"),
    "level edited in the certificate's text": (
        lambda f: edit_text(f / "certificate.md", "rehearsed", "certified"),
        "changed-pages",
    ),
    "page edited": (lambda f: edit_text(f / "report.html", "PASS", "PASSED"), "changed-pages"),
    "evidence edited": (lambda f: edit_text(f / MATERIALS, "580.1", "580.2"), "changed-evidence"),
    "missing page": (lambda f: (f / "certificate.md").unlink(), "missing-file"),
    "missing evidence": (lambda f: shutil.rmtree(f / "evidence"), "missing-file"),
    "unknown key": (signed_by_another_key, "unknown-key"),
    "duplicate key in the envelope": (duplicate_key, "duplicate-keys"),
    "truncated envelope": (truncate, "damaged-envelope"),
    "signature that is no object": (change_envelope(signatures=["x"]), "damaged-envelope"),
    "further key in the envelope": (change_envelope(keys=[]), "damaged-envelope"),
    "empty envelope": (lambda f: (f / examples.ENVELOPE).write_text(""), "damaged-envelope"),
    "missing report": (lambda f: (f / "report.json").unlink(), "missing-file"),
    "missing inventory": (lambda f: (f / examples.INVENTORY).unlink(), "missing-file"),
    "directory in place of the report": (
        lambda f: ((f / "report.json").unlink(), (f / "report.json").mkdir()),
        "missing-file",
    ),
    "symbolic link to the report": (lambda f: examples.link_elsewhere(f / "report.json"), "symbolic-link"),
    "symbolic link to the evidence": (lambda f: examples.link_elsewhere(f / "evidence"), "symbolic-link"),
    "another AMI signed": (lambda f: sign_again(f, ami="ami-0ffffffffffffffff"), "other-ami"),
    "another region signed": (lambda f: sign_again(f, region="eu-central-1"), "other-region"),
    "another AMI in the certificate": (lambda f: other_image(f, ami="ami-0ffffffffffffffff"), "other-ami"),
    "another region in the certificate": (lambda f: other_image(f, region="eu-central-1"), "other-region"),
    "another plan signed": (lambda f: sign_again(f, plan_digest=f"sha256:{'9' * 64}"), "other-plan"),
    "another root signed": (lambda f: sign_again(f, inventory_root="0" * 64), "inventory-root"),
    "statement without the report": (
        lambda f: sign_again(f, files={"certificate.json": "0" * 64}),
        "damaged-statement",
    ),
    "certificate of another report": (of_another_report, "other-report"),
    "rehearsal given as certified": (rehearsal_given_as_certified, "level-of-report"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_refused_by_its_name(folder: Path, name: str) -> None:
    forge, refusal = FORGERIES[name]
    forge(folder)
    findings = verify(folder)
    assert (findings.exit_code, ", ".join(point.name for point in findings.refused)) == (6, refusal), findings.text()
    assert all(point.hint for point in findings.refused)
    assert f"REFUSED: {refusal}" in findings.text()


def test_all_that_is_changed_or_missing_is_named(folder: Path) -> None:
    edit_text(folder / "certificate.md", "certified", "CERTIFIED")
    edit_text(folder / "summary.md", "PASS", "PASSED")
    (folder / MATERIALS).unlink()
    (folder / "junit.xml").unlink()
    text = verify(folder).text()
    assert "changed-pages: certificate.md: SHA-256 " in text and "; summary.md: SHA-256 " in text
    assert f"{MATERIALS}: No such file" in text and "junit.xml: No such file" in text


def test_files_that_nobody_signed_are_named_and_not_used(folder: Path) -> None:
    footprint = folder / "site/roles/tuning/meta/footprint.yml"
    footprint.parent.mkdir(parents=True)
    footprint.write_text("files: []\n")
    findings = verify(folder)
    assert findings.exit_code == 0
    assert [(p.state, p.text.rpartition(": ")[2]) for p in findings.points if p.name == "unsigned"] == [
        ("not looked at", "site/roles/tuning/meta/footprint.yml")
    ]


def test_the_sites_roles_are_signed(tmp_path: Path) -> None:
    role = tmp_path / "out/site/roles/ours"
    (role / "meta").mkdir(parents=True)
    (role / "meta/footprint.yml").write_text("files: []\n")
    (role / "ours@.service").write_text("")
    folder = examples.signed_folder(tmp_path / "out", tmp_path)
    trusted = [keys.TrustedKey("release", keys.load_public(str(tmp_path / "release.key.pub")))]
    _, verified = verification.verify(folder, trusted, verification.Requirements(), NOW)
    assert verified is not None
    (written,) = verified.write_site(tmp_path / "copy")
    assert {path.name for path in written.rglob("*") if path.is_file()} == {"footprint.yml", "ours@.service"}
    (role / "meta/footprint.yml").write_text("files: [{path: /usr/bin/backdoor}]\n")
    assert [point.name for point in verify(folder).refused] == ["changed-site"]


def test_a_link_is_not_signed(tmp_path: Path) -> None:
    report = examples.write_folder(tmp_path / "out")
    (tmp_path / "out/evidence/image-files/journal.log").symlink_to("/etc/shadow")
    with pytest.raises(UsageError, match="a symbolic link"):
        examples.signed_folder(tmp_path / "out", tmp_path, report)


def test_a_statement_with_a_file_elsewhere_is_refused(folder: Path) -> None:
    sign_again(folder, files={"../release.key": "0" * 64, "certificate.json": "0" * 64, "report.json": "0" * 64})
    assert [point.name for point in verify(folder).refused] == ["damaged-statement"]


def test_an_expired_key_is_refused(folder: Path) -> None:
    assert verify(folder, expires=NOW.date()).exit_code == 0  # the last day
    assert [point.name for point in verify(folder, expires=NOW.date() - DAY).refused] == ["expired-key"]


def test_a_second_signature_of_a_stranger_does_no_harm(folder: Path) -> None:
    report = document.load(folder / "report.json")
    signers = [examples.signer(folder.parent), examples.signer(folder.parent, "stranger.key")]
    pipeline.certify_stage(report, folder, signers)
    assert len(examples.envelope(folder)["signatures"]) == 2
    assert verify(folder).exit_code == verify(folder, key="stranger.key.pub").exit_code == 0


def test_a_rehearsal_is_accepted_only_where_it_is_asked_for(tmp_path: Path) -> None:
    report = replace(examples.write_folder(tmp_path / "out"), simulated=True)
    folder = examples.signed_folder(tmp_path / "out", tmp_path, report)
    assert [point.name for point in verify(folder).refused] == ["level"]
    assert verify(folder, verification.Requirements(level="rehearsed")).exit_code == 0


@pytest.mark.parametrize(("days", "refused"), [(1, ["too-old"]), (3, [])])
def test_an_old_proof_is_refused(folder: Path, days: int, refused: list[str]) -> None:
    findings = verify(folder, verification.Requirements(max_age=days * DAY))
    assert [point.name for point in findings.refused] == refused


def test_a_proof_of_the_future_is_refused(tmp_path: Path) -> None:
    report = replace(examples.write_folder(tmp_path / "out"), finished="2026-12-01T00:00:00Z")
    folder = examples.signed_folder(tmp_path / "out", tmp_path, report)
    assert [point.name for point in verify(folder).refused] == ["future"]


@pytest.mark.parametrize(("expires", "refused"), [("2026-11-21", ["waiver-expired"]), ("2026-11-22", [])])
def test_an_expired_waiver_is_refused(tmp_path: Path, expires: str, refused: list[str]) -> None:
    waiver = WaiverRecord("hygiene::*", "ticket 7", "release", expires, {}, WaiverState.USED)
    report = examples.write_folder(tmp_path / "out")
    host = a_host("g5.12xlarge", a_check("hygiene", "FAIL", waived=waiver))
    folder = examples.signed_folder(tmp_path / "out", tmp_path, replace(report, hosts=(report.hosts[0], host)))
    assert examples.payload(folder)["predicate"]["result"] == "WARNED"
    assert [point.name for point in verify(folder).refused] == refused


def test_another_ami_than_asked_for_is_refused(folder: Path) -> None:
    findings = verify(folder, verification.Requirements(ami="ami-0ffffffffffffffff"))
    assert [point.name for point in findings.refused] == ["other-ami"]


def test_a_path_is_read_from_the_signed_inventory(folder: Path) -> None:
    trusted = [keys.TrustedKey("release", keys.load_public(str(folder.parent / "release.key.pub")))]
    findings, verified = verification.verify(folder, trusted, verification.Requirements(), NOW)
    assert verified is not None
    verification.verify_path(verified, "/usr/bin/nvidia-smi", findings)
    assert findings.points[-1].text == (
        f"/usr/bin/nvidia-smi: SHA-256 {'ab' * 32}, 0755 root:root, package nvidia-utils; in the signed inventory"
    )
    verification.verify_path(verified, "/usr/bin/other", findings)
    assert [point.name for point in findings.refused] == ["path"]


def test_without_an_inventory_it_says_so(tmp_path: Path) -> None:
    report = examples.write_folder(tmp_path / "out")
    folder = examples.signed_folder(tmp_path / "out", tmp_path, replace(report, hosts=report.hosts[1:]))
    findings = verify(folder)
    assert findings.exit_code == 0
    assert [point.name for point in findings.points if point.state == "not looked at"] == ["inventory"]


def carried_over(folder: Path, digest: str, **changes: bool) -> Path:
    """A signed certificate with a check of an earlier proof, of a layer with this digest."""
    folder.mkdir()
    report = examples.write_folder(folder)
    earlier = CarriedOver("2026-11-19T00:00:00Z", "sha256:r", "ami-0", "driver", digest)
    host = report.hosts[0].with_checks(a_check("cuda", carried=earlier))
    layers = (ReportLayer("driver", "sha256:d", ("nvidia_driver", "cuda")),)
    report = replace(report, hosts=(host, *report.hosts[1:]), layers=layers, **changes)
    return examples.signed_folder(folder, folder.parent, report)


def test_checks_of_an_earlier_proof_are_named(tmp_path: Path) -> None:
    findings = verify(carried_over(tmp_path / "a", "sha256:d"))
    assert [point.name for point in findings.refused] == ["level"]  # rehearsed
    findings = verify(carried_over(tmp_path / "b", "sha256:d", certify_carried=True))
    assert findings.exit_code == 0, findings.text()
    (point,) = [point for point in findings.points if point.name == "carried"]
    assert "1 checks did not run" not in point.text
    assert "1 check did not run on this image" in point.text
    assert "proven on 2026-11-19 on ami-0 by report sha256:r, layer digest sha256:d" in point.text


def test_a_check_of_a_layer_that_the_image_does_not_have_is_refused(tmp_path: Path) -> None:
    findings = verify(carried_over(tmp_path / "a", "sha256:other", certify_carried=True))
    assert [point.name for point in findings.refused] == ["carried"]
