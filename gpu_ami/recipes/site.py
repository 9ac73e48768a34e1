"""A site's own parts, in `site/` beside the recipe: roles, facts, checks, faults and alarms.

One name in four places: roles/NAME/ (with argument_specs) ↔ recipe and plan key NAME ↔ checks/test_NAME.py ↔
faults/NAME.yml: docs/site.md

Alarms, with their runbooks, are in `site/alarms.yml`: lines of a log group, or a metric of each instance. An alarm of
logs is raised by one line in five minutes that its filter pattern finds, an alarm of a metric by the worst instance
(CloudWatch user guide, "Create alarms on Metrics Insights queries").
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError, counted
from gpu_ami.files import data_dir, lines_of, located
from gpu_ami.files import read_yaml as read_yaml_file
from gpu_ami.recipes.components import (
    OPTION_TYPES,
    SYSTEMS,
    SYSTEMS_FILE,
    Registry,
    build_order,
    components,
    of_role,
)
from gpu_ami.recipes.facts import read_yaml
from validator.plan_document import PlanDocument, ResolvedPlan
from validator.schema import Choice, Integer, Keys, ListOf, MapOf, Mistake, Number, Text, did_you_mean

FOLDERS = ("roles", "checks", "faults")  # what a build, a proof and a trial of faults need; facts are in the plan

_ROLE_NAME = r"[a-z][a-z0-9_]*"


def site_folder(recipe: Path) -> Path | None:
    """`site/` beside the recipe, beside its `recipes/`, or the one that holds `recipes/`; None: there is none."""
    folder = recipe.parent
    candidates = [folder / "site"]
    if folder.resolve().name == "recipes":
        above = folder.resolve().parent
        candidates += [above / "site", *([above] if above.name == "site" else [])]
    return next((path for path in candidates if path.is_dir()), None)


def site_roles(site: Path | None) -> tuple[str, ...]:
    """Names of the site's roles. UsageError: a name that cannot be a key of a recipe."""
    names = tuple(sorted(path.name for path in (site / "roles").glob("[!._]*/"))) if site else ()
    for name in names:
        if not re.fullmatch(_ROLE_NAME, name):
            raise UsageError(f"{site}/roles/{name}: a role's name has lower-case letters, digits and underscores")
    return names


def components_of(site: Path | None) -> Registry:
    """All components: those of gpu-ami, then the site's roles. UsageError: a role of a name that is taken."""
    roles = site_roles(site)
    if taken := sorted(set(roles) & set(build_order())):
        raise UsageError(f"{site}/roles/{taken[0]}: gpu-ami has a role of this name", hint="rename the site's role")
    return {**components(), **{role: of_role(site / "roles", role) for role in roles}} if site else components()


def site_roles_of(document: PlanDocument | ResolvedPlan) -> list[str]:
    """The roles of a plan that are its site's own, in order."""
    return [role for role in document["roles"] if role not in build_order()] if "site" in document else []


def in_order(roles: list[str], own: list[str]) -> list[str]:
    """The roles, with the site's roles that the recipe configures but does not list inserted before hygiene."""
    missing = [role for role in own if role not in roles]
    end = roles.index("hygiene") if "hygiene" in roles else len(roles)
    return [*roles[:end], *missing, *roles[end:]]


