"""report.html: what a reader must see, in which order, and that no text of a report becomes part of the page."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import pipeline
from gpu_ami.release.comparison import Comparison, Row, Section
from gpu_ami.report import certificate, page, writer
from gpu_ami.report.document import CORE, FAIL, FLAKY, PASS, UNAVAILABLE, UNPROVEN, Report
from gpu_ami.report.page import VERDICTS
from gpu_ami.report.page_machine import Materials, Origin
from tests.report.examples import (
    WAIVER,
    a_check,
    a_host,
    a_report,
    error_host,
    everything,
    unavailable_host,
)  # fmt: skip
from validator.results import Hop, Replica, WaiverState

HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=y>&amp;\x1b[31mred\x1b[0m\x1b]0;title\x07\u202egnp.exe"
VOID = {"meta", "br", "img", "link", "hr", "input"}


class Reader(HTMLParser):
    """The page as a browser sees it: elements with their attributes, text, and whether what opens also closes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.headings: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {key: value or "" for key, value in attrs}))
        if tag in ("h1", "h2", "h3", "h4"):
            self.headings.append("")
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open and self._open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data: str) -> None:
        if "style" in self._open or "script" in self._open:
            return
        self.text += data
        if any(tag in ("h1", "h2", "h3", "h4") for tag in self._open):
            self.headings[-1] += data

    def having(self, tag: str, **attributes: str) -> list[dict[str, str]]:
        wanted = {key.rstrip("_"): value for key, value in attributes.items()}
        return [given for name, given in self.elements if name == tag and wanted.items() <= given.items()]


def drawn(report: Report, evidence: list[str] | None = None) -> str:
    statement = certificate.certify(report)
    return page.page(report, statement if statement.is_issued else None, evidence or [])


@pytest.mark.parametrize(
    ("report", "verdict", "level"),
    [
        (a_report(a_host()), PASS, "certified"),
        (a_report(a_host(), simulated=True), PASS, "rehearsed"),
        (a_report(a_host(xid=FAIL)), FAIL, "no certificate"),
        (a_report(a_host(xid=FLAKY)), FLAKY, "no certificate"),
        (a_report(a_host(xid=UNPROVEN)), UNPROVEN, "no certificate"),
        (a_report(a_host(), unproven=("p4d.24xlarge",)), UNPROVEN, "no certificate"),
        (a_report(a_host(), error_host()), UNPROVEN, "no certificate"),
        (a_report(a_host(), unavailable_host()), UNAVAILABLE, "no certificate"),
        (a_report(), UNPROVEN, "no certificate"),
    ],
)
def test_verdict_and_level_come_first_in_words(report: Report, verdict: str, level: str) -> None:
    read = Reader(drawn(report))
    assert " ".join(read.headings[0].split()) == f"Proof of x{VERDICTS[verdict][0]} {verdict} {level}"
    assert VERDICTS[verdict][1] in read.text
    assert read.headings[1] == "Not proven"


def test_every_verdict_of_a_check_is_told_in_words_and_signs() -> None:
    checks = [a_check("extra", verdict, id=f"extra::test_{verdict}") for verdict in VERDICTS]
    text = drawn(a_report(a_host("g5.12xlarge", *checks)))
    for verdict, (sign, _) in VERDICTS.items():
        assert f'<span class="badge {verdict}">{sign} {verdict}</span>' in text
    assert len({sign for sign, _ in VERDICTS.values()}) == len(VERDICTS)


def test_sections_in_the_order_of_reading() -> None:
    report = a_report(a_host("g5.12xlarge", a_check("logs", FAIL, waived=WAIVER)), a_host("p4d.24xlarge"))
    read = Reader(drawn(report, ["report.json", "evidence/g5.12xlarge/console.log"]))
    told = [heading.strip() for heading in read.headings]
    wanted = [
        "Not proven", "Proof tiers", "Timeline", "g5.12xlarge ✓ PASS", "p4d.24xlarge ✓ PASS", "Waivers", "Materials",
        "Differences", "Evidence",
    ]  # fmt: skip
    assert [one for one in told if one in wanted] == wanted
    levels = [int(tag[1]) for tag, _ in read.elements if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels)), "a heading level skipped"


