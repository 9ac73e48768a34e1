"""Releases that the tables lack: whether one was released, and a row for it in a site's own facts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError
from gpu_ami.files import write_text
from gpu_ami.recipes.facts.tables import Facts, Row, read_yaml
from gpu_ami.recipes.facts.versions import branch, nearest_first, parts

_TABLES = {"nvidia_driver": "nvidia_drivers"}
# Of one release alone: a neighbour's would be wrong.
_OF_ONE_RELEASE = (
    "source", "date", "unverified", "tag", "commit", "sha256", "md5", "packaged", "tested_nccl", "regression",
    "reported", "minimum_ofi_nccl",
)  # fmt: skip
_NEEDED = {"ofi_nccl": ("tag", "commit")}


def released(facts: Facts, component: str, version: str) -> str:
    """What is known of a version that the tables have no row of, as the end of a sentence."""
    row = facts.released["components"].get(component)
    if row is None:
        return ""
    if version in row["dated"]:
        return f"it was released on {row['dated'][version]} ({row['source']})"
    if version in row.get("used", ()):
        return f"it was released on or before {row['used'][version]} ({row['used_source']})"
    if version in row.get("recalled", ()):
        return "it was released, as far as is recalled: no source of it was found"
    of_branch = [known for known in _listed(row) if parts(known)[: len(parts(version))] == parts(version)]
    return f"releases of it exist, up to {max(of_branch, key=parts)} ({row['source']})" if of_branch else ""


def not_released(facts: Facts, component: str, version: str) -> str:
    """Why a version seems not to exist; "" where that is not known."""
    row = facts.released["components"].get(component)
    known = _listed(row) if row else []
    if not known or released(facts, component, version) or parts(version) > max(map(parts, known)):
        return ""
    return f"no such release is known up to {row['until']} ({row['source']})" if row else ""


def _listed(row: Row) -> list[str]:
    return [*row["dated"], *row.get("used", ()), *row.get("recalled", ())]


def add_row(facts: Facts, component: str, version: str, site: Path, values: Mapping[str, Any], today: str) -> Path:
    """Writes a row into `site/facts/`, and returns the table's path. UsageError: there is one, or a value is missing.

    What a release contains and needs is taken from its nearest neighbour unless `values` say it: the row is unverified.
    """
    table, known = _TABLES.get(component, component), _known(facts, component)
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
        row: Any = _driver(facts, document or {}, version)
    else:
        near = facts.releases(component)[nearest_first(version, known)[0]]
        row = {"releases": {version: _row(near, values, today)}}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _as_yaml(_merged(document or {}, row)))
    return path


def _known(facts: Facts, component: str) -> list[str]:
    try:
        return [str(version) for version in facts.releases(component)]
    except KeyError as error:
        raise UsageError(
            f"{component}: no table of releases", hint="nvidia_driver, cuda, nccl, efa, ofi_nccl, …"
        ) from error


def _row(near: Row, values: Mapping[str, Any], today: str) -> dict[str, Any]:
    base = {key: value for key, value in near.items() if key not in _OF_ONE_RELEASE}
    if "tested_nccl" in near:
        base["tested_nccl"] = []
    return {**base, **values, "date": today, "unverified": True}


def _driver(facts: Facts, document: Mapping[str, Any], version: str) -> dict[str, Any]:
    """A branch lists its releases: the site's list takes the place of ours, so it holds both."""
    name = branch(version)
    rows = facts.nvidia_drivers["branches"]
    if name not in rows:
        raise UsageError(f"driver {version}: no row of the branch R{name}", hint=f"branches: {', '.join(rows)}")
    own = document.get("branches", {}).get(name, {}).get("releases", rows[name]["releases"])
    releases = sorted({*map(str, own), version}, key=parts)
    return {"branches": {name: {"releases": releases}}}


def _merged(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(first)
    for key, value in second.items():
        old = merged.get(key)
        merged[key] = _merged(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


def _as_yaml(document: Mapping[str, Any]) -> str:
    import yaml

    return yaml.safe_dump(dict(document), sort_keys=False, allow_unicode=True, width=140)
