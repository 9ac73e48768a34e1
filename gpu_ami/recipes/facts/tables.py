"""The tables of `variables/facts/`: each row has its source and the date on which it was read.

The rows that a plan relies on, and notes on those that are not verified. The architectures of images, and what others
call them: EC2's name → Debian's, rpm's, the GNU triplet.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError, counted
from gpu_ami.files import data_dir, lines_of, located, not_utf_8, parse_yaml, write_text
from validator import measurement
from validator.inputs import read_text
from validator.plan_document import Citation
from validator.schema import did_you_mean, key_path

NEWEST = "newest"


@lru_cache(maxsize=4096)
def parts(version: str) -> tuple[int, ...]:
    """`550.163.01` → (550, 163, 1); `2020.0-088` → (2020, 0, 88). Letters separate numbers, as dots do."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def at_least(version: str, floor: str) -> bool:
    """Is it the floor or newer? A floor that is a branch (`580`) holds for everything in it."""
    return parts(version) >= parts(floor)


def at_most(version: str, ceiling: str) -> bool:
    """Is it the ceiling or older? A ceiling that is a branch (`580`) holds for everything in it."""
    bound = parts(ceiling)
    return parts(version)[: len(bound)] <= bound


def branch(version: str) -> str:
    """`550.163.01` → `550`, `12.4` → `12`."""
    return re.split(r"[.-]", version, maxsplit=1)[0]


def matching(constraint: str, known: Iterable[str]) -> list[str]:
    """Known versions that a constraint allows, newest first: itself, all of its branch, or all."""
    if constraint == NEWEST:
        allowed = list(known)
    else:
        prefix = parts(constraint)
        allowed = [version for version in known if version == constraint or parts(version)[: len(prefix)] == prefix]
    return sorted(allowed, key=parts, reverse=True)


def nearest_first(version: str, known: Sequence[str]) -> list[str]:
    """Known versions, the nearest in their order first; of two as near, the newer."""
    order = sorted({*known, version}, key=parts)
    here = order.index(version)
    return sorted(known, key=lambda other: (abs(order.index(other) - here), -order.index(other)))


def nearest_branch_first(version: str, known: Sequence[str]) -> list[str]:
    """Known versions by their branches' nearness; of a branch, the newest release first."""
    here = int(branch(version))
    return sorted(known, key=lambda other: (abs(int(branch(other)) - here), *(-number for number in parts(other))))


def around(version: str, known: Sequence[str]) -> str:
    """The nearest known version below and above, and the newest: `nearest below 12.6, above 12.8; newest 13.0`."""
    order = sorted(known, key=parts)
    below = [other for other in order if parts(other) < parts(version)]
    above = [other for other in order if parts(other) > parts(version)]
    nearest = [f"below {other}" for other in below[-1:]] + [f"above {other}" for other in above[:1]]
    return f"nearest {', '.join(nearest)}; newest {order[-1]}"


VARIABLES = data_dir("variables")

Row = Mapping[str, Any]
_MOST_BYTES = 1024 * 1024  # of a recipe or a table


def read_yaml(path: Path) -> Any:
    """The document in a YAML file, dates as text. UsageError says where the file is not YAML."""
    try:
        size = path.stat().st_size
        text = read_text(path) if size <= _MOST_BYTES else ""
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file", hint=_neighbours(path)) from error
    except OSError as error:
        hint = _neighbours(path / "x") if path.is_dir() else "expected a YAML file that this user can read"
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {not_utf_8(error.object, error)}", hint="save it as UTF-8") from error
    if size > _MOST_BYTES:
        hint = "a recipe or a table of facts has some kilobytes: is this the right file?"
        raise UsageError(f"{path}: expected at most {_MOST_BYTES >> 20} MiB, got {size / 2**20:.1f} MiB", hint=hint)
    return parse_yaml(text, str(path))


def _neighbours(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent}"
    there = sorted(file.name for file in path.parent.glob("*.yml"))
    near = difflib.get_close_matches(path.name, there, n=1)
    return (
        f"did you mean {path.parent / near[0]}?"
        if near
        else f"in {path.parent}: {', '.join(there) or 'no *.yml; `gpu-ami recipes` lists those that come with it'}"
    )


