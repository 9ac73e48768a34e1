"""report.dsse.json: the signature of a report by the job that made it, which `certify` and `merge` ask for.

`validate` and `prove` sign with a key of this machine (`$GPU_AMI_HOME/report.key`, made at first use) and the keys of
--sign. Without it a report is a file that anybody could have written: its certificate is at most `rehearsed`.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from securesystemslib.signer import Signer

from gpu_ami.errors import UsageError
from gpu_ami.files import home_dir, locked, read_json
from gpu_ami.release import keys, statement
from gpu_ami.release.keys import TrustedKey
from gpu_ami.report import certificate as certificates
from gpu_ami.report import page, writer
from validator import evidence, foreign_names
from validator.inputs import LARGEST

if TYPE_CHECKING:
    from gpu_ami.report import HostReport, Report

_KEY_FILE = "report.key"
# Written by `certify` itself after the report was signed.
_OF_CERTIFICATES = (
    statement.CERTIFICATE_FILE, statement.BOM_FILE, certificates.MARKDOWN_FILE, page.PAGE_FILE, writer.SUMMARY_FILE,
)  # fmt: skip
_ADVICE = "the job that proves signs it: `gpu-ami validate --sign KEY`; here, --key or --trust names that key"


def sign(report: Report, folder: Path, signers: Sequence[Signer] = ()) -> None:
    """Signs a report in a folder with this machine's key and further ones. UsageError, CloudError: one cannot sign.

    Whatever its verdict: a shard has none of its own. A state folder that cannot be written leaves the machine's out;
    without --sign a folder with links or odd names stays unsigned: a proof does not fail because of it.
    """
    own = _own_signer()
    everyone = [*([own] if own else []), *signers]
    try:
        payload = statement.of_report(folder, report, _names(folder)).to_bytes()
    except UsageError:
        if signers:
            raise
        return
    if everyone:
        statement.sign(payload, everyone, folder, writer.SIGNATURE_FILE)


def _own_signer() -> Signer | None:
    try:
        path = home_dir() / _KEY_FILE
        with locked(path.with_suffix(".lock")):
            if not path.exists():
                path.with_name(f"{path.name}.pub").unlink(missing_ok=True)
                keys.new_key(path)
        return keys.load_signer(str(path))
    except (UsageError, OSError):
        return None


def _names(folder: Path) -> list[str]:
    return [name for name in statement.shown_files(folder) if name not in _OF_CERTIFICATES]


def examine(
    report: Report, folder: Path, trusted: Sequence[TrustedKey] = (), signers: Sequence[Signer] = ()
) -> certificates.ReportOrigin:
    """Whether a job that is trusted made the report in a folder, and whether report and evidence are as it left them.

    trusted: keys of --key and --trust. signers: those of --sign, whose signatures are trusted, too. UsageError: links
    in the folder.
    """
    if differences := [line for host in report.hosts for line in _differences(host, folder)]:
        return certificates.ReportOrigin(refused=f"the report is not what the evidence says: {'; '.join(differences)}")
    own = _own_signer()
    known = [TrustedKey("this machine", _public(own))] if own else []
    known += [TrustedKey("--sign", _public(signer)) for signer in signers]
    try:
        data = foreign_names.read_bytes(folder / writer.SIGNATURE_FILE, LARGEST)
        signed = statement.open_envelope(data, [*trusted, *known], datetime.datetime.now(datetime.UTC).date())
        named = statement.parse(signed.payload)
    except OSError:
        return certificates.ReportOrigin(unsigned=f"report.json is not signed ({_ADVICE})")
    except statement.RefusedEnvelope as error:
        if error.name in ("unknown-key", "no-signature", "expired-key"):
            return certificates.ReportOrigin(
                unsigned=f"report.json is not signed by a key that is trusted here: {error} ({_ADVICE})"
            )
        return certificates.ReportOrigin(refused=f"{writer.SIGNATURE_FILE}: {error}")
    except ValueError as error:
        return certificates.ReportOrigin(refused=f"{writer.SIGNATURE_FILE}: {error}")
    if statement.CERTIFICATE_FILE in named.files or statement.REPORT_FILE not in named.files:
        return certificates.ReportOrigin(refused=f"{writer.SIGNATURE_FILE} is not the signature of a report")
    changed = [name for name, digest in sorted(named.files.items()) if not _is(folder, name, digest)]
    changed += [f"{name} (added)" for name in _names(folder) if name not in named.files]
    if changed:
        return certificates.ReportOrigin(refused=f"changed after the proof: {', '.join(changed[:10])}")
    return certificates.ReportOrigin()


def _public(signer: Signer) -> Any:
    return signer.public_key


def _is(folder: Path, name: str, digest: str) -> bool:
    try:
        return statement.sha256_of(folder, name) == digest
    except UsageError:
        return False


def _differences(host: HostReport, folder: Path) -> list[str]:
    """Where a host's claims are not those that its evidence was kept with; nothing of a proof that kept none."""
    try:
        path = foreign_names.join(folder, statement.EVIDENCE_FOLDER, host.evidence, evidence.FACTS_FILE)
    except foreign_names.NameRefused as error:
        hint = "take the artifact from the job that made it; a proof writes files alone"
        raise UsageError(f"the evidence is not as gpu-ami wrote it: {error}", hint=hint) from error
    kept = read_json(path)
    if kept is None:
        return [f"{path}: damaged"] if path.exists() else []
    claimed = evidence.claims(host.facts, host.replicas)
    return [
        f"{host.name}: {name} is {claimed[name]!r}, the evidence has {kept.get(name)!r}"
        for name in claimed
        if claimed[name] != kept.get(name)
    ]