def test_every_tier_is_told_with_what_it_does_not_prove() -> None:
    report = a_report(a_host("g5.12xlarge", a_check("gpu", FAIL, tier="T3")))
    shown = drawn(report)
    inside = shown.partition("Proof tiers")[2].partition("</section>")[0]
    for tier in report.tiers:
        assert f"{tier['name']} {tier['title']}" in inside and f"Does not prove {tier['does_not_prove']}" in inside
    assert re.findall(r'class="badge (\w+)"', inside) == [UNPROVEN, PASS, UNPROVEN, FAIL, UNPROVEN]


def test_failures_stand_open_and_passes_folded() -> None:
    read = Reader(drawn(a_report(a_host(xid=FAIL, logs=UNPROVEN))))
    checks = [given for given in read.having("details") if given["class"].startswith("check")]
    assert len(checks) == len(CORE)
    assert all(("open" in given) is (given["class"] != "check PASS") for given in checks)
    roles = {given["class"]: "open" in given for given in read.having("details") if given["class"].startswith("role")}
    assert roles == {"role FAIL": True, "role UNPROVEN": True, "role PASS": False}
    red = next(given["id"] for given in checks if given["class"] == "check FAIL")
    assert read.having("a", href=f"#{red}"), "the top has no link to the failed check"


def test_failure_shows_message_observed_and_planned_whole() -> None:
    observed, planned = {"series": [f"gpu{index}" for index in range(99)]}, "x" * 500
    failed = a_check("metrics", FAIL, observed=observed, planned=planned, message="line 1\n  line 2")
    text = Reader(drawn(a_report(a_host("g5.12xlarge", failed)))).text
    assert "line 1\n  line 2" in text
    assert json.dumps(observed, indent=1) in text
    assert planned in text


def test_not_proven_loses_no_line() -> None:
    report = everything()
    lines = certificate.certify(report).not_proven
    section = drawn(report).partition('<section class="caution"')[2].partition("</section>")[0].partition(">")[2]
    box = Reader(section)
    assert len(lines) >= 9
    assert [heading.partition(" (")[0] for heading in box.headings] == [
        "Not proven", "Missing for a certificate", "Packages replaced by a replica",
        "Checks without a verdict, or waived", "Tiers that were not reached",
        "Planned, installed by no role of this image", "Noted in the plan",
        "In no certificate", "Real hardware",
    ]  # fmt: skip
    common = "^the vendor's own package of |: a replica was .*$|: planned, installed by no .*|^noted in .*?: "
    for line in lines:
        assert re.sub(common, "", line) in box.text, line


def not_proven_of(report: Report) -> tuple[str, str]:
    """What stands open in "Not proven", and what is folded."""
    section = drawn(report).partition('<section class="caution"')[2].partition("</section>")[0]
    open_part, _, folded = section.partition("<details")
    return open_part, folded


def test_what_every_report_leaves_open_is_folded() -> None:
    """What is missing for a certificate stands first and open."""
    open_part, folded = not_proven_of(a_report(a_host(xid=UNPROVEN), simulated=True, notes=["n"]))
    assert "Missing for a certificate" in open_part and "xid: no check of it passed" in open_part
    for text in ("a PASS does not prove", "tier T0, offline: UNPROVEN", "real GPUs", "<li>n</li>", "xid::test_it"):
        assert text not in open_part and text.strip("<li>/") in folded, text


