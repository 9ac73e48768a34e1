"""A whole plan against an HTTP server: what is found, the exit code, deadlines.

The table of a survey.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.recipes import ResolvedPlan
from gpu_ami.sources.http import Client, Limits
from gpu_ami.sources.survey import PINNED, Finding, ReadIndex, Survey, as_table, survey

from .conftest import PACKAGES, PATIENT, Response, Signer, Web, put_apt, put_dnf, stall

A, B = "a" * 40, "b" * 40


def plan(web: Web, signer: Signer, family: str = "debian", **sections: Any) -> ResolvedPlan:
    """A plan of a repository's packages, an installer and a git tag, all of which the server has."""
    key = {"key_url": f"{web.url}/key.pub", "key_fingerprint": signer.fingerprint}
    folder = "flat" if family == "debian" else "rpm"
    repository = {"url": f"{web.url}/{folder}/", "suite": "./", "components": [], **key}
    version = "1.0-1" if family == "debian" else "1.0-1.amzn2023"
    document = {
        "image": "test", "digest": "sha256:1", "os": {"family": family}, "architecture": "x86_64",
        "source_ami": {"owner": "amazon", "name": "base-*"},
        "roles": ["tool", "installer", "built", "base", "hygiene"],
        "tool": {"version": "1.0", "package": "tool", "package_version": version, "repository": repository},
        "installer": {"version": "2", "url": f"{web.url}/i.tar.gz", "signature_url": f"{web.url}/i.tar.gz.sig", **key},
        "built": {"version": "1.0", "url": f"{web.url}/built.git", "tag": "v1.0", "commit": A},
        "base": {"version": "9", "provided_by": "DLAMI 7"},
        "hygiene": {},
    }  # fmt: skip
    return cast(ResolvedPlan, document | sections)


@pytest.fixture
def served(web: Web, vendor: Signer) -> Web:
    put_apt(web, vendor)
    put_dnf(web, vendor)
    web.put("/key.pub", vendor.public)
    web.put("/i.tar.gz", b"x" * 2_500_000)
    web.put("/i.tar.gz.sig", vendor.sign(b"x", "--detach-sign"))
    web.put("/built.git/info/refs?service=git-upload-pack", f"{A}\trefs/tags/v1.0\n{B}\trefs/tags/v1.1\n".encode())
    return web


def states(result: Survey) -> dict[str, str]:
    return {
        f"{finding.component} {finding.item}": finding.state
        for finding in result.findings
        if finding.state != "unasked"
    }


def finding_of(result: Survey, component: str) -> Finding:
    return next(finding for finding in result.findings if finding.component == component)


@pytest.mark.parametrize("family", ["debian", "redhat"])
def test_everything_is_there(served: Web, client: Client, vendor: Signer, family: str) -> None:
    result = survey(plan(served, vendor, family), client)
    assert states(result) == {"tool tool": "there", "installer i.tar.gz": "there", "built built.git": "there"}
    assert result.exit_code == 0
    tool = finding_of(result, "tool")
    assert tool.signature == vendor.fingerprint and tool.key_days in (399, 400)
    assert tool.newer == (("2.0-1",) if family == "debian" else ())
    assert finding_of(result, "installer").details == ("2.5 MB",)
    assert finding_of(result, "built").newer == ("v1.1",)
    assert [(index.url, index.signed_by) for index in result.indexes] == [(tool.source, vendor.fingerprint)]
    assert {finding.component: finding.details for finding in result.findings if finding.state == "unasked"} == {
        "base": ("part of the base AMI (DLAMI 7)",),
        "source_ami": ("asked with --where FILE alone",),
    }


def test_missing_version_and_missing_name_have_what_is_near(served: Web, client: Client, vendor: Signer) -> None:
    document = plan(served, vendor)
    repository = document["tool"]["repository"]  # type: ignore[typeddict-item]
    packages = {"tool": "1.5-1", "libtoool": "1.0-1"}
    result = survey(plan(served, vendor, tool={"version": "1", "packages": packages, "repository": repository}), client)
    by_item = {finding.item: finding for finding in result.findings}
    assert by_item["tool"].state == by_item["libtoool"].state == "missing" and result.exit_code == 2
    assert by_item["tool"].near == ("tool 1.0-1", "tool 2.0-1") and by_item["tool"].newer == ("2.0-1",)
    assert by_item["libtoool"].near[0] == "libtool 2.0-1"


def test_missing_dependency_is_missing(served: Web, client: Client, vendor: Signer) -> None:
    put_apt(served, vendor, PACKAGES.replace("libtool (= 1.0-1)", "libtool (= 1.5-1)"))
    result = survey(plan(served, vendor), client)
    assert finding_of(result, "tool").state == "missing" and result.exit_code == 2
    assert finding_of(result, "tool").details == ("tool 1.0-1 needs libtool = 1.5-1; the repository has 2.0-1, 1.0-1",)


