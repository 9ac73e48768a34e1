"""The in-toto statement of a certificate: which AMI, snapshots and files it is about, and the result of the proof.

Statement v1 with the predicate test-result v0.1 (https://github.com/in-toto/attestation, spec/). A subject of AWS has
the digest `awsImage` or `awsSnapshot`, the hexadecimal part of its id: AWS never gives an id a second content.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import Error as SecureSystemsError
from securesystemslib.signer import Signer

from gpu_ami.errors import UsageError
from gpu_ami.files import write_json
from gpu_ami.plan import SITE_FOLDER
from gpu_ami.release.keys import TrustedKey
from gpu_ami.report import PASS, Report, page, page_machine, writer
from gpu_ami.report import certificate as certificates
from gpu_ami.report import document as reports
from validator import foreign_names
from validator.file_account import KEPT_FILE
from validator.inputs import LARGEST
from validator.results import field_tests


class InvalidJson(ValueError):
    """Not JSON, or not an object. duplicate: the key that is there twice, "" otherwise."""

    def __init__(self, message: str, duplicate: str = "") -> None:
        super().__init__(message)
        self.duplicate = duplicate


def loads(data: bytes) -> dict[str, Any]:
    """The object in `data`, UTF-8. InvalidJson."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key, value in pairs:
            if key in content:
                raise InvalidJson(f"duplicate key {key!r}", key)
            content[key] = value
        return content

    try:
        document = json.loads(data.decode("utf-8"), object_pairs_hook=unique)
    except InvalidJson:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidJson(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise InvalidJson(f"expected a JSON object, got {type(document).__name__}")
    return document


ENVELOPE_FILE = "certificate.dsse.json"
PAYLOAD_TYPE = "application/vnd.in-toto+json"


class RefusedEnvelope(ValueError):
    """Not an envelope with a signature of a trusted key. name: the refusal's; hint: what to do."""

    def __init__(self, name: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.name, self.hint = name, hint


@dataclass(frozen=True)
class Signed:
    """The payload of an envelope, and the trusted keys whose signatures it has."""

    payload: bytes
    signers: tuple[TrustedKey, ...]


def sign(payload: bytes, signers: Sequence[Signer], folder: Path, name: str = "") -> Path:
    """Writes the envelope with a signature of each signer. Returns its path. CloudError: KMS refused to sign.

    name: of its file; that of a certificate if empty.
    """
    envelope = Envelope(payload, PAYLOAD_TYPE, {})
    for signer in signers:
        envelope.sign(signer)
    path = folder / (name or ENVELOPE_FILE)
    write_json(path, envelope.to_dict())
    return path


def open_envelope(data: bytes, trusted: Sequence[TrustedKey], today: datetime.date) -> Signed:
    """The payload, if a trusted key that has not expired signed it. RefusedEnvelope says why not.

    Signatures of unknown keys beside a trusted one do not count and do no harm.
    """
    envelope = _read(data)
    by_id = {key.key.keyid: key for key in trusted}
    known = [by_id[keyid] for keyid in envelope.signatures if keyid in by_id]
    if not known:
        ids = ", ".join(sorted(keyid[:16] for keyid in envelope.signatures))
        names = ", ".join(f"{key.name} ({key.key.keyid[:16]})" for key in trusted)
        hint = "ask the publisher which key is theirs; do not trust a key that comes with the certificate"
        raise RefusedEnvelope("unknown-key", f"signed by key {ids}; trusted: {names}", hint)
    for key in known:  # a wrong signature under a trusted key's id is a forgery, even beside a right one
        try:
            Envelope(
                envelope.payload, envelope.payload_type, {key.key.keyid: envelope.signatures[key.key.keyid]}
            ).verify([key.key], 1)
        except SecureSystemsError as error:
            text = f"the signature under key {key.name} is not of this statement"
            hint = "statement or signature was changed: get the folder again from its publisher"
            raise RefusedEnvelope("wrong-signature", text, hint) from error
    valid = [key for key in known if key.expires is None or today <= key.expires]
    if not valid:
        ended = ", ".join(f"{key.name} on {key.expires}" for key in known)
        hint = "ask the publisher for a certificate that a current key signed"
        raise RefusedEnvelope("expired-key", f"trust in its keys has ended: {ended}", hint)
    return Signed(envelope.payload, tuple(valid))


def _read(data: bytes) -> Envelope:
    again = "get the file again from its publisher"
    try:
        document = loads(data)
    except InvalidJson as error:
        name = "duplicate-keys" if error.duplicate else "damaged-envelope"
        raise RefusedEnvelope(name, f"{ENVELOPE_FILE}: {error}", again) from error
    unknown = sorted(set(document) - {"payload", "payloadType", "signatures"})
    if unknown:
        raise RefusedEnvelope("damaged-envelope", f"{ENVELOPE_FILE}: unknown key {', '.join(unknown)}", again)
    if document.get("payloadType") != PAYLOAD_TYPE:
        text = f"payload type {document.get('payloadType')!r}, expected {PAYLOAD_TYPE}"
        raise RefusedEnvelope("payload-type", text, "name the certificate's own envelope, not another document's")
    signatures = document.get("signatures")
    if signatures in (None, []):
        hint = "`gpu-ami certify --sign KEY` signs a certificate"
        raise RefusedEnvelope("no-signature", "the envelope has no signature", hint)
    try:
        return Envelope.from_dict(document)
    except (SecureSystemsError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RefusedEnvelope("damaged-envelope", f"{ENVELOPE_FILE}: {error!r}", again) from error


STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://in-toto.io/attestation/test-result/v0.1"
CERTIFICATE_FILE, REPORT_FILE = certificates.CERTIFICATE_FILE, reports.REPORT_FILE
BOM_FILE = page_machine.BOM_FILE
INVENTORY_ROOT = "inventory-root"
IMAGE_DIGEST, SNAPSHOT_DIGEST, SHA256 = "awsImage", "awsSnapshot", "sha256"
# Files that a statement may name, relative to the certificate's folder; nothing else is ever opened for one. All that
# people and programs are shown of a proof is among them, and the site's roles whose footprints explain files.
PAGES = (
    certificates.MARKDOWN_FILE, page.PAGE_FILE, writer.SUMMARY_FILE, writer.JUNIT_FILE, writer.CTRF_FILE,
)  # fmt: skip
EVIDENCE_FOLDER = "evidence"
_FOLDERS = (EVIDENCE_FOLDER, SITE_FOLDER)
_MADE_BY_RUNS = "__pycache__"  # below site/: Python's own, of checks that ran
_ARN = re.compile(r"arn:[a-z-]+:ec2:(?P<region>[a-z0-9-]+)::(?P<kind>image|snapshot)/(?P<id>[\w-]+)")


class InvalidStatement(ValueError):
    """Not a statement of this program; the message says what is wrong."""


@dataclass(frozen=True)
class Statement:
    """What is signed. ami, region: "" for a host that was reached by its address. files: name → SHA-256, hexadecimal.

    inventory_root: of the file inventory among the files, "" where there is none. warned: checks that failed and are
    waived; failed: others, of a report that gets no certificate.
    """

    ami: str
    region: str
    snapshots: tuple[str, ...]
    files: Mapping[str, str]
    inventory_root: str
    plan_digest: str
    passed: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()
    recipe: str = ""
    failed: tuple[str, ...] = ()

    def to_bytes(self) -> bytes:
        """The payload of the envelope: JSON, one text for one content."""
        return json.dumps(self._document(), sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode("ascii")

    def _document(self) -> dict[str, object]:
        prefix = f"arn:{_partition(self.region)}:ec2:{self.region}::"
        subjects: list[dict[str, object]] = []
        if self.ami:
            subjects.append({"name": f"{prefix}image/{self.ami}", "digest": {IMAGE_DIGEST: _number(self.ami)}})
        for snapshot in self.snapshots:
            subjects.append({"name": f"{prefix}snapshot/{snapshot}", "digest": {SNAPSHOT_DIGEST: _number(snapshot)}})
        subjects += [{"name": name, "digest": {SHA256: digest}} for name, digest in sorted(self.files.items())]
        if self.inventory_root:
            subjects.append({"name": INVENTORY_ROOT, "digest": {SHA256: self.inventory_root}})
        plan = {
            "name": "plan",
            "digest": {SHA256: self.plan_digest.removeprefix("sha256:")},
            "annotations": {"recipe": self.recipe},
        }
        predicate = {
            "result": "FAILED" if self.failed else "WARNED" if self.warned else "PASSED",
            "configuration": [plan] if self.plan_digest else [],
            "passedTests": list(self.passed),
            "warnedTests": list(self.warned),
            "failedTests": list(self.failed),
        }
        return {
            "_type": STATEMENT_TYPE,
            "subject": subjects,
            "predicateType": PREDICATE_TYPE,
            "predicate": predicate,
        }


def of_folder(
    folder: Path, certificate: certificates.Certificate, report: Report, snapshots: Iterable[str] = ()
) -> Statement:
    """The statement of the certificate in a folder, over its files as they are now.

    snapshots: of the AMI. UsageError: a file is not there, or the report is none that gets a certificate.
    """
    if not certificate.is_issued or report.verdict != PASS:
        raise UsageError(f"{folder}: there is no certificate to sign", hint=f"the report is {report.verdict}")
    image = certificate.image
    names = {CERTIFICATE_FILE, REPORT_FILE, *shown_files(folder)}
    return _statement_of(
        folder, report, names, image.ami, image.region, snapshots=tuple(sorted(snapshots)), recipe=image.name
    )


def of_report(folder: Path, report: Report, names: Iterable[str]) -> Statement:
    """The statement of the job that made a report, over its files in a folder. UsageError: a file is not there."""
    name = str(report.plan.get("image", ""))
    return _statement_of(folder, report, set(names), report.image, report.region, snapshots=(), recipe=name)


def _statement_of(
    folder: Path, report: Report, names: set[str], ami: str, region: str, *, snapshots: tuple[str, ...], recipe: str
) -> Statement:
    checks = {check.id: check for host in report.hosts for check in host.checks}
    waived = {check.id for host in report.hosts for check in host.checks if check.waived}
    return Statement(
        ami=ami,
        region=region if ami else "",
        snapshots=snapshots if ami else (),
        files={name: sha256_of(folder, name) for name in sorted(names)},
        inventory_root=inventory_of(report, names)[1],
        plan_digest=str(report.plan.get("digest", "")),
        passed=tuple(sorted(id for id, check in checks.items() if check.verdict == PASS and id not in waived)),
        warned=tuple(sorted(waived)),
        recipe=recipe,
        failed=tuple(sorted({check.id for _, check in report.failures()} - waived)),
    )


def shown_files(folder: Path) -> list[str]:
    """Files of a proof's folder that a statement can name, sorted. UsageError: a link or an odd name is among them."""
    names = [name for name in (CERTIFICATE_FILE, REPORT_FILE, BOM_FILE, *PAGES) if (folder / name).is_file()]
    try:
        for below in _FOLDERS:
            found = foreign_names.files_below(foreign_names.join(folder, below))
            names += [f"{below}/{path.as_posix()}" for path in found if _MADE_BY_RUNS not in path.parts]
    except foreign_names.NameRefused as error:
        raise UsageError(f"cannot sign {folder}: {error}", hint="`gpu-ami validate` writes only files there") from error
    return sorted(names)


def inventory_of(report: Report, names: Container[str]) -> tuple[str, str]:
    """File and root of the image's inventory: that of its files, else that of the first machine that has one.

    names: of the files that are there, or signed. "" where there is none.
    """
    hosts = sorted(report.hosts, key=lambda host: not host.offline)
    for host in hosts:
        root = host.facts.get("inventory_root")
        name = f"{EVIDENCE_FOLDER}/{host.evidence}/{KEPT_FILE}"
        if isinstance(root, str) and name in names:
            return name, root
    return "", ""


def sha256_of(folder: Path, name: str) -> str:
    """SHA-256 of a file below a folder, hexadecimal. UsageError: it is not there, or no regular file."""
    path = folder / name
    try:
        return hashlib.sha256(foreign_names.read_bytes(path, LARGEST)).hexdigest()
    except foreign_names.NameRefused as error:
        raise UsageError(f"cannot sign {folder}: {error}") from error
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint="`gpu-ami certify` writes the certificate") from error


def is_current(folder: Path) -> bool:
    """Whether every file that the envelope in a folder names is as it says; who signed it is not asked."""
    try:
        named = parse(_read(foreign_names.read_bytes(folder / ENVELOPE_FILE, LARGEST)).payload).files
        return all(sha256_of(folder, name) == digest for name, digest in named.items())
    except (OSError, ValueError, UsageError):
        return False


def _partition(region: str) -> str:
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _number(resource: str) -> str:
    return resource.partition("-")[2]


def parse(payload: bytes) -> Statement:
    """Reads a payload. InvalidStatement: another type, another predicate, or a shape that `to_bytes` never writes."""
    try:
        document = loads(payload)
    except InvalidJson as error:
        raise InvalidStatement(str(error)) from error
    for key, expected in (("_type", STATEMENT_TYPE), ("predicateType", PREDICATE_TYPE)):
        if document.get(key) != expected:
            raise InvalidStatement(f"{key}: expected {expected}, got {document.get(key)!r}")
    try:
        statement = _statement_read(document)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise InvalidStatement(f"not as `gpu-ami certify --sign` writes it: {error!r}") from error
    if statement.to_bytes() != payload:
        raise InvalidStatement("not as `gpu-ami certify --sign` writes it: it has further or reordered content")
    return statement


def _is_signable(name: str) -> bool:
    if name in (CERTIFICATE_FILE, REPORT_FILE, BOM_FILE, *PAGES):
        return True
    first, *below = name.split("/")
    return first in _FOLDERS and bool(below) and all(map(foreign_names.is_name, below))


def _statement_read(document: Mapping[str, object]) -> Statement:
    subjects, predicate = document["subject"], document["predicate"]
    if not isinstance(subjects, list) or not isinstance(predicate, dict):
        raise TypeError("subject and predicate")
    ami, region, root, snapshots = "", "", "", []
    files: dict[str, str] = {}
    for subject in subjects:
        name, digest = subject["name"], subject["digest"]
        arn = _ARN.fullmatch(name)
        if arn and arn["kind"] == "image":
            ami, region = arn["id"], arn["region"]
        elif arn:
            snapshots.append(arn["id"])
        elif name == INVENTORY_ROOT:
            root = digest[SHA256]
        elif _is_signable(name):
            files[name] = digest[SHA256]
        else:
            raise ValueError(f"subject {name!r}")
    plan = predicate["configuration"][0] if predicate["configuration"] else None
    statement = Statement(
        ami=ami,
        region=region,
        snapshots=tuple(snapshots),
        files=files,
        inventory_root=root,
        plan_digest=f"sha256:{plan['digest'][SHA256]}" if plan else "",
        passed=tuple(predicate["passedTests"]),
        warned=tuple(predicate["warnedTests"]),
        recipe=plan["annotations"]["recipe"] if plan else "",
        failed=tuple(predicate["failedTests"]),
    )
    for field, (expected, has_type) in field_tests(Statement).items():
        if not has_type(getattr(statement, field)):
            raise TypeError(f"{field}: expected {expected}")
    return statement
