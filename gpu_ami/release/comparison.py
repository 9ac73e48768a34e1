"""How two images differ: versions, packages, files, units, accounts, kernel settings, telemetry, checks and times."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from gpu_ami.plan import value_differences
from gpu_ami.recipes import components
from gpu_ami.release.image_description import ImageDescription
from gpu_ami.report import Report, templating
from validator import file_account
from validator.file_account import Entry, Inventory

_VERSION = re.compile(r"\w+\.(version|full|flavour|package_version|mode)|kernel\..*|os\..*|cloudwatch_agent\.version")
# Sections of a plan that have a section of their own here, or that name no property of the image.
_ELSEWHERE = ("telemetry", "tuning", "sources", "notes", "digest", "schema", "recipe", "image", "description")
_UNIT_FOLDERS = ("/etc/systemd/system/", "/usr/lib/systemd/system/", "/lib/systemd/system/")
_KERNEL_FILES = re.compile(
    r"/(?:etc|usr/lib)/(?:sysctl\.d|modprobe\.d|modules-load\.d)/.*|/etc/(?:sysctl\.conf|default/grub(?:\.d/.*)?)"
)
_NO_PACKAGE = "no package"
NAMES = (
    "versions", "plan", "packages", "files", "units", "accounts", "kernel settings", "metrics and streams", "checks",
    "times",
)  # fmt: skip
_TITLES = {"files": "Files by component", "metrics and streams": "Metrics and streams"}
_STAGE_SECONDS = 1.0  # a shorter difference of a time says nothing


@dataclass(frozen=True)
class Row:
    """One difference. before, after: as text, "" where there is none."""

    subject: str
    before: str
    after: str


@dataclass(frozen=True)
class Section:
    """The differences of one kind. missing: why nothing could be compared, "" where it could."""

    name: Annotated[str, NAMES]
    rows: tuple[Row, ...] = ()
    missing: str = ""

    @property
    def title(self) -> str:
        """A heading of a page."""
        return _TITLES.get(self.name, self.name.capitalize())


@dataclass(frozen=True)
class Comparison:
    """Two images, by their titles, and their differences. remarks: what is not at hand of either."""

    before: str
    after: str
    sections: tuple[Section, ...]
    remarks: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not any(section.rows for section in self.sections)


def compare(before: ImageDescription, after: ImageDescription) -> Comparison:
    """Everything that is known of both images and differs."""
    sections = (
        _versions(before, after),
        _of_plan("plan", before, after, lambda path: not _VERSION.fullmatch(path) and _top(path) not in _ELSEWHERE),
        _of_inventories("packages", before, after, packages),
        _of_inventories("files", before, after, files),
        _of_inventories("units", before, after, units),
        _of_inventories("accounts", before, after, accounts),
        _kernel_settings(before, after),
        _of_plan("metrics and streams", before, after, lambda path: _top(path) == "telemetry"),
        _of_reports("checks", before, after, checks),
        _of_reports("times", before, after, times),
    )
    remarks = tuple(f"{image.title}: {line}" for image in (before, after) for line in image.missing)
    return Comparison(before.title, after.title, sections, remarks)


def first(image: ImageDescription) -> Comparison:
    """Of an image that has none before it: its versions."""
    rows = tuple(_rows_of_maps({}, _tag_versions(image)))
    return Comparison("", image.title, (Section("versions", rows),))


def _top(path: str) -> str:
    return re.split(r"[.\[]", path)[0]


def _versions(before: ImageDescription, after: ImageDescription) -> Section:
    """Of the plans; without both plans, of the tags that a build writes."""
    if before.plan and after.plan:
        return _of_plan("versions", before, after, lambda path: _VERSION.fullmatch(path) is not None)
    old, new = _tag_versions(before), _tag_versions(after)
    if not old or not new:
        return Section("versions", missing="the plan of one image is not at hand")
    return Section("versions", tuple(_rows_of_maps(old, new)))


def _tag_versions(image: ImageDescription) -> dict[str, str]:
    """Of the plan; without it of the tags that the Packer template writes from one."""
    tags = components.version_tags()
    if not image.plan:
        return {f"{name}.version": image.tags[tag] for name, tag in tags.items() if image.tags.get(tag)}
    sections = {name: image.plan.get(name) for name in tags}
    return {
        f"{name}.version": str(section["version"])
        for name, section in sections.items()
        if isinstance(section, Mapping) and section.get("version")
    }


def _of_plan(name: str, before: ImageDescription, after: ImageDescription, belongs: Callable[[str], bool]) -> Section:
    if not before.plan or not after.plan:
        return Section(name, missing="the plan of one image is not at hand")
    rows = [
        Row(path, _shown(old), _shown(new))
        for path, old, new in value_differences(dict(before.plan), dict(after.plan), "")
        if belongs(path)
    ]
    return Section(name, tuple(rows))


def _of_inventories(
    name: str,
    before: ImageDescription,
    after: ImageDescription,
    rows: Callable[[Inventory, Inventory], Iterable[Row]],
) -> Section:
    if before.inventory is None or after.inventory is None:
        return Section(name, missing="the inventory of one image is not at hand")
    return Section(name, tuple(rows(before.inventory, after.inventory)))


def _of_reports(
    name: str, before: ImageDescription, after: ImageDescription, rows: Callable[[Report, Report], Iterable[Row]]
) -> Section:
    if before.report is None or after.report is None:
        return Section(name, missing="the report of one image is not at hand")
    return Section(name, tuple(rows(before.report, after.report)))


def _rows_of_maps(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterable[Row]:
    for key in sorted({*before, *after}):
        if before.get(key) != after.get(key):
            yield Row(key, _shown(before.get(key)), _shown(after.get(key)))


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, list | tuple):
        return ", ".join(_shown(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_shown(item)}" for key, item in value.items())
    return str(value)


def packages(before: Inventory, after: Inventory) -> Iterable[Row]:
    """Packages that are new, gone or of another version."""
    old = {name: package.version for name, package in before.packages.items()}
    return _rows_of_maps(old, {name: package.version for name, package in after.packages.items()})


def component(entry: Entry) -> str:
    """What a file belongs to: its packages, or `no package`."""
    return f"package {'/'.join(entry.packages)}" if entry.packages else _NO_PACKAGE


def files(before: Inventory, after: Inventory) -> Iterable[Row]:
    """Files by component: those that are new, gone or changed. Directories and times are not compared."""
    changes: dict[str, list[Row]] = {}
    for path in sorted({*before.entries, *after.entries}):
        old, new = before.entries.get(path), after.entries.get(path)
        if (old or new).kind == "d" and (new is None or old is None or new.kind == old.kind):  # type: ignore[union-attr]
            continue
        if old is None and new is not None:
            row = Row(path, "", _content(new))
        elif new is None and old is not None:
            row = Row(path, _content(old), "")
        elif old is not None and new is not None and file_account.differences(new, old):
            row = Row(path, _content(old), _content(new))
        else:
            continue
        changes.setdefault(component(new or old), []).append(row)  # type: ignore[arg-type]
    for name in sorted(changes):
        yield from (Row(f"{name}: {row.subject}", row.before, row.after) for row in changes[name])


def _content(entry: Entry) -> str:
    content = (
        f"{entry.size} bytes {entry.sha256[:12]}"
        if entry.kind == "f"
        else f"→ {entry.target}"
        if entry.target
        else entry.kind
    )
    return f"{content} {entry.mode:04o} {entry.owner}:{entry.group}"


def _unit_states(inventory: Inventory) -> dict[str, str]:
    """Unit → its content, and the targets that start it. A unit's path in /etc counts before that in /usr."""
    states: dict[str, list[str]] = {}
    for path, entry in inventory.entries.items():
        folder = next((folder for folder in _UNIT_FOLDERS if path.startswith(folder)), None)
        if folder is None or entry.kind == "d":
            continue
        below = path.removeprefix(folder).split("/")
        if len(below) == 2 and below[0].endswith((".wants", ".requires")):
            states.setdefault(below[1], []).append(f"started by {below[0].rpartition('.')[0]}")
        elif len(below) == 2 and below[0].endswith(".d"):
            states.setdefault(below[0].removesuffix(".d"), []).append(f"drop-in {below[1]} {entry.sha256[:12]}")
        elif len(below) == 1:
            masked = entry.target == "/dev/null"
            content = (
                "masked" if masked else f"→ {posixpath.basename(entry.target)}" if entry.target else entry.sha256[:12]
            )
            states.setdefault(below[0], []).append(content)
    return {unit: ", ".join(sorted(state)) for unit, state in states.items()}


