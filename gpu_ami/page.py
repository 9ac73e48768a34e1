"""report.html: a proof on one page that needs nothing else, for whoever decides about a release.

Verdict and level first, what was not proven right below, then each machine. Everything that a report holds may come
from the machine under test, so all of it passes through `t` on its way into the page, and the page may load nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from importlib import resources
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any
from urllib.parse import quote

from gpu_ami import certificate as certificates
from gpu_ami.page_machine import machine
from gpu_ami.page_text import VERDICTS, Json, badge, bar, bullets, kind_of, rows_of, sentence, t, waiver_text
from gpu_ami.report import FAIL, FLAKY, UNPROVEN, HostReport, Report, write_text

PAGE_FILE = "report.html"

_LEVELS = {
    "certified": "Proven on real hardware with the vendors' own packages.",
    "rehearsed": "Proven on simulated hardware or with replica packages: a rehearsal, no statement about real GPUs.",
    "none": "No certificate was issued.",
}
# The certificate's sentences that differ in one part alone, told once: pattern of the sentence, heading.
_REASONS = (
    (re.compile("the vendor's own package of (.+): a replica stood in for it"), "Packages that a replica stood in for"),
    (re.compile("(.+): planned, installed by no role of this image"), "Planned, installed by no role of this image"),
    (re.compile("noted in the plan: (.+)"), "Noted in the plan"),
)
# What a certificate must have in common with the one that the report gives, to be this report's.
_BINDING = ("report_sha256", "verdict", "level")
_OVERLAP = '<p class="soft small">Bars show how long, not when: machines are proved side by side, inside "prove".</p>'


def page(report_json: Json, certificate_json: Json | None, evidence: Sequence[str]) -> str:
    """The page of one proof.

    report_json, certificate_json: what report.json and certificate.json hold. A certificate of another report, or one
    that claims more than this report does, is not shown, and the page says so.
    evidence: paths of files, relative to the folder in which the page will lie.
    """
    report = _read(report_json)
    drawn = certificates.certify(report).content
    foreign = certificate_json is not None and any(certificate_json.get(key) != drawn[key] for key in _BINDING)
    issued = None if foreign else certificate_json
    statement = issued or drawn
    shown = [path for path in evidence if not (foreign and path.startswith("certificate."))]
    body = [
        _verdict(report, statement, str(issued["level"]) if issued else "none", foreign),
        _not_proven(statement["not_proven"]),
        _tiers(report),
        *(machine(host, report, f"m{at}") for at, host in enumerate(report.hosts, 1)),
        _waivers(report_json),
        _times(report),
        _evidence(report, shown),
    ]
    template = Template((resources.files("gpu_ami") / "page.html").read_text(encoding="utf-8"))
    title = f"{report.verdict}: {report.plan.get('image') or report.image or 'a host'}"
    footer = (
        f"<p>Drawn by {t(statement['issued_by'])} from report.json (<code>{t(statement['report_sha256'])}</code>). "
        "The statement to rely on is certificate.json; this page shows it.</p>"
    )
    return template.substitute(title=t(title), body="\n".join(part for part in body if part), footer=footer)


def write(report_json: Json, certificate_json: Json | None, folder: Path) -> Path:
    """Writes report.html beside report.json, with links to the evidence that lies there."""
    beside = [folder / name for name in ("report.json", "junit.xml", "certificate.json", "certificate.md")]
    files = [*beside, *sorted((folder / "evidence").rglob("*"))]
    evidence = [path.relative_to(folder).as_posix() for path in files if path.is_file() and not path.is_symlink()]
    path = folder / PAGE_FILE
    write_text(path, page(report_json, certificate_json, evidence))
    return path


def _read(report_json: Json) -> Report:
    def known(kind: type, data: Json) -> dict[str, Any]:
        return {one.name: data[one.name] for one in fields(kind) if one.name in data}

    hosts = [HostReport(**known(HostReport, host)) for host in report_json["hosts"]]
    return Report(**known(Report, report_json) | {"hosts": hosts})


# The top


def _verdict(report: Report, statement: Json, level: str, foreign: bool) -> str:
    kind = kind_of(report.verdict)
    name = report.plan.get("image") or report.image or "a host"
    shown = level if level in ("certified", "rehearsed") else "no certificate"
    meaning = f"{VERDICTS[kind][1]} {_LEVELS.get(level, _LEVELS['none'])}"
    if foreign:
        meaning += " The certificate.json beside this report is not its certificate; nothing of it is shown."
    return (
        f'<header class="verdict {kind} {t(level)}">\n<h1><span class="name">Proof of {t(name)}</span>'
        f'<span class="word"><span aria-hidden="true">{VERDICTS[kind][0]}</span> {t(report.verdict)}</span> '
        f'<span class="level">{t(shown)}</span></h1>\n<p class="meaning">{meaning}</p>\n'
        f"{_what_is_red(report)}\n{rows_of(_head(report, statement))}\n</header>"
    )


def _head(report: Report, statement: Json) -> list[tuple[str, str]]:
    where = " ".join(one for one in (report.region, f"({report.place})" if report.place else "") if one)
    machines = [
        f'<a href="#m{at}">{t(host.instance_type or host.host)}</a> {badge(host.verdict(report.roles))}'
        for at, host in enumerate(report.hosts, 1)
    ]
    machines += [f"{t(name)} {badge(UNPROVEN, ': not booted')}" for name in report.unproven_instance_types]
    return [
        ("image", f"<code>{t(report.image)}</code>{' in ' + t(where) if where else ''}" if report.image else "a host"),
        ("plan", f"<code>{t(report.plan.get('digest', '')) or 'none'}</code>"),
        ("run", f"{t(report.run)}, <time>{t(report.started)}</time> to <time>{t(report.finished)}</time>"),
        ("machines", "<br>".join(machines) or "none"),
        ("simulated hardware", "yes" if report.simulated else "no"),
        ("replicas", certificates.replicas_told(statement["replicas"])),
    ]


def _what_is_red(report: Report) -> str:
    """Each thing that needs a reader's eye, as a link to where it is told."""
    lines = []
    for at, host in enumerate(report.hosts, 1):
        where = host.instance_type or host.host
        if host.error:
            verdict = host.verdict(report.roles)
            lines.append(f'{badge(verdict)} <a href="#m{at}">{t(where)}: {t(_first(host.error))}</a>')
        for number, check in enumerate(host.checks):
            if check["verdict"] in (FAIL, FLAKY, "ERROR"):
                link = f'<a href="#m{at}-c{number}">{t(where)}: {t(check["id"])}</a>'
                lines.append(f"{badge(check['verdict'], ', waived' if check.get('waived') else '')} {link}")
    return f'<ul class="red">{"".join(f"<li>{line}</li>" for line in lines)}</ul>' if lines else ""