def test_dependency_that_apt_would_not_choose_is_noted_where_the_role_does_not_pin_it(
    served: Web, client: Client, vendor: Signer
) -> None:
    tool = plan(served, vendor)["tool"]  # type: ignore[typeddict-item]
    result = survey(plan(served, vendor, roles=["tool", "nvidia_driver"], nvidia_driver=tool), client)
    assert finding_of(result, "tool").details == (
        "tool 1.0-1 needs libtool = 1.0-1; apt would take 2.0-1: pin libtool",
    )
    assert finding_of(result, "nvidia_driver").details == () and result.exit_code == 0


def test_roles_that_pin_dependencies_are_known() -> None:
    tasks = Path(__file__).resolve().parents[2].glob("roles/*/tasks/*.yml")
    pinning = {
        file.parts[-3] for file in tasks if re.search(r"^    vendor_packages_pin:", file.read_text(), re.MULTILINE)
    }
    assert pinning == PINNED


def test_planned_version_of_another_component_counts(served: Web, client: Client, vendor: Signer) -> None:
    repository = plan(served, vendor)["tool"]["repository"]  # type: ignore[typeddict-item]
    other = {"version": "2", "package": "libtool", "package_version": "2.0-1", "repository": repository}
    document = plan(served, vendor, roles=["tool", "other"], other=other)
    result = survey(document, client)
    assert finding_of(result, "tool").details == ("tool 1.0-1 needs libtool = 1.0-1; the plan has libtool 2.0-1",)


@pytest.mark.parametrize(
    ("fault", "code", "state", "message"),
    [
        ("index missing", 2, "missing", "no InRelease and no Release"),
        ("other key", 2, "wrong", "signed by another key"),
        ("expired key", 2, "wrong", "expired on 2020-01-02"),
        ("key missing", 2, "missing", "key.pub: HTTP 404"),
        ("unreachable", 4, "unreachable", "HTTP 503"),
    ],
)
def test_index_that_cannot_be_used_is_said_once(
    served: Web, client: Client, signers: dict[str, Signer], fault: str, code: int, state: str, message: str
) -> None:
    vendor, document = signers["vendor"], plan(served, signers["vendor"], roles=["tool"])
    if fault == "index missing":
        served.files.pop("/flat/InRelease")
    elif fault == "other key":
        put_apt(served, signers["other"])
    elif fault == "expired key":
        served.put("/key.pub", signers["expired"].public)
        document = plan(served, signers["expired"], roles=["tool"])
    elif fault == "key missing":
        served.files.pop("/key.pub")
    elif fault == "unreachable":
        served.put("/flat/InRelease", b"", status=503)
    result = survey(document, client)
    first, package = (finding for finding in result.findings if finding.state != "unasked")
    assert (first.state, package.state) == (state, "unknown") and message in first.details[0]
    assert result.exit_code == code and result.indexes == [] and vendor


def test_each_source_is_judged_though_another_fails(served: Web, client: Client, signers: dict[str, Signer]) -> None:
    vendor = signers["vendor"]
    served.put("/flat/InRelease", b"", status=503)
    served.files.pop("/i.tar.gz")
    result = survey(plan(served, vendor), client)
    assert states(result) == {
        "tool index": "unreachable", "tool tool": "unknown", "installer i.tar.gz": "missing",
        "built built.git": "there",
    }  # fmt: skip
    assert result.exit_code == 2  # what is missing is certain; the rest can be asked again


def test_installer_with_a_signature_of_another_key(served: Web, client: Client, signers: dict[str, Signer]) -> None:
    served.put("/i.tar.gz.sig", signers["other"].sign(b"x", "--detach-sign"))
    result = survey(plan(served, signers["vendor"]), client)
    assert (
        finding_of(result, "installer").state == "wrong"
        and "i.tar.gz.sig: made by" in finding_of(result, "installer").details[0]
    )


@pytest.mark.parametrize(("tag", "commit", "state"), [("v1.0", B, "wrong"), ("v1.0.1", A, "missing")])
def test_tag_that_moved_or_is_not_there(
    served: Web, client: Client, vendor: Signer, tag: str, commit: str, state: str
) -> None:
    built = {"version": "1", "url": f"{served.url}/built.git", "tag": tag, "commit": commit}
    finding = finding_of(survey(plan(served, vendor, built=built), client), "built")
    assert finding.state == state
    assert finding.details or finding.near[0] in ("v1.0", "v1.1")


def test_source_that_stalls_ends_at_the_deadline(served: Web, vendor: Signer) -> None:
    served.files["/flat/InRelease"] = Response(write=stall)
    client = Client(limits=Limits(idle_s=60, total_s=60))
    started = time.monotonic()
    result = survey(plan(served, vendor, roles=["tool"]), client, deadline_s=1)
    assert time.monotonic() - started < 15
    assert finding_of(result, "tool").state == "unreachable" and result.exit_code == 4
    assert finding_of(result, "tool").details == (f"{served.url}/flat/: no answer within 1 s",)