def units(before: Inventory, after: Inventory) -> Iterable[Row]:
    """systemd units: files, drop-ins, and what starts them."""
    return _rows_of_maps(_unit_states(before), _unit_states(after))


def _account_states(inventory: Inventory) -> dict[str, str]:
    states = {
        f"account {name}": f"uid {account.user_id}, {account.shell}, password {account.password or 'none'}"
        for name, account in inventory.accounts.items()
    }
    return states | {
        f"group {name}": f"id {group[0]}{', ' if group[1] else ''}{' '.join(group[1])}"
        for name, group in inventory.groups.items()
    }


def accounts(before: Inventory, after: Inventory) -> Iterable[Row]:
    """Accounts and groups that are new, gone or changed."""
    return _rows_of_maps(_account_states(before), _account_states(after))


def _kernel_settings(before: ImageDescription, after: ImageDescription) -> Section:
    """The plan's tuning, and files that set kernel parameters and options."""
    rows: list[Row] = []
    section = _of_plan("kernel settings", before, after, lambda path: _top(path) == "tuning")
    rows += section.rows
    if before.inventory is not None and after.inventory is not None:
        old, new = (
            {
                path: _content(entry)
                for path, entry in inventory.entries.items()
                if _KERNEL_FILES.fullmatch(path) and entry.kind != "d"
            }
            for inventory in (before.inventory, after.inventory)
        )
        rows += _rows_of_maps(old, new)
        lines = (" ".join(before.inventory.command_line), " ".join(after.inventory.command_line))
        if all(lines) and lines[0] != lines[1]:
            rows.append(Row("kernel command line", *lines))
    elif section.missing:
        return section
    return Section("kernel settings", tuple(rows))


