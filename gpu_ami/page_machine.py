"""One machine of report.html: how it booted, its checks by role, the hops and the event that they measured."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpu_ami.page_text import SHORT, Json, badge, bar, full, kind_of, one_line, plural, rows_of, short, t, waiver_text
from gpu_ami.report import ORDER, PASS, HostReport, Report


def machine(host: HostReport, report: Report, anchor: str) -> str:
    verdict, name = host.verdict(report.roles), host.instance_type or host.host or "host"
    counts = [check["verdict"] for check in host.checks]
    told = ", ".join(f"{counts.count(one)} {one}" for one in ORDER if one in counts)
    parts = [
        f'<section class="machine" id="{anchor}">\n<h2>{t(name)} {badge(verdict)}</h2>',
        f'<p class="soft">{plural(len(counts), "check")}{": " + t(told) if told else ""}</p>',
    ]
    if host.error:
        parts.append(
            f'<h3>Why it was not checked</h3><pre tabindex="0" class="message {kind_of(verdict)}">{t(host.error)}</pre>'
        )
    parts.append(_facts(host))
    if host.boot:
        parts.append("<h3>Boot: seconds after the launch</h3>" + _boot(host.boot))
    if host.checks:
        parts.append("<h3>Checks</h3>" + _roles(host.checks, anchor))
    parts += [_hops(check) for check in host.checks if check.get("hops")]
    parts += [_event(check) for check in host.checks if _event_of(check)]
    return "\n".join(part for part in parts if part) + "\n</section>"


def _facts(host: HostReport) -> str:
    known = {"os": "system", "kernel": "kernel", "driver": "driver", "agent": "agent"}
    rows = [("instance", f"<code>{t(host.instance_id)}</code>" if host.instance_id else t(host.host))]
    rows += [(word, t(host.facts[key])) for key, word in known.items() if host.facts.get(key)]
    rest = {key: value for key, value in host.facts.items() if key not in known}
    more = [(key, f"<code>{t(short(value, 400))}</code>") for key, value in rest.items()]
    replicas = [t(f"{one.get('package')} {one.get('version', '')}: {one.get('what', '')}") for one in host.replicas]
    more += [("replicas", "<br>".join(replicas))]
    folded = (
        f'<details class="fold"><summary>More about this machine</summary>{rows_of(more)}</details>'
        if rest or replicas
        else ""
    )
    return rows_of(rows) + folded


def _roles(checks: Sequence[Json], anchor: str) -> str:
    """A fold a role, those with something red first and open."""
    roles: dict[str, list[tuple[int, Json]]] = {}
    for number, check in enumerate(checks):
        roles.setdefault(str(check["role"]), []).append((number, check))
    worst = {role: _worst(check["verdict"] for _, check in found) for role, found in roles.items()}
    ordered = sorted(roles, key=lambda role: ORDER.index(worst[role]))
    return "\n".join(_role(role, worst[role], roles[role], anchor) for role in ordered)


def _worst(verdicts: Iterable[str]) -> str:
    return min((kind_of(one) for one in verdicts), key=ORDER.index)


def _role(role: str, worst: str, checks: Sequence[tuple[int, Json]], anchor: str) -> str:
    red = [(number, check) for number, check in checks if check["verdict"] != PASS]
    passed = "".join(_check(check, f"{anchor}-c{number}") for number, check in checks if check["verdict"] == PASS)
    well = len(checks) - len(red)
    if red and passed:
        told = f"{plural(well, 'check')} passed"
        passed = f'<details class="fold passes"><summary>{told}</summary>{passed}</details>'
    inside = "".join(_check(check, f"{anchor}-c{number}") for number, check in red) + passed
    return (
        f'<details class="role {worst}"{" open" if red else ""}><summary><h4>{t(role)}</h4> {badge(worst)} '
        f'<span class="soft small">{well} of {len(checks)} passed</span></summary>'
        f'<div class="inside">{inside}</div></details>'
    )


def _check(check: Json, anchor: str) -> str:
    verdict, waived = check["verdict"], check.get("waived")
    message = str(check.get("message") or "")
    body = f'<pre tabindex="0" class="message {kind_of(verdict)}">{t(message)}</pre>' if message else ""
    body += f'<p class="waived">{waiver_text(waived)}</p>' if waived else ""
    observed, planned = check.get("observed"), check.get("planned")
    if verdict != PASS or any(len(one_line(value)) > SHORT for value in (observed, planned)):
        body += _whole(observed, planned)
    attempts = int(check.get("attempts", 1))
    fine = f"{t(check.get('tier', ''))}, {float(check.get('seconds', 0)):.1f} s, {plural(attempts, 'attempt')}"
    promise = t(check.get("promise") or check["id"])
    return (
        f'<details class="check {kind_of(verdict)}" id="{anchor}"{"" if verdict == PASS else " open"}><summary>'
        f'{badge(verdict, ", waived" if waived else "")} <span class="promise">{promise}</span>'
        f'{_compared(observed, planned) if verdict == PASS else ""}</summary><div class="body">{body}'
        f'<p class="soft small"><code>{t(check["id"])}</code> {fine}</p></div></details>'
    )


def _whole(observed: object, planned: object) -> str:
    if observed is None and planned is None:
        return ""
    told = (
        [("observed", observed), ("planned", planned)] if observed != planned else [("observed as planned", observed)]
    )
    figures = [
        f'<figure><figcaption>{word}</figcaption><pre tabindex="0">{t(full(value))}</pre></figure>'
        for word, value in told
    ]
    return f'<div class="pair">{"".join(figures)}</div>'


def _compared(observed: object, planned: object) -> str:
    """Observed against planned in the check's own line; values that are longer stand whole in its fold."""
    if observed is None and planned is None:
        return ""
    if observed == planned:
        text = f"observed as planned: <code>{t(short(observed))}</code>"
    else:
        text = f"observed <code>{t(short(observed))}</code>, planned <code>{t(short(planned))}</code>"
    return f'<span class="short">{text}</span>'