@pytest.mark.parametrize(
    ("simulated", "replicas", "lines"),
    [
        (True, 0, ["real GPUs: the GPUs were simulated"]),
        (False, 2, ["2 packages of the vendors: a replica was installed instead"]),
        (True, 1, ["real GPUs: the GPUs were simulated", "1 package of the vendors"]),
        (False, 0, ["At this level nothing is missing."]),
    ],
)
def test_what_is_missing_for_the_next_level_comes_first(simulated: bool, replicas: int, lines: list[str]) -> None:
    packages = tuple(Replica(f"nvidia-{n}", "580", "a replica") for n in range(replicas))
    skipped = a_check("hardware", UNPROVEN, id="hardware::test_nvswitches")
    host = replace(a_host("g5.12xlarge", skipped), replicas=packages)
    open_part, folded = not_proven_of(a_report(host, simulated=simulated, notes=["a note"]))
    assert all(line in open_part for line in lines)
    assert open_part.count("<li>") == (len(lines) if simulated or replicas else 0)
    assert "hardware::test_nvswitches" in folded and "a note" in folded


def test_host_that_could_not_be_checked_says_why() -> None:
    read = Reader(drawn(a_report(a_host(), error_host())))
    assert "p4d.24xlarge ? UNPROVEN" in [heading.strip() for heading in read.headings]
    assert "no SSH within 600 s\nlast lines: Kernel" in read.text
    assert "0 checks" in read.text


def test_hops_follow_each_other_and_event_is_shown() -> None:
    hops = (Hop("kernel → file", 1.0), Hop("file → agent", 3.0))
    event = {"kind": "xid", "code": 31, "origin": "kernel"}
    check = a_check("xid", hops=hops, observed=event, planned=event)
    text = drawn(a_report(a_host("g5.12xlarge", check), a_host("p4d.24xlarge", check)))
    assert "--from:0.00%;--wide:25.00%" in text and "--from:25.00%;--wide:75.00%" in text
    assert text.count("<h3>Captured event</h3>") == 4, "of each machine: the one of its xid check, and this"
    panel = text.partition("<h3>file → agent</h3>")[2].partition("</div>")[0]
    assert re.findall("<span>(.*?)</span>", panel) == ["g5.12xlarge", "3.00 s", "p4d.24xlarge", "3.00 s"]


def test_boot_and_stages_are_drawn_to_scale() -> None:
    text = drawn(a_report(a_host()))
    assert "<span>ssh</span><span>20.0 s</span>" in text and "--from:6.67%;--wide:60.00%" in text
    assert "failed after 60.0 s" in text and "--from:0.00%;--wide:50.00%" in text
    report = a_report(a_host())
    known = replace(report.stages[0], start=30.0)  # a run that knows when its stages began
    assert "--from:50.00%;--wide:50.00%" in drawn(replace(report, stages=(known, *report.stages[1:])))


@pytest.mark.parametrize("state", list(WaiverState))
def test_waivers_are_shown_with_their_state(state: WaiverState) -> None:
    report = a_report(replace(a_host(), waivers=(replace(WAIVER, state=state, scope={"image": "x"}),)))
    text = Reader(drawn(report)).text
    assert f"Waiver ({state}) of hygiene::* for image x by release until 2027-01-01: ticket 7" in text


def test_waived_failure_stays_red_and_says_waived() -> None:
    text = drawn(a_report(a_host("g5.12xlarge", a_check("logs", FAIL, waived=WAIVER))))
    assert '<span class="badge FAIL">✗ FAIL, waived</span>' in text
    assert "by release until 2027-01-01: ticket 7" in text


def hostile(value: Any) -> Any:
    """The same shape, with hostile text wherever there is text that decides nothing."""
    if isinstance(value, dict):
        fixed = ("verdict", "error_verdict", "schema", "state", "level")
        return {key: one if key in fixed else hostile(one) for key, one in value.items()}
    if isinstance(value, list):
        return [hostile(one) for one in value]
    return value + HOSTILE if isinstance(value, str) else value