def files(site: Path) -> Iterator[Path]:
    """The files of roles, checks and faults, relative to the site's folder, in one order everywhere."""
    for folder in FOLDERS:
        for path in sorted((site / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(site)


def digest(site: Path) -> str:
    """`sha256:` over names and contents of roles, checks and faults."""
    total = hashlib.sha256()
    for name in files(site):
        total.update(f"{name.as_posix()}\0{hashlib.sha256((site / name).read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"


PARTS = ("recipes", "facts", *FOLDERS)


def require_valid(site: Path, known: Registry) -> None:
    """UsageError with every mistake of a site's files: what a plan would leave out, and what fails a build later.

    known: the components of gpu-ami, whose names a site's checks and faults may have.
    """
    roles = [path.name for path in sorted((site / "roles").glob("[!._]*/"))]
    mistakes = [*_parts(site)]
    for role in roles:
        path = site / "roles" / role
        mistakes += [f"{path}: gpu-ami has a role of this name: rename it"] if role in known else _role(path)
    mistakes += _checks(site / "checks", [*roles, *known])
    mistakes += _faults(site / "faults", [*roles, *known])
    mistakes += [f"{path}: expected the ending .yml" for path in sorted((site / "facts").glob("*.yaml"))]
    mistakes += _alarms(site / ALARMS_FILE)
    if mistakes:
        hint = "docs/site.md; docs/examples/site/ is a complete example"
        raise UsageError(f"{site}: {counted(len(mistakes), 'mistake')}", details=mistakes, hint=hint)


def _parts(site: Path) -> Iterator[str]:
    """Folders and files whose names look like those of a site's parts."""
    for path in sorted(site.glob("[!._]*")):
        near = difflib.get_close_matches(path.name, PARTS, n=1, cutoff=0.75)
        if path.is_dir() and path.name not in PARTS and near:
            yield f"{path}: no part of a site; did you mean {near[0]}?"
        elif path.name in ("alarms.yaml", "alarm.yml", "runbooks.yml", "runbook.yml"):
            yield f"{path}: no part of a site; alarms and their runbooks are in {ALARMS_FILE}"


def _alarms(path: Path) -> Iterator[str]:
    if path.is_file():
        try:
            yield from alarm_mistakes(path)
        except UsageError as error:
            yield "; ".join([error.message, *(line.strip() for line in error.details)])


def _role(folder: Path) -> Iterator[str]:
    if not re.fullmatch(_ROLE_NAME, folder.name):
        yield f"{folder}: a role's name has lower-case letters, digits and underscores"
        return
    meta = folder / "meta"
    specs, tasks, footprint = meta / "argument_specs.yml", folder / "tasks" / "main.yml", meta / "footprint.yml"
    if specs.is_file():
        yield from _told(specs, _options)
    else:
        yield f"{specs}: no such file: it declares the role's options; without options: argument_specs: {{main: {{}}}}"
    if tasks.is_file():
        yield from _told(tasks, _tasks)
    else:
        yield f"{tasks}: no such file: it has the role's tasks"
    systems = meta / SYSTEMS_FILE
    if systems.is_file():
        yield from _told(systems, lambda document, _: [one.message for one in SYSTEMS.check(document, "")])
    if footprint.is_file():
        yield from _footprint(footprint, folder.name)
    else:
        yield f"{footprint}: no such file: it declares what the role leaves in an image; {{}}: only its packages' files"


def _told(path: Path, judge: Any) -> Iterator[str]:
    """The mistakes of a YAML file; of one that cannot be read, the reason."""
    try:
        yield from (f"{path}: {mistake}" for mistake in judge(read_yaml(path), path))
    except UsageError as error:
        yield "; ".join([error.message, *(line.strip() for line in error.details)])


def _options(document: Any, path: Path) -> Iterator[str]:
    main = (document.get("argument_specs") or {}).get("main") if isinstance(document, dict) else None
    options = (main.get("options") or {}) if isinstance(main, dict) else None
    if not isinstance(options, dict):
        yield "expected argument_specs.main.options, a mapping"
        return
    role = path.parent.parent.name
    for name, option in options.items():
        if not str(name).startswith(f"{role}_"):
            yield f"{name}: expected a name that begins with {role}_"
        if not isinstance(option or {}, dict):
            yield f"{name}: expected keys and values, such as type: str, got {option!r}"
        elif (kind := (option or {}).get("type", "str")) not in OPTION_TYPES:
            yield f"{name}: type {kind!r}: expected one of {', '.join(OPTION_TYPES)}{did_you_mean(kind, OPTION_TYPES)}"


def _tasks(document: Any, _path: Path) -> Iterator[str]:
    if not isinstance(document, list) or not all(isinstance(task, dict) for task in document):
        yield "expected a list of tasks"


def _footprint(path: Path, role: str) -> Iterator[str]:
    from validator.file_account import InvalidRules, load_footprint

    try:
        load_footprint(path, role)
    except InvalidRules as error:
        yield f"{path}: {str(error).removeprefix(f'{path}: ').removeprefix(f'{role}/meta/footprint.yml: ')}"


def _checks(folder: Path, roles: list[str]) -> Iterator[str]:
    for path in sorted(folder.rglob("*.py")):
        try:
            tree = ast.parse(path.read_bytes(), str(path))
        except (SyntaxError, ValueError) as error:
            yield f"{path}:{getattr(error, 'lineno', None) or 1}: {getattr(error, 'msg', error)}"
            continue
        tests = any(isinstance(node, ast.FunctionDef) and node.name.startswith("test_") for node in ast.walk(tree))
        if tests and not path.name.startswith("test_") and not path.name.endswith("_test.py"):
            yield f"{path}: has checks and would not run; expected the name test_{path.name}"
        elif path.name.startswith("test_"):
            yield from _named(path, path.stem.removeprefix("test_"), roles, "test_{}.py")


def _faults(folder: Path, roles: list[str]) -> Iterator[str]:
    for path in sorted(folder.glob("[!._]*")):
        if path.suffix != ".yml":
            yield f"{path}: expected the ending .yml"
            continue
        yield from _told(path, lambda document, _: [] if isinstance(document, list) else ["expected a list of faults"])
        if path.stem not in roles:
            yield f"{path}: no role {path.stem}, so its faults are never injected{did_you_mean(path.stem, roles)}"


def _named(path: Path, name: str, roles: list[str], pattern: str) -> Iterator[str]:
    """A name that looks like that of a role. A file of checks with any other name runs on every image."""
    near = difflib.get_close_matches(name, roles, n=1, cutoff=0.85) if name not in roles else []
    if near:
        yield f"{path}: no role {name}; did you mean {pattern.format(near[0])}?"


def unused_role(recipe: Path, key: str) -> str:
    """Where a role of this name is that the recipe does not have, as the end of a message; "" if there is none."""
    above = [Path.cwd(), *recipe.resolve().parents[:3]]
    folders = (folder / part / key for folder in above for part in ("site/roles", "roles"))
    found = next((folder for folder in folders if re.fullmatch(r"\w+", key) and folder.is_dir()), None)
    where = "a recipe's site is the folder site/ beside it, beside its folder recipes/, or around it (docs/site.md)"
    return f"; {found} is not of this recipe: {where}" if found else ""


ALARMS_FILE = "alarms.yml"
URGENCIES = ("page", "ticket")
STATISTICS = ("AVG", "COUNT", "MAX", "MIN", "SUM")  # of Metrics Insights
_ALARMS_HINT = "docs/site.md#alarms; docs/examples/site/alarms.yml is an example"
_SENTENCES = r"(?s).{1,450}"  # two of them and the runbook's name fit into an AlarmDescription (1024 characters)
_ALARM_NAME = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"


@dataclass(frozen=True)
class LoggedLines:
    """Lines of a log group that a CloudWatch filter pattern finds."""

    group: str
    pattern: str


@dataclass(frozen=True)
class WatchedMetric:
    """A metric of each instance, compared with a limit for some minutes. One of `above` and `below` is given."""

    namespace: str
    name: str
    statistic: str
    above: float | None = None
    below: float | None = None
    minutes: int = 5
    dimension: str = "InstanceId"


@dataclass(frozen=True)
class AlarmText:
    """What an alarm and its runbook say. urgency: of URGENCIES; support, source: "" where a site's alarm says none."""

    name: str
    title: str
    urgency: str
    meaning: str
    first: str
    commands: tuple[str, ...]
    support: str
    source: str


@dataclass(frozen=True)
class SiteAlarm(AlarmText):
    """An alarm of a site's own. One of logs and metric is given."""

    logs: LoggedLines | None = None
    metric: WatchedMetric | None = None


_LIMIT = Number()
_ALARM = Keys(
    {
        "title": Text("The monitoring agent lost its server"),
        "urgency": Choice(URGENCIES),
        "meaning": Text("Nothing reaches the monitoring", _SENTENCES, "text of at most 450 characters"),
        "first": Text("Restart the agent", _SENTENCES, "text of at most 450 characters"),
        "commands": ListOf(Text("systemctl status company-monitor")),
        "support": Text("If it comes back, ask the team that runs it"),
        "source": Text("https://monitoring.example.com/docs"),
        "logs": Keys(
            {"group": Text("/company/monitor", r"[\w./#-]{1,512}"), "pattern": Text('"connection lost"')},
            ("group", "pattern"),
        ),
        "metric": Keys(
            {
                "namespace": Text("Company", r"[^:\"]{1,255}"),
                "name": Text("queue_length", r"[\w./-]{1,255}"),
                "statistic": Choice(STATISTICS),
                "above": _LIMIT,
                "below": _LIMIT,
                "minutes": Integer(1, 60),
                "dimension": Text("InstanceId", r"[\w-]{1,255}"),
            },
            ("namespace", "name", "statistic"),
        ),
    },
    ("title", "urgency", "meaning", "first"),
)
_ALARMS_GRAMMAR = MapOf(_ALARM_NAME, "company-monitor-lost", _ALARM)


def alarm_mistakes(path: Path) -> list[str]:
    """Every mistake of a site's alarms, each with its line. UsageError: the file cannot be read, or is not YAML."""
    document = read_yaml_file(path, _ALARMS_HINT)
    lines = lines_of(path)
    return [
        f"{located(str(path), lines, one.path)}: {one.path}: {one.message}" for one in _mistakes_of_alarms(document)
    ]


def read_site_alarms(path: Path) -> tuple[SiteAlarm, ...]:
    """The alarms of a site, in the file's order; none where there is no file. UsageError with every mistake."""
    if not path.is_file():
        return ()
    if mistakes := alarm_mistakes(path):
        raise UsageError(f"{path}: {counted(len(mistakes), 'mistake')}", details=mistakes, hint=_ALARMS_HINT)
    return tuple(_site_alarm(name, row) for name, row in read_yaml_file(path, _ALARMS_HINT).items())


def _mistakes_of_alarms(document: Any) -> Iterator[Mistake]:
    if not isinstance(document, dict):
        yield Mistake("(whole file)", f"expected {_ALARMS_GRAMMAR.expected}")
        return
    yield from _ALARMS_GRAMMAR.check(document, "")
    own = _own_names()
    for name, row in document.items():
        if name in own:
            yield Mistake(str(name), "gpu-ami has an alarm of this name: rename it")
        if isinstance(row, dict):
            yield from _ALARM.missing(row, str(name))
            yield from _compared(str(name), row)


def _compared(name: str, row: Mapping[str, Any]) -> Iterator[Mistake]:
    if ("logs" in row) == ("metric" in row):
        yield Mistake(
            name, "expected either logs (group, pattern) or metric (namespace, name, statistic, above or below)"
        )
    metric = row.get("metric")
    if isinstance(metric, dict) and ("above" in metric) == ("below" in metric):
        yield Mistake(f"{name}.metric", "expected either above or below: the limit that raises the alarm")


def _own_names() -> set[str]:
    table = read_yaml_file(data_dir("variables", "alarms.yml"), "it belongs to gpu-ami: reinstall it")
    return {name for kind in table.values() for name in kind}


def _site_alarm(name: str, row: Mapping[str, Any]) -> SiteAlarm:
    texts = {key: row.get(key, "") for key in ("title", "urgency", "meaning", "first", "support", "source")}
    logs = LoggedLines(**row["logs"]) if "logs" in row else None
    metric = WatchedMetric(**row["metric"]) if "metric" in row else None
    return SiteAlarm(name=name, commands=tuple(row.get("commands", ())), logs=logs, metric=metric, **texts)