def _event_of(check: Json) -> Json | None:
    """The event that a check caught: an own entry, or what it observed where that is one."""
    found = check.get("event") or check.get("observed")
    return found if isinstance(found, Mapping) and "kind" in found and "code" in found else None


def _event(check: Json) -> str:
    event = _event_of(check) or {}
    rows = [(str(key), f"<code>{t(short(value, 400))}</code>") for key, value in event.items()]
    return f"<h3>Captured event</h3><p class='soft small'>{t(check['promise'])}</p>{rows_of(rows)}"


def _boot(boot: Mapping[str, float]) -> str:
    """Each stage from the end of the one before it; `boot` holds seconds since the launch."""
    total, before, lines = max(boot.values()), 0.0, []
    for name, seconds in sorted(boot.items(), key=lambda one: one[1]):
        lines.append(bar(name, f"{seconds:.1f} s", before, seconds, total))
        before = seconds
    return f'<ul class="bars">{"".join(lines)}</ul>'


def _hops(check: Json) -> str:
    """A hop "A → B" begins where an earlier one of this check ended in A, otherwise at the source."""
    reached: dict[str, float] = {}
    spans = []
    for hop in check["hops"]:
        source, _, target = (part.strip() for part in str(hop["hop"]).partition("→"))
        start = reached.get(source, 0.0)
        end = start + float(hop["seconds"])
        reached.setdefault(target, end)
        spans.append((str(hop["hop"]), float(hop["seconds"]), start, end))
    total = max(end for _, _, _, end in spans)
    bars = "".join(bar(name, f"{seconds:.2f} s", start, end, total) for name, seconds, start, end in spans)
    return f'<h3>Hops: {t(str(check["id"]).rpartition("::")[2])}</h3><ul class="bars">{bars}</ul>'