def test_hostile_text_stays_text() -> None:
    event = {"kind": "xid", "code": "31"}
    further = a_check("xid", hops=(Hop("a → b", 1.0),), event=event)
    good = everything()
    good = replace(good, hosts=(good.hosts[0].with_checks(further), *good.hosts[1:]))
    names = ["evidence/g5.12xlarge/console.log", f"evidence/g5.12xlarge/{HOSTILE.replace('/', '')}"]
    bad = Report.from_json(hostile(good.to_json()))
    clean, text = Reader(page.page(good, None, names[:1])), page.page(bad, None, names)
    read = Reader(text)
    read_tags = {tag for tag, _ in read.elements}
    assert len(read.having("script")) == 1
    assert read_tags <= {tag for tag, _ in clean.elements}, read_tags
    assert "<script>alert(1)</script>" in read.text, "shown, as text"
    for attributes in (attributes for _, attributes in read.elements):
        assert not any(key.startswith("on") for key in attributes), attributes
        assert "script" not in attributes.get("class", "") + attributes.get("id", "") + attributes.get("style", "")
    text.encode("utf-8")
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f\u202e]", text)


def test_page_loads_nothing_from_anywhere() -> None:
    text = drawn(a_report(a_host(xid=FAIL), notes=["https://example.org/x"]), ["report.json"])
    read = Reader(text)
    assert not {"link", "img", "iframe", "object", "embed", "form", "base"} & {tag for tag, _ in read.elements}
    assert not any("src" in given or "srcset" in given for _, given in read.elements)
    assert all(re.match(r"#|report\.json$", given["href"]) for given in read.having("a"))
    style = text.partition("<style>")[2].partition("</style>")[0]
    assert style and "url(" not in style and "@import" not in style
    policy = next(given["content"] for given in read.having("meta") if "http-equiv" in given)
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")


