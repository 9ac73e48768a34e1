"""The tables of `variables/facts/`: what is known, each row with its source and the date on which it was read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError

VARIABLES = Path(__file__).resolve().parents[2] / "variables"

Row = Mapping[str, Any]


def read_yaml(path: Path) -> Any:
    """The document in a YAML file, dates as text. UsageError says where the file is not YAML."""
    import yaml

    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_loader())
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file", hint=_neighbours(path)) from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not YAML", details=str(error).splitlines()) from error


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
    return f"did you mean {path.parent / near[0]}?" if near else f"in {path.parent}: {', '.join(there) or 'no *.yml'}"


def did_you_mean(found: object, known: Iterable[str]) -> str:
    """`; did you mean X?`, or nothing where nothing is near."""
    by_folded = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(found).lower(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[near[0]]}?" if near else ""


@dataclass(frozen=True)
class Facts:
    """All tables, as they stand in the files."""

    instance_types: Mapping[str, Row]
    operating_systems: Mapping[str, Row]
    cloudwatch_agent: Row
    telemetry: Mapping[str, Row]
    driver_packages: Mapping[str, Row]


@lru_cache(maxsize=4)
def load_facts(folder: Path = VARIABLES / "facts") -> Facts:
    """Reads every table once a process (they do not change while it runs)."""

    def table(name: str) -> Any:
        return read_yaml(folder / f"{name}.yml")

    return Facts(
        instance_types=table("instance_types")["instance_types"],
        operating_systems=table("operating_systems"),
        cloudwatch_agent=table("cloudwatch_agent"),
        telemetry=table("telemetry"),
        driver_packages=table("driver_packages"),
    )
