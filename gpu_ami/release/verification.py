"""Verifies a certificate: who signed it, whether every file is as it was signed, its level, its age and its waivers.

A point that is not right is refused by its name (docs/release.md lists them). After a refusal of the envelope nothing
else is looked at, because nothing else is known to be of the publisher.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, TypedDict

from gpu_ami.errors import UsageError, counted
from gpu_ami.plan import SITE_FOLDER
from gpu_ami.release import statement
from gpu_ami.release.keys import TrustedKey
from gpu_ami.release.statement import CERTIFICATE_FILE, REPORT_FILE, Statement
from gpu_ami.report import PASS, Report
from gpu_ami.report import certificate as certificates
from gpu_ami.report import document as reports
from validator import file_account, foreign_names
from validator.file_account import InvalidInventory, Inventory, merkle_root
from validator.results import InvalidRecord

HELD, REFUSED, NOT_LOOKED_AT = "held", "refused", "not looked at"
EXIT_REFUSED = 6


@dataclass(frozen=True)
class Finding:
    """One point. name: stable, for programs; hint: what to do about a refusal."""

    name: str
    state: Annotated[str, (HELD, REFUSED, NOT_LOOKED_AT)]
    text: str
    hint: str = ""


class FindingsDocument(TypedDict):
    """The points of a verification (docs/release.md). verified: no point was refused (exit code 0, else 6)."""

    certificate: str
    verified: bool
    points: list[Finding]


@dataclass
class Findings:
    """The points of a verification, in the order in which they were looked at."""

    certificate: str
    points: list[Finding] = field(default_factory=list)

    def hold(self, name: str, text: str) -> None:
        self.points.append(Finding(name, HELD, text))

    def refuse(self, name: str, text: str, hint: str) -> None:
        self.points.append(Finding(name, REFUSED, text, hint))

    def skip(self, name: str, text: str) -> None:
        self.points.append(Finding(name, NOT_LOOKED_AT, text))

    @property
    def refused(self) -> Sequence[Finding]:
        return [point for point in self.points if point.state == REFUSED]

    @property
    def exit_code(self) -> int:
        """0 verified, 6 refused."""
        return EXIT_REFUSED if self.refused else 0

    def to_json(self) -> dict[str, object]:
        """As FindingsDocument."""
        points = [asdict(point) for point in self.points]
        return {"certificate": self.certificate, "verified": not self.refused, "points": points}

    def text(self) -> str:
        lines = []
        for point in self.points:
            lines.append(f"{point.state:14} {point.name}: {point.text}")
            lines += [f"{'':14} → {point.hint}"] if point.hint else []
        verdict = f"REFUSED: {', '.join(point.name for point in self.refused)}" if self.refused else "VERIFIED"
        return "\n".join([*lines, "", f"{verdict}: {self.certificate}"])


LEVELS = (certificates.REHEARSED, certificates.CERTIFIED)  # the weaker first
_AGAIN = "get the folder again from its publisher"
_LARGEST = 256 << 20  # bytes of a signed file; an inventory of 400,000 entries has some 15 MiB


@dataclass(frozen=True)
class Requirements:
    """What a certificate must meet. level: at least this one; ami: must be its AMI; max_age: since the proof's end."""

    level: str = certificates.CERTIFIED
    ami: str = ""
    max_age: datetime.timedelta | None = None


@dataclass
class Verified:
    """A certificate whose signature and files hold, for what else is compared with it.

    contents: signed documents and files of the site, by name.
    """

    folder: Path
    statement: Statement
    certificate: certificates.Certificate
    report: Report
    inventory: Inventory | None
    contents: Mapping[str, bytes]

    def write_site(self, folder: Path) -> list[Path]:
        """Writes the site's files as they were signed into a folder; returns the folder of its roles, if it has any."""
        for name, data in self.contents.items():
            if _short(name) == SITE_FOLDER:
                path = foreign_names.join(folder, *name.split("/"))
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(data)
        roles = folder / SITE_FOLDER / "roles"
        return [roles] if roles.is_dir() else []


class _Refused(Exception):
    """A file could not be read; it has been refused already."""


def verify(
    folder: Path, trusted: Sequence[TrustedKey], asked: Requirements, now: datetime.datetime
) -> tuple[Findings, Verified | None]:
    """Verifies the certificate in a folder. None: too much was refused to go on with it.

    now: in UTC. UsageError: there is no such folder.
    """
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder", hint="name the folder of a certificate, or its certificate.json")
    findings = Findings(str(folder))
    try:
        signed = _statement(folder, trusted, now.date(), findings)
        contents = _signed_files(folder, signed, findings)
        verified = _documents(folder, signed, contents, findings)
    except _Refused:
        return findings, None
    _compare_image(verified, asked, findings)
    _judge(verified, asked, now, findings)
    return findings, verified


