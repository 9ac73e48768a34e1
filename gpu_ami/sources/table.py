"""A survey as a table."""

from __future__ import annotations

from collections import Counter

from gpu_ami.sources.survey import Finding, Survey

_HEADER = ("component", "item", "planned", "state", "newer", "signed by", "key days")
_STATES = ("there", "missing", "wrong", "unreachable", "unknown")


def as_table(survey: Survey) -> str:
    """One row for each package, file and tag of the plan; below a missing one, the reason and similar ones."""
    asked = [finding for finding in survey.findings if finding.state != "unasked"]
    rows = [_row(finding) for finding in asked]
    widths = [max(map(len, column)) for column in zip(_HEADER, *rows, strict=True)]
    lines = [survey.image, _line(_HEADER, widths)]
    for finding, row in zip(asked, rows, strict=True):
        lines += [_line(row, widths), *(f"    {text}" for text in _below(finding))]
    lines += ["", *_unasked(survey), _summary(survey)]
    return "\n".join(lines)


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    return "  ".join(map(str.ljust, cells, widths)).rstrip()


def _row(finding: Finding) -> tuple[str, ...]:
    days = "" if not finding.signature or finding.signature.startswith("commit") else _days(finding.key_days)
    newer = ", ".join(finding.newer[:2]) + (" …" if len(finding.newer) > 2 else "")
    return (
        finding.component, finding.item, finding.planned, finding.state, newer, _short(finding.signature), days,
    )  # fmt: skip


def _short(signature: str) -> str:
    """A fingerprint's last 16 digits, as gpg and apt show them."""
    return signature[-16:] if len(signature) == 40 else signature


def _days(days: int | None) -> str:
    return "no end" if days is None else str(days)


def _below(finding: Finding) -> list[str]:
    lines = list(finding.details)
    if finding.state == "missing" and not finding.details:
        lines.append(f"not in {finding.source}")
    if finding.near:
        lines.append(f"nearest: {', '.join(finding.near)}")
    return lines


def _unasked(survey: Survey) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for finding in survey.findings:
        if finding.state == "unasked":
            by_reason.setdefault(finding.details[0], []).append(f"{finding.component} {finding.item}".strip())
    return [f"not asked ({reason}): {', '.join(names)}" for reason, names in by_reason.items()]


def _summary(survey: Survey) -> str:
    counts = Counter(finding.state for finding in survey.findings)
    shown = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state] or state == "there")
    return f"{shown}; {len(survey.indexes)} indexes read; {survey.seconds:.1f} s"