@dataclass(frozen=True)
class Facts:
    """All tables of variables/facts: `facts.cuda` is the content of cuda.yml. site: the folder with rows of a site."""

    tables: Mapping[str, Row]
    site: Path | None = None

    def __getattr__(self, name: str) -> Row:
        if name != "tables" and name in self.tables:
            return self.tables[name]
        raise AttributeError(f"no table {name} in variables/facts")

    def table(self, name: str) -> Row:
        """A table whose name is known at run time only."""
        return self.tables[name]

    @cached_property
    def driver_releases(self) -> dict[str, Row]:
        """Every known driver release → the row of its branch, oldest first; of NVIDIA and of distributions."""
        branches = self.nvidia_drivers["branches"]
        of_systems = [row["releases"] for row in self.distribution_drivers["systems"].values()]
        packaged = {release for releases in of_systems for release in releases}
        every = {*self.vendor_driver_releases, *packaged}
        return {release: branches[branch(release)] for release in sorted(every, key=parts)}

    @cached_property
    def vendor_driver_releases(self) -> dict[str, Row]:
        """The releases that NVIDIA's own repositories are known to have."""
        return {release: row for row in self.nvidia_drivers["branches"].values() for release in row["releases"]}

    @cached_property
    def read_on(self) -> str:
        """The newest date of any row. What has ended is judged by it: the same files always give the same plan."""
        return max(str(row["date"]) for _, row in self.rows())

    def releases(self, component: str) -> Row:
        """Known releases of a component that a recipe gives a version of, each with its row."""
        if component in ("nvidia_driver", "fabric_manager", "imex"):  # released together
            return self.driver_releases
        if component == "ofi_nccl":  # without a commit it is known from an EFA installer only
            return {version: row for version, row in self.ofi_nccl["releases"].items() if "commit" in row}
        if component == "cloudwatch_agent":
            return self.cloudwatch_agent["versions"]  # type: ignore[no-any-return]
        return self.tables[component]["releases"]  # type: ignore[no-any-return]

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Every row that carries a source, with its path (`cuda.releases.12.4`)."""
        for name, table in self.tables.items():
            yield from _sourced(name, table)


def _sourced(path: str, value: Any) -> Iterator[tuple[str, Row]]:
    if isinstance(value, dict):
        if "source" in value:
            yield path, value
        for key, below in value.items():
            yield from _sourced(f"{path}.{key}", below)
    elif isinstance(value, list):
        for index, below in enumerate(value):
            yield from _sourced(f"{path}[{index}]", below)


@lru_cache(maxsize=4)
def load_facts(folder: Path = VARIABLES / "facts", site: Path | None = None) -> Facts:
    """Reads every table once a process (they do not change while it runs).

    site: a folder of tables whose rows add to ours or take their place. UsageError: it has another table.
    """
    tables = {path.stem: read_yaml(path) for path in sorted(folder.glob("*.yml"))}
    for path in sorted(site.glob("*.yml")) if site else ():
        if path.stem not in tables:
            raise UsageError(f"{path}: no such table{did_you_mean(path.stem, tables)}; tables: {', '.join(tables)}")
        rows = read_yaml(path)
        _require_sources(path, tables[path.stem], rows)
        tables[path.stem] = _with_rows(tables[path.stem], rows)
    for family in tables.get("node_families", {}).values():
        family.setdefault("operating_systems", list(tables["operating_systems"]))
    return Facts(tables, site)


@contextmanager
def judged(facts: Facts) -> Iterator[None]:
    """UsageError where rows of a site's tables have not the keys and kinds of ours: code that reads them stumbles."""
    try:
        yield
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if facts.site is None:
            raise
        text = f"{facts.site}: its rows cannot be used: {type(error).__name__}: {error}"
        hint = "each row has the keys, and the kinds of value, of its table in variables/facts/ (docs/site.md)"
        raise UsageError(text, hint=hint) from error


def _require_sources(path: Path, table: Any, rows: Any) -> None:
    """UsageError: rows of a site without source or date, in a table whose rows have both; a date that is not a day."""
    lines = lines_of(path)
    if undated := list(_undated("", rows)):
        details = [f"{located(str(path), lines, key)}: {key}: {day[:60]!r}" for key, day in undated]
        hint = "date: the day on which the source was read, as 2026-01-31"
        raise UsageError(f"{path}: {counted(len(details), 'row')} whose date is not a day", details=details, hint=hint)
    unsourced = list(_unsourced("", table, rows))
    if unsourced:
        details = [f"{located(str(path), lines, key)}: {key}: missing: {', '.join(what)}" for key, what in unsourced]
        hint = "source: address of what the row is from; date: of the day on which it was read"
        raise UsageError(f"{path}: {counted(len(details), 'row')} without source or date", details=details, hint=hint)


