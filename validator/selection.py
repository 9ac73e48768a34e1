"""The command-line options of the plugin, and the checks that run, by plan, kind of host, restart and tier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from validator import identity, tiers
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
    group.addoption("--carried", metavar="FILE", type=Path, help="ids, one a line, of checks that an earlier proof has")
    group.addoption(
        "--nodes", metavar="FILE", type=Path, help="machines that work together: run only the checks of tier T4"
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
    group.addoption("--connect-timeout", type=float, default=15.0, help="seconds for a host to answer [%(default)s]")


SEVERAL_NODES = "T4"
# Sections that every image of this project has; without a plan only their checks run.
_OF_EVERY_IMAGE = ("kernel", "nvidia_driver")


def select(config: pytest.Config, items: list[pytest.Item], plan: PlanDocument | None) -> None:
    """Deselects checks that do not apply."""
    after, only = config.getoption("after"), config.getoption("tier")
    several = bool(config.getoption("nodes"))
    if not (config.getoption("collectonly") and config.getoption("results")):  # a list has both
        _keep(config, items, lambda item: (identity.tier_of(item) == SEVERAL_NODES) is several)
    if plan is not None:
        _keep(config, items, lambda item: _is_planned(item, plan))
    else:
        for item in items:
            if "planned" in item.keywords:
                _skip_unplanned(item)
    if not (config.getoption("collectonly") and config.getoption("results")):  # a list has those too
        _keep(config, items, lambda item: identity.marker_of(item, "offline") is None or _is_offline(item))
    if after:
        _keep(config, items, lambda item: identity.marker_of(item, "survives") is not None)
    if config.getoption("carried"):
        carried = set(config.getoption("carried").read_text(encoding="utf-8").splitlines())
        _keep(config, items, lambda item: identity.describe(item).id not in carried)
    if only:
        _keep(config, items, lambda item: identity.tier_of(item) == only)


def order(items: list[pytest.Item], plan: PlanDocument | None) -> None:
    """Orders live checks after all read-only ones, and checks that need what those leave after them."""
    items.sort(key=lambda item: _turn(item, plan))


def _turn(item: pytest.Item, plan: PlanDocument | None) -> int:
    """Live checks change the machine, so read-only checks run before them, but for those that need what they leave."""
    if identity.marker_of(item, "live"):
        return 1
    if plan is None or "after_live" not in item.keywords:
        return 0
    needed = [str(marker.args[0]) for marker in item.iter_markers("after_live")]
    return 2 if any(_has(plan, section) for section in needed) else 0


def require_some_of_each(config: pytest.Config, items: Sequence[pytest.Item]) -> None:
    """UsageError if a folder or file has no check: a misspelt file name must not count as passed."""
    for argument in config.args:
        path = identity.path_of(argument, config)
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


def _is_offline(item: pytest.Item) -> bool:
    _, host = identity.host_of(item)
    return isinstance(getattr(host, "backend", None), backend.ImageBackend)


def _keep(config: pytest.Config, items: list[pytest.Item], applies: Callable[[pytest.Item], bool]) -> None:
    kept = [(item, applies(item)) for item in items]
    config.hook.pytest_deselected(items=[item for item, keep in kept if not keep])
    items[:] = [item for item, keep in kept if keep]
