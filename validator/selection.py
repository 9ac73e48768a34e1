"""The plugin's command-line options; which checks run, by plan, kind of host, restart and tier; what results call them.

An item's id, role, tier and promise in the results are derived here (`describe`).
"""

from __future__ import annotations

import difflib
import functools
import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from validator import isolation, tiers
from validator.plan import OBSERVED
from validator.results import CheckRecord
from validator.transport import backend

if TYPE_CHECKING:
    from validator.plan_document import PlanDocument


def add_options(parser: pytest.Parser) -> None:
    """Adds them to pytest's. Paths arrive as Path, times in seconds."""
    group = parser.getgroup("validator", "the proof of an image")
    group.addoption("--plan", metavar="FILE", type=Path, help="plan.json that the image was built from")
    group.addoption("--results", metavar="FILE", type=Path, help="write checks.json to FILE")
    group.addoption("--evidence", metavar="DIR", type=Path, help="write the host's logs and states to DIR")
    group.addoption("--no-evidence", action="store_true", help="run no commands on a host but those of the checks")
    group.addoption(
        "--waivers", metavar="FILE", type=Path, help="checks that may fail, with reason, owner and last day"
    )
    group.addoption("--instance-id", metavar="ID", help="instance id; default: from the instance metadata")
    group.addoption("--instance-type", metavar="TYPE", help="instance type; default: from the instance metadata")
    group.addoption(
        "--after", metavar="RESTART", help="the host was restarted: run only the checks that must hold after it"
    )
    group.addoption(
        "--nodes", metavar="FILE", type=Path, help="machines that work together: run only the checks of tier T4"
    )
    group.addoption(
        "--join", metavar="FILE", type=Path, help="the cluster and its nodes: run only the checks of tier TN"
    )
    group.addoption("--tier", metavar="TIER", choices=tiers.NAMES, help="run only the checks of this tier")
    group.addoption("--known-hosts", metavar="FILE", type=Path, help="host keys; an unknown host is recorded there")
    group.addoption(
        "--proxy-command",
        metavar="COMMAND",
        default="",
        help="program through which hosts are reached, as OpenSSH's ProxyCommand (%%h, %%p, %%r)",
    )
    group.addoption(
        "--log-group-suffix",
        metavar="TEXT",
        default="",
        help="what this host's agent appends to planned log groups",
    )
    group.addoption("--aws-region", metavar="REGION", help="region of its metrics and logs")
    group.addoption("--aws-endpoint", metavar="URL", help="endpoint of CloudWatch; default: AWS")
    group.addoption("--aws-profile", metavar="NAME", help="AWS profile of the credentials")
    group.addoption(
        "--arrival-seconds", type=float, default=900.0, help="seconds within which metrics must arrive [%(default)s]"
    )
    group.addoption("--command-deadline", type=float, default=120.0, help="seconds for each command [%(default)s]")
    text = "seconds that all answers of a host may take [%(default)s]"
    group.addoption("--host-deadline", type=float, default=backend.DEFAULTS.host_seconds, help=text)
    group.addoption("--check-deadline", type=float, default=1200.0, help="seconds for each check [%(default)s]")
    group.addoption(
        "--roles-path", metavar="DIR", type=Path, action="append", default=[], help="roles, for their footprint.yml"
    )
    group.addoption(
        "--base-inventory", metavar="DIR", type=Path, help="folder of base-inventory.jsonl.gz [that of --plan]"
    )
    group.addoption(
        "--serial", action="store_true", help="run one check after the other, with one round trip for each command"
    )
    isolation.add_option(group)
    group.addoption("--connect-timeout", type=float, default=15.0, help="seconds for a host to answer [%(default)s]")


# Sections that every image of this project has; without a plan only their checks run.
_OF_EVERY_IMAGE = ("kernel", "nvidia_driver", "cloudwatch_agent", "event_parser", "telemetry.measurements")


def select(config: pytest.Config, items: list[pytest.Item], plan: PlanDocument | None) -> None:
    """Deselects checks that do not apply."""
    after, only = config.getoption("after"), config.getoption("tier")
    own_pass = {tiers.NODE: bool(config.getoption("join")), tiers.SEVERAL_NODES: bool(config.getoption("nodes"))}
    if not (config.getoption("collectonly") and config.getoption("results")):  # a list has both
        _keep(config, items, lambda item: own_pass.get(tier_of(item), not any(own_pass.values())))
    if plan is not None:
        _keep(config, items, lambda item: _is_planned(item, plan))
        if plan.get("origin") == OBSERVED:  # it promises nothing
            _keep(config, items, lambda item: needs_of(item) != PROMISE)
    else:
        for item in items:
            if "planned" in item.keywords:
                _skip_unplanned(item)
    if not (config.getoption("collectonly") and config.getoption("results")):  # a list has those too
        _keep(config, items, lambda item: marker_of(item, "offline") is None or _is_offline(item))
    if after:
        _keep(config, items, lambda item: marker_of(item, "survives") is not None)
    if only:
        _keep(config, items, lambda item: tier_of(item) == only)