def _undated(above: str, rows: Any) -> Iterator[tuple[str, str]]:
    """Path and text of each date beside a source that is not a day: the age of a plan's rows is counted by it."""
    if isinstance(rows, dict):
        if "source" in rows and "date" in rows:
            try:
                datetime.date.fromisoformat(str(rows["date"]))
            except ValueError:
                yield key_path(above, "date"), str(rows["date"])
        for key, row in rows.items():
            yield from _undated(key_path(above, key), row)
    elif isinstance(rows, list):
        for index, row in enumerate(rows):
            yield from _undated(f"{above}[{index}]", row)


def _unsourced(above: str, table: Any, rows: Any) -> Iterator[tuple[str, list[str]]]:
    """Path of each row that the table does not have, and what it lacks of what all rows beside it have."""
    if not isinstance(table, dict) or not isinstance(rows, dict):
        return
    beside = [row for row in table.values() if isinstance(row, dict)]
    needed = [key for key in ("source", "date") if beside and all(key in row for row in beside)]
    for key, row in rows.items():
        if key in table:
            yield from _unsourced(key_path(above, key), table[key], row)
        elif isinstance(row, dict) and (missing := [name for name in needed if not row.get(name)]):
            yield key_path(above, key), missing


def _with_rows(table: Any, rows: Any) -> Any:
    if not isinstance(table, dict) or not isinstance(rows, dict):
        return rows
    return table | {key: _with_rows(table.get(key), value) for key, value in rows.items()}


class Sources:
    """Collected while a plan is resolved: `rows` for its `sources`, `notes` for its `notes`."""

    def __init__(self) -> None:
        self.rows: list[Citation] = []
        self.notes: list[str] = []

    def add(self, fact: str, row: Row) -> None:
        """A row that the plan relies on; an unverified one leaves a note."""
        unverified = bool(row.get("unverified", False))
        entry: Citation = {"fact": fact, "source": row["source"], "date": row["date"], "unverified": unverified}
        if entry in self.rows:
            return
        self.rows.append(entry)
        if unverified:
            self.note(str(row.get("note") or f"not established: {fact} ({row['source']})"))

    def note(self, text: str) -> None:
        line = " ".join(text.split())
        if line not in self.notes:
            self.notes.append(line)


@dataclass(frozen=True)
class Architecture:
    """deb: as in Debian packages and AWS's download folders; rpm: as in rpm packages and `uname -m`."""

    deb: str
    rpm: str
    triplet: str


ARCHITECTURES = {
    "x86_64": Architecture("amd64", "x86_64", "x86_64-linux-gnu"),
    "arm64": Architecture("arm64", "aarch64", "aarch64-linux-gnu"),
}


def measured(facts: Facts, profile: str) -> list[str]:
    """The measurements of a telemetry profile: those of its row (a site's own profile), or of the table Measurement."""
    row = facts.telemetry.get(profile, {})
    return list(row.get("measurements", measurement.of_set(profile)))


_TABLES = {"nvidia_driver": "nvidia_drivers"}
# Of one release alone: a neighbour's would be wrong.
_OF_ONE_RELEASE = (
    "source", "date", "unverified", "note", "tag", "commit", "sha256", "md5", "packaged", "tested_nccl", "regression",
    "reported", "minimum_ofi_nccl",
)  # fmt: skip
_NEEDED = dict.fromkeys(("gdrcopy", "nccl_tests", "ofi_nccl"), ("tag", "commit"))
# Of one release alone, and named after its version: what a row has without a value of its own.
_NAMED_AFTER_VERSION = {
    "cuda": ("package", "{version}.*"),
    "cudnn": ("full", "{version}*"),
    "mkl": ("package", "intel-mkl-{version}"),
}
# Component → the form of its versions, and one; of others as many numbers as a known version has.
_FORMS = {
    "nvidia_driver": (r"\d{3}\.\d{2,3}(\.\d{2})?", "620.70.06"),
    "mkl": (r"20\d\d\.\d-\d{3}", "2020.4-912"),
    "kernel": (r"\d+\.\d+", "7.2"),
    "eks": (r"\d+\.\d+", "1.39"),
}