def _first(text: str) -> str:
    return text.splitlines()[0] if text else ""


def _not_proven(lines: Sequence[str]) -> str:
    groups: dict[str, list[str]] = {"": []}
    groups |= {heading: [] for _, heading in _REASONS}
    for line in lines:
        heading, told = next(
            ((heading, match[1]) for like, heading in _REASONS if (match := like.fullmatch(line))), ("", line)
        )
        groups[heading].append(told)
    parts = [
        f"<h3>{t(heading)}</h3>" * bool(heading)
        + (sentence(found) if all(len(one) < 50 for one in found) else bullets(found))
        for heading, found in groups.items()
        if found
    ]
    return '<section class="caution">\n<h2>Not proven</h2>\n' + "\n".join(parts) + "\n</section>"


def _tiers(report: Report) -> str:
    """How deep the proof reached: each tier with its verdict, and what even a PASS leaves open."""
    rows = ""
    for one in report.tiers:
        why = f"{badge(one['verdict'])} {t(one['reason'])}"
        proves = f"<p>{t(one['proves'][0].upper() + one['proves'][1:])}.</p>"
        open_ = f'<p class="soft small">Does not prove {t(one["does_not_prove"])}.</p>'
        rows += f"<dt>{t(one['name'])} {t(one['title'])}</dt><dd>{why}{proves}{open_}</dd>"
    return f'<section class="tiers">\n<h2>How deep it went</h2>\n<dl>{rows}</dl>\n</section>'


