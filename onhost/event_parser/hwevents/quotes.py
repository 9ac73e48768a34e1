"""Kernel lines behind what people paste them with: mail quotations, diffs, lists, tables, markup, line numbers, strings.

For logs that a person names, never for the live kernel log: whoever quotes a line may have changed it, so that its origin is
unknown. What is left without the wrapping has to be a kernel line by the rules of `prefix`.
"""

from __future__ import annotations

import html
import json
import re
from typing import Any, Iterator, List

from .prefix import Line, has_driver_text
from .wrappers import is_of_program, parse_text

_MOST_LAYERS = 12
_TAGS = "details|summary|message|log|line|text|entry|event|string|value|screen|programlisting|a|b|big|blockquote|body|br|code|dd|div|dl|dt|em|font|h[1-6]|hr|html|i|kbd|li|ol|p|pre|s|samp|small|span|strong|sub|sup|table|tbody|td|th|thead|tr|tt|u|ul"
_HTML = re.compile(r"</?(?:" + _TAGS + r")(?:\s[^<>]{0,300})?/?>", re.IGNORECASE)
_ENTITY = re.compile(r"&(?:[a-z]{2,6}|#\d{1,5}|#x[0-9a-fA-F]{1,4});")
# Colours that a program printed as text instead of sending them to a terminal, and hyperlinks of terminals.
_PRINTED_ANSI = re.compile(
    r"(?:\\(?:e|x1[bB]|033|u001[bB])|\x1b|\bESC|\u241b)(?:\[[0-9;]*[A-Za-z]|\][^\x07\\]*(?:\x07|\\+))|\[(?:\d{1,3}(?:;\d{1,3})*)?m"
)
_INVISIBLE = dict.fromkeys(map(ord, "\u200b\u200c\u200d\u2060\ufeff\u200e\u200f"), "")
# Punctuation that input methods and word processors put in place of the driver's.
_PLAIN = dict(
    zip(
        map(ord, "\uff08\uff09\uff1a\uff0c\uff1d\uff1c\uff1e\uff3b\uff3d\u2018\u2019\u201a\u00b4\u3000"),
        "():,=<>[]" + "'" * 4 + " ",
    )
)
_ESCAPED = re.compile(r"\\([\[\]()_*<>#.`~|{}-])")
_QUOTED_PRINTABLE = re.compile(r"=([0-9A-F]{2})")
_FIRST = re.compile(
    r"\s*(?:"
    r"(?:[A-Z][A-Za-z]{0,3})?>(?!\d)|[|\u2502\u2503\u2551](?=[\s\[])"  # mail: > >> JD>; bat and tables: |
    r"|[+](?![\s\d.]*\])|[*\u2022\u2023\u25e6\u00b7\u2013\u2014-](?=[\s\[<N])|#{1,6} |(?:\d{1,3}|[a-z])[.)]\s|\[[ xX]\]\s"  # diffs, lists
    r"|[*_~`]{1,4}|\{\{|\{(?:code|noformat|quote)[^{}]*\}|bq\.\s|\|\|"  # Markdown, Jira
    r"|L?\d{1,8}\s*[:|\u2502)\t-]\s?|\d{1,8}\s{2,}|\(?\d{1,8}\)\s"  # line numbers: grep -n, cat -n, less -N, editors
    r"|[\"'\u201c\u201d\u2018\u2019\u00ab\u201e]|[bru]{1,2}(?=[\"'])|\[(?=[\"'])"  # strings and lists of strings
    r"|(?:[\w.@/+~-]*/)?[\w.@+~-]+\.(?:log|txt|gz|out|dmesg|messages|\d)[:-](?:\d{1,8}[:-])?"  # grep in files
    r"|\[\d{1,2}:\d\d(?::\d\d)?(?: ?[AaPp]\.?[Mm]\.?)?\](?=\s)"  # chats
    r"|(?:ok|changed|fatal|failed|skipping): \[[^\]]{1,200}\](?: =>)? \(item=(?=\[)"  # Ansible, a line of a loop
    r"|(?:ok|changed|fatal|failed): \[[^\]]{1,200}\](?::| =>)[^{]{0,40}(?=\{)|(?:data|payload|json)\s*[:=]\s*(?=\{)"  # Ansible, event streams
    r"|[\w.-]+\[\d[\d,-]*[,-]\d+\][\w.-]*:\s|\[\d+,\d+\](?:<std(?:out|err)>)?:\s?"  # clush, mpirun
    r"|(?:dmesg|messages|syslog|kern)[:-](?:\d{1,8}[:-])?"
    r"|(?:stdout|output|line|text|msg|message|log)\s*[:=]\s*(?=[\"'\[])"
    r")",
    re.ASCII,
)
_LAST = re.compile(
    r"(?:\s*(?:[\"'\u201c\u201d\u2019\u00bb],?|[*_~`]{1,4}|\}\}|\{(?:code|noformat|quote)\}|[|\u2502]{1,2}|\\n|\\|,(?=$)|(?<=[\"'])\]|\) => \{.*))+\s*$"
)
_STRING = re.compile(r"\s*(?:[bru]{1,2})?[\"'\u201c\u201e\u2018\u00ab\[]")
# A line without a time or the kernel's tag behind a string's quote is source code, or a sentence.
_BARE = re.compile(r"(?:NVRM:|(?:nvidia-)?nvswitch\d|nvidia:)")
_OUTPUT_KEYS = (
    "stdout",
    "stdout_lines",
    "StandardOutputContent",
    "StandardOutput",
    "Output",
    "ConsoleOutput",
    "dmesg",
    "kernel_log",
)