def test_the_only_script_is_the_one_that_the_policy_names() -> None:
    text = drawn(everything())
    (script,) = re.findall("<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'; base-uri 'none'" in text
    assert "innerHTML" not in script, "no text of the report becomes part of the page"
    assert '<span id="search" hidden>' in text, "without the script there is no search box"


def test_materials_and_differences_are_shown_as_text() -> None:
    row = Row(HOSTILE, "1", HOSTILE)
    compared = Comparison("a", "b", (Section("packages", (row,)), Section("units"), Section("files", missing="none")))
    origin = Origin(HOSTILE, [(HOSTILE, "1"), ("libc6", "2.36")])
    beside = page.Beside(Materials("urn:uuid:1", f"debian {HOSTILE}", [origin], [], []), compared)
    read = Reader(page.page(a_report(a_host(), nvidia_driver={"version": "580.1"}), None, [], beside))
    assert not {"img"} & {tag for tag, _ in read.elements} and len(read.having("script")) == 1
    assert "2 packages" in read.text and "libc6 2.36" in read.text and "580.1" in read.text
    assert "a → b" in read.text and "No difference: Units." in read.text and "Files by component: none" in read.text


def test_page_of_600_checks_is_whole() -> None:
    checks = [a_check("hygiene", id=f"hygiene::test_{number}", observed="x" * 200) for number in range(600)]
    report = a_report(replace(a_host("g5.12xlarge", *checks)), incomplete="the run was interrupted")
    read = Reader(drawn(report))
    assert len(read.having("details", class_="check PASS")) == len(report.hosts[0].checks)
    assert "The proof is incomplete: the run was interrupted." in read.text


def test_links_within_the_page_have_a_target() -> None:
    read = Reader(drawn(a_report(a_host(xid=FAIL), a_host("p4d.24xlarge", metrics=FLAKY), error_host())))
    targets = [given["id"] for _, given in read.elements if "id" in given]
    assert len(targets) == len(set(targets))
    links = [given["href"] for given in read.having("a")]
    assert len(links) >= 6
    assert {link[1:] for link in links} <= set(targets)


def test_evidence_is_linked_only_below_the_page_and_of_this_report() -> None:
    paths = [
        "report.json", "evidence/g5.12xlarge/console.log", "evidence/g5.12xlarge/odd name:#1%.log",
        "evidence/p4d.24xlarge/console.log", "/etc/passwd", "../secret", "evidence/g5.12xlarge/../../x",
        "javascript:alert(1)",
    ]  # fmt: skip
    read = Reader(drawn(a_report(a_host()), paths))
    links = [given["href"] for given in read.having("a") if not given["href"].startswith("#")]
    assert links == [
        "report.json", "javascript%3Aalert%281%29",
        "evidence/g5.12xlarge/console.log", "evidence/g5.12xlarge/odd%20name%3A%231%25.log",
    ]  # fmt: skip
    assert "Of an earlier run, and not linked: p4d.24xlarge." in read.text


def test_evidence_of_a_host_that_came_by_address() -> None:
    host = replace(a_host(), instance_type="", instance_id="", host="ssh://admin@10.0.0.7:22")
    assert 'href="evidence/10.0.0.7_22/kernel.log"' in drawn(a_report(host), ["evidence/10.0.0.7_22/kernel.log"])


@pytest.mark.parametrize(
    "changes",
    [{"report_sha256": "sha256:0"}, {"level": "certified"}, {"verdict": FAIL}],
    ids=str,
)
def test_certificate_of_something_else_is_not_shown(changes: dict[str, Any]) -> None:
    report = a_report(a_host(), simulated=True)
    foreign = replace(certificate.certify(report), not_proven=("nothing at all",), **changes)
    read = Reader(page.page(report, foreign, ["certificate.json", "report.json"]))
    assert "no certificate" in read.headings[0]
    assert "is not its certificate" in read.text
    assert "nothing at all" not in read.text and "real GPUs: the GPUs were simulated" in read.text
    assert not read.having("a", href="certificate.json") and read.having("a", href="report.json")


def test_without_a_certificate_the_page_claims_none() -> None:
    read = Reader(page.page(a_report(a_host()), None, []))
    assert "PASS no certificate" in read.headings[0] and "No certificate was issued." in read.text
    assert "endurance" in read.text


def test_certify_stage_writes_the_page_with_links_that_exist(tmp_path: Path) -> None:
    report = a_report(a_host(), simulated=True)
    writer.write(report, tmp_path)
    folder = tmp_path / "evidence" / "g5.12xlarge"
    folder.mkdir(parents=True)
    (folder / "console.log").write_text("[    0.0] Linux")
    (folder / "elsewhere").symlink_to("/etc/hostname")
    pipeline.certify_stage(report, tmp_path)
    read = Reader((tmp_path / page.PAGE_FILE).read_text(encoding="utf-8"))
    links = [given["href"] for given in read.having("a") if not given["href"].startswith("#")]
    assert "evidence/g5.12xlarge/console.log" in links and "certificate.md" in links and len(links) == 5
    assert all((tmp_path / link).is_file() for link in links)


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, as WCAG 2 defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(scheme: str) -> None:
    style = drawn(a_report(a_host())).partition("<style>")[2].partition("</style>")[0]
    light, dark = (
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", one))
        for one in re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    )
    colours = light if scheme == "light" else light | dark
    papers = ("paper", "card", "code", "caution-paper")
    pairs = [(ink, paper) for ink in ("ink", "soft", "link") for paper in papers]
    pairs += [("on", fill) for fill in (*VERDICTS, "prepare", "build", "boot", "check")]
    pairs += [(PASS, "card"), (PASS, "paper")]
    for ink, paper in pairs:
        bright, dim = sorted((luminance(colours[ink]), luminance(colours[paper])), reverse=True)
        assert (bright + 0.05) / (dim + 0.05) >= 4.5, f"{scheme}: {ink} {colours[ink]} on {paper} {colours[paper]}"


def test_a_check_of_an_earlier_proof_says_so() -> None:
    text = drawn(everything())
    assert "carried over: did not run on this image; proven on 2025-12-31 on ami-0 by report sha256:2" in text
    assert "1 check of layer driver did not run on this image" in text