def checks(before: Report, after: Report) -> Iterable[Row]:
    """Checks by machine whose verdict differs, or that only one proof has."""
    old, new = (
        {
            f"{host.name}: {check.id}": f"{check.verdict}{' (waived)' if check.waived else ''}"
            for host in report.hosts
            for check in host.checks
        }
        for report in (before, after)
    )
    yield from _rows_of_maps(old, new)
    if before.verdict != after.verdict:
        yield Row("verdict", str(before.verdict), str(after.verdict))


def times(before: Report, after: Report) -> Iterable[Row]:
    """Stages of the proof and of each machine's boot that both have and whose seconds differ."""
    old, new = _seconds(before), _seconds(after)
    for name in (name for name in old if name in new):
        if abs(old[name] - new[name]) >= _STAGE_SECONDS:
            yield Row(name, f"{old[name]:.1f} s", f"{new[name]:.1f} s")


def _seconds(report: Report) -> dict[str, float]:
    seconds = {stage.stage.replace(report.image or "\0", "AMI"): stage.seconds for stage in report.stages}
    return seconds | {
        f"{host.name}: boot to {name}": value for host in report.hosts for name, value in host.boot.items()
    }


FORMATS = ("text", "markdown", "html", "json")
_MOST = 40  # rows of a section in text and Markdown; HTML and JSON have all


def text(comparison: Comparison) -> str:
    """For a terminal."""
    return "\n".join(_lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"{comparison.before} → {comparison.after}"
    for section in comparison.sections:
        if section.missing:
            yield f"\n{section.name}: not compared: {section.missing}"
        elif section.rows:
            yield f"\n{section.name}:"
            for row in section.rows[:_MOST]:
                yield f"  {row.subject}: {row.before or 'nothing'} → {row.after or 'nothing'}"
            if len(section.rows) > _MOST:
                yield f"  and {len(section.rows) - _MOST} more (--format html or json has all)"
    same = [section.name for section in comparison.sections if not section.rows and not section.missing]
    if same:
        yield f"\nthe same: {', '.join(same)}"
    if comparison.remarks:
        yield "\nnot at hand:"
        yield from (f"  {remark}" for remark in comparison.remarks)


def markdown(comparison: Comparison, heading: str = "") -> str:
    """For a release page or a pull request."""
    lines = [f"# {templating.cell(heading or f'{comparison.before} → {comparison.after}', 300)}"]
    for section in comparison.sections:
        if section.rows:
            lines += ["", f"## {section.title}", "", "| | before | after |", "|---|---|---|"]
            lines += [
                f"| {templating.cell(row.subject, 200)} | {_value(row.before)} | {_value(row.after)} |"
                for row in section.rows[:_MOST]
            ]
            if len(section.rows) > _MOST:
                lines += ["", f"and {len(section.rows) - _MOST} more"]
    if comparison.is_empty:
        lines += ["", "No difference in what could be compared."]
    open_points = [f"{section.name}: {section.missing}" for section in comparison.sections if section.missing]
    if open_points or comparison.remarks:
        lines += ["", "## Not compared", ""]
        lines += [f"- {templating.cell(line, 300)}" for line in (*open_points, *comparison.remarks)]
    return "\n".join(lines)


def _value(text: str) -> str:
    return str(templating.cell(text or "-"))


def notes(comparison: Comparison) -> str:
    """Release notes: what changed since the image before, in Markdown."""
    since = f"changes since {comparison.before}" if comparison.before else "first image"
    return markdown(comparison, f"{comparison.after}: {since}")


def html(comparison: Comparison) -> str:
    """A page that needs nothing else."""
    return templating.render("diff.html.j2", comparison=comparison)


def to_json(comparison: Comparison) -> dict[str, object]:
    return asdict(comparison)