def test_key_that_ends_soon_is_noted(served: Web, client: Client, vendor: Signer, monkeypatch: Any) -> None:
    now = time.time()
    monkeypatch.setattr("gpu_ami.sources.openpgp.time.time", lambda: now + 390 * 86400)
    finding = finding_of(survey(plan(served, vendor, roles=["tool"]), client), "tool")
    assert finding.key_days in (9, 10) and f"the key {vendor.fingerprint} expires in" in finding.details[-1]


@pytest.mark.parametrize(
    ("error", "state", "code"),
    [(None, "there", 0), (UsageError("no AMI"), "missing", 2), (CloudError("no answer"), "unreachable", 4)],
)
def test_source_ami(
    served: Web, client: Client, vendor: Signer, error: Exception | None, state: str, code: int
) -> None:
    def resolve() -> dict[str, str]:
        if error:
            raise error
        return {"id": "ami-1", "name": "base-1", "created": "2026-11-01T00:00:00Z", "through": "ssm:/x"}

    result = survey(plan(served, vendor, roles=[]), client, resolve_ami=resolve)
    assert finding_of(result, "source_ami").state == state
    assert result.exit_code == code


def test_sources_are_asked_at_the_same_time(served: Web, vendor: Signer) -> None:
    """Ten repositories at a delay that adds up to seconds where they are asked one after the other."""
    roles = [f"tool{number}" for number in range(10)]
    key = {"key_url": f"{served.url}/key.pub", "key_fingerprint": vendor.fingerprint}
    sections = {}
    for role in roles:
        put_apt(served, vendor, path=f"/{role}/")
        repository = {"url": f"{served.url}/{role}/", "suite": "./", **key}
        sections[role] = {"version": "1", "package": "tool", "package_version": "1.0-1", "repository": repository}
    served.delay_s = 0.5
    result = survey(plan(served, vendor, roles=roles, **sections), Client(limits=PATIENT))
    assert len(result.indexes) == 10 and result.exit_code == 0
    # 1 key, 10 times InRelease and Packages: 21 requests
    assert len(served.requests) == 21 and result.seconds < 21 * 0.5


def test_file_without_a_signature_is_shown_by_size_and_etag(served: Web, client: Client, vendor: Signer) -> None:
    driver = {"version": "580.65.06", "url": f"{served.url}/driver.run"}
    document = plan(served, vendor, roles=["nvidia_driver"], nvidia_driver=driver)
    missing = survey(document, client)
    assert (finding_of(missing, "nvidia_driver").state, missing.exit_code) == ("missing", 2)
    served.put("/driver.run", b"x" * 3_000_000, headers={"ETag": '"0123-45"'})
    result = survey(document, Client(limits=PATIENT))
    found = finding_of(result, "nvidia_driver")
    assert (found.item, found.state, result.exit_code) == ("driver.run", "there", 0)
    assert found.details == ("3.0 MB", 'ETag "0123-45"', "no digest is planned", "the vendor publishes no signature")


def test_planned_digest_of_such_a_file_is_shown(served: Web, client: Client, vendor: Signer) -> None:
    served.put("/driver.run", b"x")
    driver = {"version": "580.65.06", "url": f"{served.url}/driver.run", "sha256": "0123456789abcdef" * 4}
    result = survey(plan(served, vendor, roles=["nvidia_driver"], nvidia_driver=driver), client)
    assert f"sha256 {driver['sha256']} is compared when it is installed" in finding_of(result, "nvidia_driver").details


FINGERPRINT = "A" * 24 + "0123456789ABCDEF"
FINDINGS = [
    Finding("cuda", "cuda-toolkit-13-0", "13.0.2-1", "there", "https://v/", (), (), ("13.0.4-1",), FINGERPRINT, 31),
    Finding("dcgm", "dcgm", "1:4.6.1-1", "missing", "https://v/", (), ("dcgm 1:4.5-1",), (), FINGERPRINT, None),
    Finding("efa", "index", "", "unreachable", "https://w/", ("https://w/: HTTP 503",)),
    Finding("gdrcopy", "gdrcopy.git", "v2.5", "there", signature="commit 0123456789ab"),
    Finding("container_toolkit", "docker.io", "", "unasked", details=("the operating system's own archive",)),
]


def test_table() -> None:
    survey = Survey("test", "sha256:1", "2026-11-22T00:00:00Z", FINDINGS, [ReadIndex("https://v/", "", "", "")], 1.25)
    assert as_table(survey).splitlines() == [
        "test",
        "component  item               planned    state        newer     signed by            key days",
        "cuda       cuda-toolkit-13-0  13.0.2-1   there        13.0.4-1  0123456789ABCDEF     31",
        "dcgm       dcgm               1:4.6.1-1  missing                0123456789ABCDEF     no end",
        "    not in https://v/",
        "    nearest: dcgm 1:4.5-1",
        "efa        index                         unreachable",
        "    https://w/: HTTP 503",
        "gdrcopy    gdrcopy.git        v2.5       there                  commit 0123456789ab",
        "",
        "not asked (the operating system's own archive): container_toolkit docker.io",
        "2 there, 1 missing, 1 unreachable; 1 indexes read; 1.2 s",
    ]
    assert survey.exit_code == 2
