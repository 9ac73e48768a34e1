"""The results of a proof: JSON and JUnit, and Markdown and HTML.

document             the records of a report: hosts, checks, verdicts; reads report.json
writer               writes report.json, junit.xml, ctrf.json and summary.md; the last lines of a command
left_out             what a person left out of a proof on purpose
merge                joins the reports of shards
certificate          certificate.json and certificate.md
page                 report.html: stages by machine, hops by machine
page_machine         report.html: one machine, with sparklines of its GPU metrics; the bill of materials
templating           renders templates/ (Jinja2)
"""

from gpu_ami.report.document import (
    COMES_BACK,
    FAIL,
    NODE_SERVICES,
    PASS,
    UNAVAILABLE,
    UNPROVEN,
    HostReport,
    LaunchAttempt,
    Report,
    ReportLayer,
    Stage,
    evidence_folder,
)
from gpu_ami.report.left_out import LeftOut, Part

__all__ = [
    "COMES_BACK",
    "FAIL",
    "NODE_SERVICES",
    "PASS",
    "UNAVAILABLE",
    "UNPROVEN",
    "HostReport",
    "LaunchAttempt",
    "LeftOut",
    "Part",
    "Report",
    "ReportLayer",
    "Stage",
    "evidence_folder",
]