def _statement(folder: Path, trusted: Sequence[TrustedKey], today: datetime.date, findings: Findings) -> Statement:
    try:
        data = _read(folder, statement.ENVELOPE_FILE)
    except _Unusable as problem:
        absent = problem.name == "missing-file"
        hint = "`gpu-ami certify --sign KEY` signs a certificate" if absent else problem.hint
        findings.refuse("no-signature" if absent else problem.name, str(problem), hint)
        raise _Refused from problem
    try:
        signed = statement.open_envelope(data, trusted, today)
    except statement.RefusedEnvelope as error:
        findings.refuse(error.name, str(error), error.hint)
        raise _Refused from error
    signers = ", ".join(f"{key.name} (key {key.key.keyid[:16]})" for key in signed.signers)
    findings.hold("signature", f"signed by {signers}")
    try:
        parsed = statement.parse(signed.payload)
    except statement.InvalidStatement as error:
        findings.refuse("damaged-statement", str(error), "sign the certificate with `gpu-ami certify --sign`")
        raise _Refused from error
    missing = [name for name in (CERTIFICATE_FILE, REPORT_FILE) if name not in parsed.files]
    if missing:
        findings.refuse("damaged-statement", f"it does not name {' and '.join(missing)}", _AGAIN)
        raise _Refused
    return parsed


def _signed_files(folder: Path, signed: Statement, findings: Findings) -> dict[str, bytes]:
    """The documents and site files of the statement. _Refused: one of all its files is not there, or was changed."""
    contents: dict[str, bytes] = {}
    problems: dict[tuple[str, str], list[str]] = {}
    for name, expected in sorted(signed.files.items()):
        try:
            data = _read(folder, name)
            digest = hashlib.sha256(data).hexdigest()
            if digest != expected:
                text = f"{name}: SHA-256 {digest[:16]}…, signed {expected[:16]}…"
                raise _Unusable(f"changed-{_short(name)}", text, f"it was changed after it was signed: {_AGAIN}")
        except _Unusable as problem:
            texts = problems.setdefault((problem.name, problem.hint), [])
            texts += [str(problem)] if str(problem) not in texts else []
            continue
        if _short(name) not in _ONLY_COMPARED:
            contents[name] = data
    for (refusal, hint), texts in problems.items():
        findings.refuse(refusal, _listed(texts, "; "), hint)
    if problems:
        raise _Refused
    groups: dict[str, list[str]] = {}
    for name in signed.files:
        groups.setdefault(_short(name), []).append(name)
    for group in sorted(groups, key=_ORDER.index):
        names = groups[group]
        shown = names[0] if len(names) == 1 else f"{len(names)} files" if group in _FOLDERS else ", ".join(names)
        findings.hold(group, f"{shown} {'is as it was' if len(names) == 1 else 'are as they were'} signed")
    _name_unsigned(folder, signed, findings)
    return contents


def _name_unsigned(folder: Path, signed: Statement, findings: Findings) -> None:
    """Files that look as if they were part of the proof, and that nobody signed: none of them is read."""
    below = [path for name in _FOLDERS for path in sorted((folder / name).rglob("*"))]
    present = [*(folder / name for name in statement.PAGES), *below]
    names = [path.relative_to(folder).as_posix() for path in present if path.is_symlink() or path.is_file()]
    unsigned = [name for name in names if name not in signed.files and "__pycache__" not in name]
    if unsigned:
        findings.skip("unsigned", f"not signed and not used, do not rely on it: {_listed(unsigned, ', ')}")


def _listed(texts: Sequence[str], separator: str) -> str:
    rest = len(texts) - _SHOWN
    return separator.join([*texts[:_SHOWN], *([f"and {rest} more"] if rest > 0 else [])])


_SHOWN = 20
_FOLDERS = (statement.EVIDENCE_FOLDER, SITE_FOLDER)
_ORDER = ("certificate", "report", "bom", "inventory", "pages", *_FOLDERS)
_ONLY_COMPARED = ("pages", statement.EVIDENCE_FOLDER)  # shown to people, or of many megabytes


def _short(name: str) -> str:
    """The group of a signed file, of which the names of findings are made."""
    if name.endswith(f"/{file_account.KEPT_FILE}"):
        return "inventory"
    documents = {CERTIFICATE_FILE: "certificate", REPORT_FILE: "report", statement.BOM_FILE: "bom"}
    return documents.get(name) or ("pages" if name in statement.PAGES else name.partition("/")[0])


