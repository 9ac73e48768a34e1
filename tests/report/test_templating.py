"""Values as templates print them."""

from __future__ import annotations

import pytest

from gpu_ami.report import templating
from gpu_ami.report.templating import short, visible


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("<b>&\"'", "<b>&\"'"),
        ("\x1b[1;31mFAIL\x1b[0m", "FAIL"),
        ("a\x1b]0;x\x07\x00\rb\x7f", "a⟨U+001B⟩]0;x⟨U+0007⟩⟨U+0000⟩⟨U+000D⟩b⟨U+007F⟩"),
        ("one\r\ntwo\tthree", "one\ntwo\tthree"),
        ("exe.\u202egnp \ud800", "exe.⟨U+202E⟩gnp ⟨U+D800⟩"),
        (None, "None"),
    ],
)
def test_invisible_characters_are_written_out(value: object, shown: str) -> None:
    assert visible(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([], "none"),
        ({}, "none"),
        ((), "none"),
        (None, "nothing"),
        ("a\n b", "a b"),
        ([1, "é"], '[1, "é"]'),
        ("x" * 97, "x" * 95 + "…"),
    ],
)
def test_short(value: object, shown: str) -> None:
    assert short(value) == shown


@pytest.mark.parametrize(
    ("value", "cell"), [("a|b\nc", "a\\|b c"), (None, "null"), ({"a": 1}, '{"a": 1}'), ("x" * 121, "x" * 119 + "…")]
)
def test_cell_of_a_markdown_table(value: object, cell: str) -> None:
    assert templating.cell(value) == cell


def test_html_templates_escape_and_markdown_does_not() -> None:
    environment = templating._environment()
    for name, shown in (("x.html.j2", "&lt;b&gt;"), ("x.md.j2", "<b>")):
        template = environment.overlay()
        template.loader = __import__("jinja2").DictLoader({name: "{{ value }}"})
        assert template.get_template(name).render(value="<b>") == shown


def test_every_template_is_there_and_used() -> None:
    names = {path.name for path in templating.TEMPLATES.iterdir()}
    texts = "".join(path.read_text() for path in templating.TEMPLATES.iterdir())
    entries = {"page.html.j2", "certificate.md.j2", "job_summary.md.j2", "diff.html.j2", "matrix.md.j2"}
    entries.add("dashboard.html.j2")  # gpu_ami/telemetry/page.py
    assert entries <= names
    assert all(f'"{name}"' in texts for name in names - entries)