# Times


def _times(report: Report) -> str:
    parts = []
    if report.stages:
        longest = max(float(one.get("start", 0)) + float(one["seconds"]) for one in report.stages)
        bars = ""
        for one in report.stages:
            start, seconds = float(one.get("start", 0)), float(one["seconds"])
            failed = one.get("outcome") == "failed"
            said = f"{'failed after ' if failed else ''}{seconds:.1f} s"
            kind = f"in{min(int(one['level']), 3)}" + (" FAIL" if failed else "")
            bars += bar(str(one["stage"]), said, start, start + seconds, longest, kind)
        told = "" if any("start" in one for one in report.stages) else _OVERLAP
        parts.append(f'<h3>Stages</h3>{told}<ul class="bars">{bars}</ul>')
    parts.append(_hop_table(report))
    inside = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>Where the time went</h2>\n{inside}\n</section>" if inside else ""


def _hop_table(report: Report) -> str:
    """Hops of all machines side by side, where there is more than one machine."""
    found: dict[str, dict[int, float]] = {}
    for at, host in enumerate(report.hosts):
        for check in host.checks:
            for hop in check.get("hops") or []:
                found.setdefault(str(hop["hop"]), {}).setdefault(at, float(hop["seconds"]))
    if not found or len(report.hosts) < 2:
        return ""
    head = "".join(f'<th scope="col">{t(host.instance_type or host.host)}</th>' for host in report.hosts)
    rows = ""
    for name, seconds in found.items():
        cells = "".join(
            f"<td>{seconds[at]:.2f} s</td>" if at in seconds else "<td>none</td>" for at in range(len(report.hosts))
        )
        rows += f'<tr><th scope="row">{t(name)}</th>{cells}</tr>'
    table = f'<table><tr><th scope="col">hop</th>{head}</tr>{rows}</table>'
    return f'<h3>Hops, machine by machine</h3><div class="scroll" tabindex="0">{table}</div>'


# Waivers and evidence


def _waivers(report_json: Json) -> str:
    """Every waiver with its state, also one that nothing needed; a machine's own list, or what its checks carry."""
    lines = []
    for host in report_json["hosts"]:
        carried = [check["waived"] for check in host.get("checks", []) if check.get("waived")]
        for waiver in host.get("waivers") or carried:
            line = f"<li>{t(host.get('instance_type') or host.get('host', ''))}: {waiver_text(waiver)}</li>"
            lines += [line] if line not in lines else []
    return f'<section>\n<h2>Waivers</h2>\n<ul class="waivers">{"".join(lines)}</ul>\n</section>' if lines else ""


def _evidence(report: Report, paths: Sequence[str]) -> str:
    """Links by folder. Folders under evidence/ that belong to no machine of this report are named, not linked."""
    own = tuple(f"evidence/{_folder(host)}/" for host in report.hosts)
    folders: dict[str, list[str]] = {}
    strange: set[str] = set()
    for path in paths:
        parts = path.split("/")
        if path.startswith("/") or ".." in parts or "" in parts:
            continue  # not below this page
        if parts[0] == "evidence" and len(parts) > 2 and not path.startswith(own):
            strange.add(parts[1])
        else:
            folders.setdefault("/".join(parts[:-1]), []).append(path)
    if not folders and not strange:
        return ""
    inside = ""
    for folder, files in folders.items():
        links = "".join(f'<li><a href="{quote(path)}">{t(path.rpartition("/")[2])}</a></li>' for path in files)
        inside += (
            f'<h3>{t(folder.removeprefix("evidence/") or "This proof")}</h3><ul class="links columns">{links}</ul>\n'
        )
    if strange:
        named = ", ".join(t(one) for one in sorted(strange))
        inside += f'<p class="soft small">Of an earlier run, and not linked: {named}.</p>'
    return f"<section>\n<h2>Evidence</h2>\n{inside}\n</section>"


def _folder(host: HostReport) -> PurePosixPath:
    """Where proof.py keeps a machine's evidence, below evidence/."""
    return PurePosixPath(host.instance_type or host.host.rpartition("@")[2].replace(":", "_"))