def released(facts: Facts, component: str, version: str) -> str:
    """What is known of a version that the tables have no row of, as the end of a sentence."""
    row = facts.released["components"].get(component)
    if row is None:
        return ""
    if version in row["dated"]:
        when = str(row["dated"][version])
        return f"it was released {'on' if when.count('-') == 2 else 'in'} {when} ({row['source']})"
    if version in row.get("used", ()):
        return f"it was released on or before {row['used'][version]} ({row['used_source']})"
    of_branch = [known for known in _listed(row) if parts(known)[: len(parts(version))] == parts(version)]
    return f"releases of it exist, up to {max(of_branch, key=parts)} ({row['source']})" if of_branch else ""


def not_released(facts: Facts, component: str, version: str) -> str:
    """Why a version seems not to exist; "" where that is not known."""
    row = facts.released["components"].get(component)
    if row is None or released(facts, component, version):
        return ""
    days = {**row["dated"], **row.get("used", {})}  # whole until its day: what is newer may have come since
    whole = [parts(known) for known, day in days.items() if str(day) <= str(row["until"])]
    if not whole or parts(version) > max(whole):
        return ""
    return f"no such release is known up to {row['until']} ({row['source']})"


def _listed(row: Row) -> list[str]:
    return [*row["dated"], *row.get("used", ())]


def add_row(facts: Facts, component: str, version: str, site: Path, values: Mapping[str, Any], *, today: str) -> Path:
    """Writes a row into `site/facts/`, and returns the table's path. UsageError: there is one, or a value is missing.

    What a release contains and needs is taken from its nearest neighbour unless `values` say it: the row is unverified.
    """
    if component in ("kernel", "eks"):
        _require_form(component, version, _FORMS[component])
        return _add_to_system(facts, component, version, site, values, today=today)
    table, known = _TABLES.get(component, component), _known(facts, component)
    _require_form(component, version, _FORMS.get(component) or _form_of(known))
    if version in known:
        raise UsageError(f"{component} {version} is in the tables: {facts.releases(component)[version].get('source')}")
    if not values.get("source"):
        raise UsageError(
            f"{component} {version}: a row needs its source", hint="--set source='URL of its release notes'"
        )
    missing = [key for key in _NEEDED.get(component, ()) if key not in values]
    if missing:
        raise UsageError(f"{component} {version}: expected also {', '.join(missing)}", hint=f"--set {missing[0]}=…")
    path = site / "facts" / f"{table}.yml"
    document = read_yaml(path) if path.is_file() else {}
    if component == "nvidia_driver":
        row: Any = _driver(facts, document or {}, version, values, today)
    else:
        near = facts.releases(component)[nearest_first(version, known)[0]]
        row = {"releases": {version: _named_after(component, version) | _row(near, values, today)}}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _as_yaml(_merged(document or {}, row)))
    return path


def _form_of(known: Sequence[str]) -> tuple[str, str]:
    counts = sorted({version.count(".") for version in known})
    return "|".join(rf"\d+(?:\.\d+){{{count}}}" for count in counts), max(known, key=parts)


def _require_form(component: str, version: str, form: tuple[str, str]) -> None:
    pattern, example = form
    if not re.fullmatch(pattern, version):
        raise UsageError(f"{component}: expected a whole version, such as {example}, got {version!r}")


def _named_after(component: str, version: str) -> dict[str, str]:
    key, text = _NAMED_AFTER_VERSION.get(component, ("", ""))
    return {key: text.format(version=version)} if key else {}


def _known(facts: Facts, component: str) -> list[str]:
    try:
        return [str(version) for version in facts.releases(component)]
    except KeyError as error:
        raise UsageError(
            f"{component}: no table of releases", hint="nvidia_driver, cuda, nccl, efa, ofi_nccl, …"
        ) from error


def _row(near: Row, values: Mapping[str, Any], today: str) -> dict[str, Any]:
    named = {key for key, _ in _NAMED_AFTER_VERSION.values()}
    base = {key: value for key, value in near.items() if key not in _OF_ONE_RELEASE and key not in named}
    if "tested_nccl" in near:
        base["tested_nccl"] = []
    return {**base, **values, "date": today, "unverified": True}