def order(items: list[pytest.Item], plan: PlanDocument | None) -> None:
    """Orders live checks after all read-only ones, and checks that need what those leave after them."""
    items.sort(key=lambda item: _turn(item, plan))


def _turn(item: pytest.Item, plan: PlanDocument | None) -> int:
    """Live checks change the machine, so read-only checks run before them, but for those that need what they leave."""
    if marker_of(item, "live"):
        return 1
    if plan is None or "after_live" not in item.keywords:
        return 0
    needed = [str(marker.args[0]) for marker in item.iter_markers("after_live")]
    return 2 if any(_has(plan, section) for section in needed) else 0


def require_some_of_each(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """UsageError if a folder or file has no check: a misspelt file name must not count as passed."""
    for argument in config.args:
        path = path_of(argument, config)
        if not any(item.path.resolve().is_relative_to(path) for item in items):
            raise pytest.UsageError(f"no check in {path}: expected files test_*.py with functions test_*")


def _is_planned(item: pytest.Item, plan: PlanDocument) -> bool:
    planned = all(_has(plan, str(marker.args[0])) for marker in item.iter_markers("planned"))
    return planned and not any(_has(plan, str(marker.args[0])) for marker in item.iter_markers("without"))


def _skip_unplanned(item: pytest.Item) -> None:
    """Skips a check of a section that not every image has: without a plan it is unknown whether this one has it."""
    sections = [str(marker.args[0]) for marker in item.iter_markers("planned")]
    some = [section for section in sections if section not in _OF_EVERY_IMAGE]
    if some:
        item.add_marker(pytest.mark.skip(f"no --plan: unknown whether the machine must have {some[0]}"))


def _has(plan: PlanDocument, path: str) -> bool:
    """Whether the plan has the section and, for `section.key`, a value of the key that is not empty."""
    from validator.plan_document import section

    name, _, key = path.partition(".")
    return name in plan and (not key or bool(section(plan, name).get(key)))


MARKS = ("tier", "planned", "without", "needs", "survives", "live", "after_live", "offline")
MISSPELT = 0.75  # similarity of `teir` and `tier`; of `needs_gpu` and `needs` it is 0.71


def require_known_marks(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """UsageError: a mark that is not registered and looks like one of ours, which would have no effect."""
    registered = {str(line).partition(":")[0].partition("(")[0].strip() for line in config.getini("markers")}
    users = [item for item in items if item.path.parent != isolation.CHECKS]
    unknown = {mark.name: item for item in users for mark in item.iter_markers() if mark.name not in registered}
    for name, marked in unknown.items():
        if near := difflib.get_close_matches(name, MARKS, n=1, cutoff=MISSPELT):
            raise pytest.UsageError(
                f"{_where(marked)}: unknown mark {name!r}; did you mean {near[0]}? "
                "A mark of your own is registered in conftest.py: config.addinivalue_line('markers', …)"
            )


def require_the_examined_host(config: pytest.Config, items: Iterable[pytest.Item]) -> None:
    """UsageError: a user's fixture `host` that does not take testinfra's, so its checks examine another machine."""
    if not isolation.is_isolated(config):
        return
    for item in items:
        fixtures = getattr(item, "_fixtureinfo", None)
        definitions = list(fixtures.name2fixturedefs.get("host", ())) if fixtures is not None else []
        while len(definitions) > 1 and "host" in definitions[-1].argnames:
            definitions.pop()  # it takes the one before it
        source = isolation.file_of(definitions[-1].func) if definitions else None
        if source is not None and not isolation.is_ours(source):
            raise pytest.UsageError(
                f"{_where(item)}: the fixture host in {source} replaces the examined machine; "
                "let it take `host` as an argument, or give it another name"
            )


def _where(item: pytest.Item) -> str:
    return f"{item.path}::{getattr(item, 'originalname', None) or item.name}"


def _is_offline(item: pytest.Item) -> bool:
    _, host = host_of(item)
    return isinstance(getattr(host, "backend", None), backend.ImageBackend)


def _keep(config: pytest.Config, items: list[pytest.Item], applies: Callable[[pytest.Item], bool]) -> None:
    kept = [(item, applies(item)) for item in items]
    config.hook.pytest_deselected(items=[item for item, keep in kept if not keep])
    items[:] = [item for item, keep in kept if keep]


LOCAL = "local://"


def describe(item: pytest.Item) -> CheckRecord:
    """The record of an item before it has run."""
    name = getattr(item, "originalname", None) or item.name
    function = getattr(item, "function", None)
    after = item.config.getoption("after") or ""
    described = _described(
        item.path, item.parent, name, function.__doc__ if function else "", tier_of(item), after=after
    )
    return described.changed(
        {"needs": needs_of(item), "id": f"{described.id}{host_parameters(item)}{f'@{after}' if after else ''}"}
    )


@functools.lru_cache(maxsize=256)
def _described(path: Path, parent: Any, name: str, text: str | None, tier: str, *, after: str) -> CheckRecord:
    """The record of a function's items, with an id that lacks their parameters. text: the function's docstring."""
    role = path.stem
    promise = (text or name.removeprefix("test_").replace("_", " ")).strip().split("\n")[0]
    classes = "".join(f"{node.name}::" for node in parent.listchain() if isinstance(node, pytest.Class))
    promise = f"After {after}: {promise}" if after else promise
    return CheckRecord(f"{role}::{classes}{name}", role, tier, promise, after=after)


def marker_of(item: pytest.Item, name: str) -> pytest.Mark | None:
    """An item's closest marker. What is not among its keywords is not searched for: most items have none."""
    return item.get_closest_marker(name) if name in item.keywords else None


NOTHING, OBSERVED_VALUE, PROMISE = "nothing", "observed", "promise"


def needs_of(item: pytest.Item) -> str:
    """What a check needs: nothing, an observed value, or a promise of a recipe. UsageError: another mark."""
    marker = marker_of(item, "needs")
    name = str(marker.args[0]) if marker and marker.args else NOTHING
    if name not in (NOTHING, OBSERVED_VALUE, PROMISE):
        raise pytest.UsageError(f"{_where(item)}: expected needs of nothing, observed or promise, got {name!r}")
    return name


def tier_of(item: pytest.Item) -> str:
    """The tier that an item is marked with; T1 by default. UsageError: unknown tier."""
    marker = marker_of(item, "tier")
    name = str(marker.args[0]) if marker and marker.args else "T1"
    if name not in tiers.NAMES:
        raise pytest.UsageError(f"{_where(item)}: expected a tier of {', '.join(tiers.NAMES)}, got {name!r}")
    return name


def host_of(item: pytest.Item) -> tuple[str, Any]:
    """The id of an item's host and the host; LOCAL and None without a host."""
    host = getattr(getattr(item, "callspec", None), "params", {}).get("_testinfra_host")
    name = host.backend.get_pytest_id() if host is not None else LOCAL
    return name, host


def make_distinct(record: CheckRecord, item: pytest.Item, taken: Collection[str]) -> CheckRecord:
    """The record with an id that is not in `taken`: checks in files of one name, or on two hosts, differ."""
    if record.id in taken:
        role = str(_below(item.path, item.config).with_suffix(""))
        record = record.changed({"id": f"{role}{record.id.removeprefix(record.role)}", "role": role})
    suffix = f"@{record.after}" if record.after else ""
    plain = record.id.removesuffix(suffix)
    for number in itertools.count(2):
        if record.id not in taken:
            break
        record = record.changed({"id": f"{plain}#{number}{suffix}"})
    return record


def path_of(argument: str, config: pytest.Config) -> Path:
    """The file or folder that an argument of the command line names."""
    return (config.invocation_params.dir / argument.partition("::")[0]).resolve()


def _below(path: Path, config: pytest.Config) -> Path:
    """A file's path relative to the folder in the command line, with the folder's name."""
    for argument in config.args:
        folder = path_of(argument, config)
        if path.is_relative_to(folder) and path != folder:
            return path.relative_to(folder.parent)
    return path


def host_parameters(item: pytest.Item) -> str:
    """A check's own parameters in brackets, without the host."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return ""
    host = callspec.params.get("_testinfra_host")
    text = f"-{callspec.id}-".replace(f"-{host.backend.get_pytest_id()}-", "-", 1) if host is not None else callspec.id
    return f"[{text.strip('-')}]" if text.strip("-") else ""