def was_changed(text: str) -> bool:
    """Whether a line has what neither the kernel nor a log shipper writes: entities, tags, punctuation of other keyboards."""
    if text.isascii():
        return ("&" in text and _ENTITY.search(text) is not None) or ("<" in text and _HTML.search(text) is not None)
    return text != text.translate(_PLAIN) or _ENTITY.search(text) is not None or _HTML.search(text) is not None


def read_quoted(text: str) -> List[Line]:
    """The kernel lines in a line that is none as it stands; often empty."""
    if not has_driver_text(text) and "NVRM" not in text and "SXid" not in text:
        return []
    found = list(_documents(text))
    if found:
        return found
    cells = _cells(text)
    for candidate in [cells] if cells else _unwrapped(text):
        found = list(_documents(candidate))
        if found:
            return found
        lines = [item for item in parse_text(candidate) if isinstance(item, Line)]
        if lines:
            return [line._replace(origin="unknown", quoted=True) for line in lines]
    return []


def _unwrapped(text: str) -> Iterator[str]:
    """The text after each layer that is taken off, the outermost first."""
    for _ in range(3):  # "&amp;gt;"
        if _ENTITY.search(text):
            text = html.unescape(text)
    text = text.translate(_INVISIBLE).translate(_PLAIN).replace("\xa0", " ")
    text = _PRINTED_ANSI.sub("", _HTML.sub(" ", text))
    if "=3D" in text:
        text = _QUOTED_PRINTABLE.sub(lambda match: chr(int(match.group(1), 16)), text.rstrip("="))
    if "\\" in text:
        text = _ESCAPED.sub(r"\1", text)
    yield text
    is_string = False
    for _ in range(_MOST_LAYERS):
        match = _FIRST.match(text)
        if match is None or not match.group().strip():
            return
        is_string = is_string or _STRING.match(match.group()) is not None
        text = text[match.end() :]
        rest = _LAST.sub("", text).strip()
        if not (is_string and _BARE.match(rest)):
            yield rest


def _cells(text: str) -> str:
    """A row of a Markdown or psql table: its cells up to the driver's text."""
    stripped = text.strip()
    if not (stripped.startswith("|") and stripped.count("|") > 1):
        return ""
    cells = [cell.strip().strip("*_`") for cell in stripped.strip("|").split("|")]
    for position, cell in enumerate(cells):
        if has_driver_text(cell):
            return " ".join(part for part in cells[: position + 1] if part and not part.isdigit())
    return ""


def _documents(text: str) -> Iterator[Line]:
    """The output of a command as a JSON document has it: Ansible, Systems Manager, the console of an instance, a list of lines."""
    stripped = text.strip().rstrip(",")
    if stripped[:1] not in "{[":
        return
    try:
        document = json.loads(stripped)
    except (ValueError, RecursionError):
        return
    for output in _outputs(document):
        for line in output.splitlines():
            for item in parse_text(line):
                if isinstance(item, Line) and not (item.stamp is None and item.monotonic_us is None):
                    yield item._replace(origin="unknown", quoted=True)


def _outputs(document: Any) -> Iterator[str]:
    if isinstance(document, list):
        yield from (item for item in document if isinstance(item, str))
    elif isinstance(document, dict) and not is_of_program(document):
        for key in _OUTPUT_KEYS:
            value = document.get(key)
            if isinstance(value, str):
                yield value
            elif isinstance(value, list):
                yield from (item for item in value if isinstance(item, str))
