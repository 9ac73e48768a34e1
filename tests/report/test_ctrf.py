"""ctrf.json: what was not proven is skipped, what broke is other, and neither counts as passed."""

from __future__ import annotations

from gpu_ami.report import writer
from tests.report.examples import a_check, a_host, a_report, error_host


def test_every_check_is_a_test_with_its_status() -> None:
    further = (a_check("cuda", "UNPROVEN"), a_check("hygiene", "FAIL"), a_check("mine", "ERROR"))
    results = writer.ctrf_document(a_report(a_host("g5.12xlarge", *further), error_host()))["results"]
    status = {test["name"]: test["status"] for test in results["tests"]}
    assert status["boot::test_it"] == "passed"
    assert (status["cuda::test_it"], status["hygiene::test_it"], status["mine::test_it"]) == (
        "skipped",
        "failed",
        "other",
    )
    assert status["p4d.24xlarge: the machine can be checked"] == "other"
    counts = results["summary"]
    assert (
        counts["tests"]
        == len(results["tests"])
        == sum(counts[name] for name in ("passed", "failed", "skipped", "other"))
    )
    assert counts["stop"] - counts["start"] == 600_000


def test_an_interrupted_proof_is_not_all_passed() -> None:
    results = writer.ctrf_document(a_report(a_host(), incomplete="interrupted"))["results"]
    assert results["summary"]["other"] == 1