_OF_A_BRANCH = ("kind", "end_of_support", "highest_cuda")


def _driver(
    facts: Facts, document: Mapping[str, Any], version: str, values: Mapping[str, Any], today: str
) -> dict[str, Any]:
    """A branch lists its releases: the site's list takes the place of ours, so it has both. A new branch is a row."""
    name = branch(version)
    rows = facts.nvidia_drivers["branches"]
    if name not in rows:
        if missing := [key for key in _OF_A_BRANCH if key not in values]:
            raise UsageError(
                f"driver {version}: R{name} is a new branch; expected also {', '.join(missing)}",
                hint=f"--set {missing[0]}=…; branches with a row: {', '.join(rows)}",
            )
        if not re.fullmatch(r"20\d\d-\d\d", str(values["end_of_support"])):
            raise UsageError(f"end_of_support: expected a month, such as 2029-09, got {values['end_of_support']}")
        newest = rows[max(rows, key=int)]
        of_branch = {key: str(values[key]) for key in _OF_A_BRANCH}
        row = {"flavours": list(newest["flavours"]), **values, **of_branch, "releases": [version]}
        return {"branches": {name: {**row, "date": today, "unverified": True}}}
    own = document.get("branches", {}).get(name, {}).get("releases", rows[name]["releases"])
    releases = sorted({*map(str, own), version}, key=parts)
    return {"branches": {name: {"releases": releases}}}


def _add_to_system(
    facts: Facts, component: str, version: str, site: Path, values: Mapping[str, Any], *, today: str
) -> Path:
    """A kernel series of an operating system (`os=`), or a version of EKS with the kernel of its AMI (`kernel=`)."""
    needed = ("source", "os") if component == "kernel" else ("source", "kernel")
    if missing := [key for key in needed if not values.get(key)]:
        hint = f"--set {missing[0]}=…"
        raise UsageError(f"{component} {version}: expected also {', '.join(missing)}", hint=hint)
    if component == "eks":
        _require_form("kernel", str(values["kernel"]), _FORMS["kernel"])
        table = "node_families"
        row: Any = {"kernel": str(values["kernel"]), "source": values["source"], "date": today, "unverified": True}
        document: dict[str, Any] = {"eks": {"versions": {version: row}}}
    else:
        table, name = "operating_systems", str(values["os"])
        if name not in facts.operating_systems:
            known = facts.operating_systems
            raise UsageError(
                f"os {name}: not in the facts{did_you_mean(name, known)}", hint=f"one of {', '.join(known)}"
            )
        kernels = [*map(str, facts.operating_systems[name]["kernels"])]
        document = {name: {"kernels": [*kernels, *([] if version in kernels else [version])]}}
        document[name] |= {"source": values["source"], "date": today}
    path = site / "facts" / f"{table}.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    there = read_yaml(path) if path.is_file() else {}
    write_text(path, _as_yaml(_merged(there or {}, document)))
    return path


def add_changes(table: str, before: str, after: str, site: Path) -> Path:
    """Writes what differs between two texts of a table into `site/facts/`, beside the site's own rows of it.

    A list takes the place of the table's own, so it is written whole, with what the site had added to it.
    """
    path = site / "facts" / f"{table}.yml"
    own = (read_yaml(path) or {}) if path.is_file() else {}
    changed = _changes(parse_yaml(before, table), parse_yaml(after, table))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _as_yaml(_merged(own, _with_own(own, changed))))
    return path


def _changes(before: Any, after: Mapping[str, Any]) -> dict[str, Any]:
    old = before if isinstance(before, dict) else {}
    return {
        key: _changes(old[key], value) if isinstance(value, dict) and isinstance(old.get(key), dict) else value
        for key, value in after.items()
        if value != old.get(key)
    }


def _with_own(own: Any, changed: Mapping[str, Any]) -> dict[str, Any]:
    """The changes; to a list of them the site's own further values are added."""
    kept: dict[str, Any] = {}
    for key, value in changed.items():
        old = own.get(key) if isinstance(own, dict) else None
        if isinstance(value, dict):
            kept[key] = _with_own(old, value)
        else:
            further = old if isinstance(old, list) and isinstance(value, list) else []
            kept[key] = sorted({*map(str, value), *map(str, further)}, key=parts) if further else value
    return kept


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _as_yaml(document: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=140)