class _Unusable(Exception):
    """A file that cannot be read, or is another one: name of the refusal, text and hint."""

    def __init__(self, name: str, text: str, hint: str) -> None:
        super().__init__(text)
        self.name, self.hint = name, hint


def _read(folder: Path, name: str) -> bytes:
    """The bytes of a regular file below the folder; links are not followed, of the file and of its directories."""
    path = folder
    for part in Path(name).parts:
        path = path / part
        if path.is_symlink():
            raise _Unusable("symbolic-link", f"{path} is a symbolic link", f"copy the file itself: {_AGAIN}")
    try:
        return foreign_names.read_bytes(path, _LARGEST)
    except foreign_names.NameRefused as error:
        raise _Unusable("missing-file", str(error), _AGAIN) from error
    except OSError as error:
        hint = f"{_AGAIN}, with all its files"
        raise _Unusable("missing-file", f"{path}: {error.strerror}", hint) from error


def _documents(folder: Path, signed: Statement, contents: dict[str, bytes], findings: Findings) -> Verified:
    """The documents in the signed files. _Refused: one is damaged, or they contradict each other."""
    try:
        certificate = certificates.Certificate.from_json(_json(contents[CERTIFICATE_FILE], certificates.SCHEMA))
        document = _json(contents[REPORT_FILE], reports.SCHEMA)
        report = Report.from_json(document)
    except (statement.InvalidJson, InvalidRecord) as error:
        duplicate = isinstance(error, statement.InvalidJson) and error.duplicate
        name = "duplicate-keys" if duplicate else "damaged-certificate"
        findings.refuse(name, str(error), "write and sign it again: `gpu-ami certify --sign KEY`")
        raise _Refused from error
    if certificate.report_sha256 != certificates.report_digest(document):
        text = f"the certificate is of a report with digest {certificate.report_sha256[:23]}…, not of this report.json"
        findings.refuse("other-report", text, _AGAIN)
        raise _Refused
    inventory = _inventory(signed, report, contents, findings)
    return Verified(folder, signed, certificate, report, inventory, contents)


def _json(data: bytes, schema: str) -> Mapping[str, object]:
    document = statement.loads(data)
    if document.get("schema") != schema:
        raise InvalidRecord(f"expected schema {schema!r}, got {document.get('schema')!r}")
    return document


def _inventory(
    signed: Statement, report: Report, contents: Mapping[str, bytes], findings: Findings
) -> Inventory | None:
    name = statement.inventory_of(report, signed.files)[0] if signed.inventory_root else ""
    if not name:
        text = "the proof kept none (`gpu-ami validate --root` or --account-files does)"
        findings.skip("inventory", f"no inventory of the image's files: {text}")
        return None
    try:
        inventory = file_account.read(contents[name])
    except (InvalidInventory, LookupError, TypeError) as error:
        findings.refuse("damaged-inventory", f"{name}: {error}", _AGAIN)
        raise _Refused from error
    root = merkle_root(inventory)
    if root != signed.inventory_root:
        text = f"root {root[:16]}… of {len(inventory.entries)} entries, signed {signed.inventory_root[:16]}…"
        findings.refuse("inventory-root", text, _AGAIN)
        raise _Refused
    findings.hold("inventory-root", f"{root[:16]}… of {len(inventory.entries)} entries")
    return inventory


def _compare_image(verified: Verified, asked: Requirements, findings: Findings) -> None:
    """Statement, certificate and what was asked for are about the same AMI."""
    signed, image = verified.statement, verified.certificate.image
    if asked.ami and image.ami != asked.ami:
        text = f"the certificate is of {image.ami or 'a host'}, not of {asked.ami}"
        findings.refuse("other-ami", text, f"name the certificate of {asked.ami} with --certificate")
    if signed.ami != image.ami:
        findings.refuse("other-ami", f"signed for {signed.ami or 'no AMI'}, the certificate is of {image.ami}", _AGAIN)
    elif image.ami and signed.region != image.region:
        findings.refuse("other-region", f"signed for {signed.region}, the certificate is of {image.region}", _AGAIN)
    if signed.plan_digest != verified.certificate.plan_digest:
        text = (
            f"signed for plan {signed.plan_digest[:23]}…, the certificate has {verified.certificate.plan_digest[:23]}…"
        )
        findings.refuse("other-plan", text, _AGAIN)
    if not findings.refused:
        findings.hold("image", f"{image.ami or 'a host'} {f'in {image.region} ' if image.region else ''}({image.name})")


