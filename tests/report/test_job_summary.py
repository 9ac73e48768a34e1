"""summary.md says the verdict first, then what failed, whatever the machine wrote."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_ami.report import certificate, job_summary
from tests.report.examples import a_check, a_host, a_report, everything


def lines(*args: object) -> list[str]:
    report = args[0] if args else everything()
    return job_summary.markdown(report, certificate.certify(report, [])).splitlines()  # type: ignore[arg-type]


def test_the_verdict_is_the_first_line() -> None:
    assert lines()[0] == "## x: FAIL, no certificate"
    assert lines(a_report(a_host()))[0] == "## x: PASS, certified"
    assert "**Incomplete:** the run was interrupted" in lines()


def test_every_machine_has_a_row() -> None:
    rows = [line for line in lines() if line.startswith("| p")]
    assert rows == [
        "| p4d.24xlarge | UNPROVEN | none: no SSH within 600 s |",
        "| p5.48xlarge | UNAVAILABLE | none: InsufficientInstanceCapacity |",
        "| p5.48xlarge | UNPROVEN | not booted |",
    ]


def test_a_failed_check_has_its_promise_and_the_first_lines_of_its_message() -> None:
    message = "\n".join(f"line {number}" for number in range(30))
    text = lines(a_report(a_host("g5.12xlarge", a_check("efa", "FAIL", message=message))))
    assert "**FAIL** g5.12xlarge `efa::test_it`: efa keeps it." in text
    assert "    line 11" in text and "    line 12" not in text
    assert "    (18 more lines in report.html)" in text


def test_a_message_cannot_break_the_page() -> None:
    """What a machine printed stays in its block: no table, no HTML, no terminal colours."""
    message = "\x1b[31m</details> | <script>alert(1)</script>\u202e"
    host = replace(a_host("g5.12xlarge", a_check("efa", "FAIL", message=message)), error="a|b")
    text = lines(a_report(host))
    assert "    </details> | <script>alert(1)</script>⟨U+202E⟩" in text
    assert any(line.endswith(r"a\|b |") for line in text)


def test_many_failures_are_cut(tmp_path: Path) -> None:
    checks = [a_check("efa", "FAIL", id=f"efa::test_{number}") for number in range(45)]
    report = a_report(a_host("g5.12xlarge", *checks))
    path = job_summary.write(report, certificate.certify(report, []), tmp_path)
    text = path.read_text()
    assert (path.name, text.count("**FAIL**")) == ("summary.md", 40)
    assert "5 more in report.html." in text
