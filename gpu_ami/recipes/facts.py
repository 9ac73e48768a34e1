"""The tables of `variables/facts/`: what is known, each row with its source and the date on which it was read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError

VARIABLES = Path(__file__).resolve().parents[2] / "variables"

Row = Mapping[str, Any]


def read_yaml(path: Path) -> Any:
    """The document in a YAML file, dates as text. UsageError says where the file is not YAML."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file", hint=_neighbours(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> Any:
    """The document in a text; `name` stands for it in the message."""
    import yaml

    try:
        return yaml.load(text, Loader=_loader())
    except (yaml.YAMLError, ValueError, RecursionError, AttributeError, TypeError) as error:
        raise UsageError(f"{name}: not YAML", details=str(error).splitlines()) from error


@lru_cache(maxsize=1)
def _loader() -> Any:
    """YAML's safe loader, in C where it was built so; a date stays the text that was written."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("TextDates", (base,), {})
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }
    return loader


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


def did_you_mean(found: object, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where nothing is near."""
    by_folded = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(found).lower(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[near[0]]}?" if near else ""


@dataclass(frozen=True)
class Facts:
    """All tables, as they stand in the files; a field a file."""

    instance_types: Row
    operating_systems: Row
    node_families: Row
    nvidia_drivers: Row
    driver_packages: Row
    cuda: Row
    cudnn: Row
    nccl: Row
    efa: Row
    ofi_nccl: Row
    gdrcopy: Row
    dcgm: Row
    container_toolkit: Row
    neuron: Row
    mkl: Row
    lustre: Row
    tuning: Row
    gpudirect: Row
    ansible: Row
    cloudwatch_agent: Row
    telemetry: Row

    @cached_property
    def driver_releases(self) -> dict[str, Row]:
        """Every known driver release → the row of its branch, oldest first."""
        return {release: row for row in self.nvidia_drivers["branches"].values() for release in row["releases"]}

    @cached_property
    def read_on(self) -> str:
        """The newest date of any row. What has ended is judged by it: the same files always give the same plan."""
        return max(str(row["date"]) for _, row in self.rows())

    def releases(self, component: str) -> Row:
        """Known releases of a component that a recipe gives a version of, each with its row."""
        if component in ("nvidia_driver", "fabric_manager", "imex"):  # released together
            return self.driver_releases
        if component == "cloudwatch_agent":
            return self.cloudwatch_agent["versions"]  # type: ignore[no-any-return]
        return getattr(self, component)["releases"]  # type: ignore[no-any-return]

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Every row that carries a source, with its path (`cuda.releases.12.4`)."""
        for field in fields(self):
            yield from _sourced(field.name, getattr(self, field.name))


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
def load_facts(folder: Path = VARIABLES / "facts") -> Facts:
    """Reads every table once a process (they do not change while it runs)."""
    return Facts(**{field.name: read_yaml(folder / f"{field.name}.yml") for field in fields(Facts)})
