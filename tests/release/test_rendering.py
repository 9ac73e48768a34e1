"""A comparison as text, Markdown, HTML and JSON; what a machine says cannot become markup."""

from __future__ import annotations

from gpu_ami.release import rendering
from gpu_ami.release.comparison import Comparison, Row, Section

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
    lines = rendering.text(COMPARED).splitlines()
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
    text = rendering.markdown(COMPARED)
    assert "| cuda.version | 12.4 | 13.0 |" in text
    assert "| package <b>x</b> \\| y | - |" in text
    assert "- checks: the report of one image is not at hand" in text
    assert rendering.notes(COMPARED).splitlines()[0] == "# demo (b): changes since demo (a)"
    assert "No difference" in rendering.markdown(Comparison("a", "b", (Section("units"),)))


def test_html_is_escaped_and_whole() -> None:
    page = rendering.html(COMPARED)
    assert "<script>" not in page and "&lt;script&gt;" in page and "\x1b" not in page
    assert page.count("<tr>") == 2 and page.count('<tr class="find">') == 1 + 61
    assert "<h2>Files by component</h2>" in page and "No difference: Units." in page


def test_json_has_all() -> None:
    data = rendering.to_json(COMPARED)
    assert (data["before"], data["after"]) == ("demo (a)", "demo (b)")
    sections = data["sections"]
    assert isinstance(sections, tuple) and len(sections[1]["rows"]) == 61