def _judge(verified: Verified, asked: Requirements, now: datetime.datetime, findings: Findings) -> None:
    """Level, verdict, age and waivers."""
    certificate, report = verified.certificate, verified.report
    supported = certificates.level_of(report)
    claims_more = certificate.level not in LEVELS[: LEVELS.index(supported) + 1] if supported in LEVELS else True
    if claims_more or certificate.verdict != report.verdict or report.verdict != PASS:
        text = f"the certificate says {certificate.level}, its report supports {supported} ({report.verdict})"
        findings.refuse("level-of-report", text, "do not use it; ask the signer how it was made")
    elif LEVELS.index(certificate.level) < LEVELS.index(asked.level):
        text = f"{certificate.level}, {asked.level} was asked for"
        hint = "prove the image on real hardware, or accept a rehearsal with --level rehearsed"
        findings.refuse("level", text, hint)
    else:
        findings.hold("level", certificate.level)
    _judge_carried(report, findings)
    _judge_age(certificate, asked, now, findings)
    _judge_waivers(certificate, now.date(), findings)


def _judge_carried(report: Report, findings: Findings) -> None:
    """Checks that did not run on the image name a layer that it has."""
    digests = {(layer.name, layer.digest) for layer in report.layers}
    carried = [check for _, check in report.carried]
    foreign = [
        check.id for check in carried if check.carried and (check.carried.layer, check.carried.digest) not in digests
    ]
    if foreign:
        text = f"{foreign[0]} was carried over with a layer that the image does not have ({len(foreign)} such checks)"
        findings.refuse("carried", text, "do not use it; ask the signer how it was made")
    elif carried:
        policy = "allowed" if report.certify_carried else "not allowed"
        text = f"{counted(len(carried), 'check')} did not run on this image; level certified is {policy} with them"
        findings.hold("carried", "; ".join([text, *certificates.carried_lines(report)]))


def _judge_age(
    certificate: certificates.Certificate, asked: Requirements, now: datetime.datetime, findings: Findings
) -> None:
    try:
        finished = datetime.datetime.fromisoformat(certificate.finished)
        age = now - (finished if finished.tzinfo else finished.replace(tzinfo=datetime.UTC))
    except ValueError:
        findings.refuse("age", f"the proof's end is no time: {certificate.finished!r}", _AGAIN)
        return
    if age < -datetime.timedelta(minutes=10):
        findings.refuse(
            "future", f"the proof ended at {certificate.finished}, which is to come", "set this clock right"
        )
    elif asked.max_age is not None and age > asked.max_age:
        text = f"the proof ended {age.days} days ago, at most {asked.max_age.days} were asked for"
        findings.refuse("too-old", text, "prove the image again, or take a newer one")
    else:
        findings.hold("age", f"the proof ended {max(age.days, 0)} days ago, on {certificate.finished[:10]}")


def _judge_waivers(certificate: certificates.Certificate, today: datetime.date, findings: Findings) -> None:
    waived = {check.id: check.waived for host in certificate.proven_on for check in host.checks if check.waived}
    ended = sorted(id for id, waiver in waived.items() if waiver.expires < today.isoformat())
    for id in ended:
        waiver = waived[id]
        text = f"{id} failed; its waiver by {waiver.owner} ended on {waiver.expires}: {waiver.reason}"
        findings.refuse("waiver-expired", text, "prove the image again: the check must pass, or be waived anew")
    if not ended:
        names = ", ".join(f"{id} until {waiver.expires}" for id, waiver in sorted(waived.items()))
        findings.hold("waivers", names or "no check is waived")


def verify_path(verified: Verified, path: str, findings: Findings) -> None:
    """Whether the signed inventory, whose root was verified, has this path, and what it says of it."""
    if verified.inventory is None:
        findings.refuse("path", f"{path}: no inventory was signed", "the proof must keep one: --account-files")
        return
    entry = verified.inventory.entries.get(path)
    if entry is None:
        hint = "paths are absolute, and as they are after links (/usr/bin, not /bin)"
        findings.refuse("path", f"{path}: not in the signed inventory", hint)
        return
    content = (
        f"SHA-256 {entry.sha256}" if entry.kind == "f" else f"link to {entry.target}" if entry.target else entry.kind
    )
    owner = f"{entry.mode:04o} {entry.owner}:{entry.group}"
    of = f", package {'/'.join(entry.packages)}" if entry.packages else ""
    findings.hold("path", f"{path}: {content}, {owner}{of}; in the signed inventory")
