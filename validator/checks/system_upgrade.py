"""An upgrade of the whole system in service succeeds, and changes nothing of what was planned and proven together."""

from __future__ import annotations

from typing import Any

import pytest

from validator.file_account import plan_variables
from validator.observe import Observe, unproven
from validator.plan_document import PlanDocument
from validator.probes import SinceImage, Upgrade, still_holds, system_upgrade

_SHOWN = 10


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_newer_versions_leave_the_stack_alone(
    host: Any, plan: PlanDocument, since_image: SinceImage | None, observe: Observe
) -> None:
    """With newer drivers, libraries, DKMS and kernels available, an upgrade of the system installs none of them.

    The stack is what the plan names, what is bound to its version or came with it, DKMS and the kernel. If one of its
    packages is not held, `dnf upgrade` is refused as a whole, or a driver is replaced that was not proven. The newer
    versions are made up by the check; no repository is asked. On a machine with apt the upgrade is not simulated again
    if this check passed on the image's files, and nothing of what it follows from has changed since.
    """
    check = "system_upgrade::test_newer_versions_leave_the_stack_alone"
    if still_holds(since_image, check, system_upgrade.inputs(plan), observe):
        return
    upgrade = system_upgrade.simulate(host, plan)
    if not upgrade.stack:
        unproven("the plan names no package")
    observe(_shown(upgrade), f"nothing of {len(upgrade.stack)} packages: {', '.join(sorted(upgrade.stack))}")
    _require_not_refused(upgrade, observe)
    if upgrade.changes:
        observe.fail(f"an upgrade would change the stack: {_listed(upgrade)}")
    if _not_held(upgrade):  # apt's pins keep a package, too; they are no answer to an upgrade that somebody asks for
        observe.fail(f"packages of the stack that are not held: {_not_held(upgrade)}")


@pytest.mark.needs("promise")
def test_repositories_leave_the_stack_alone(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """An upgrade of the system from its own repositories, as they are now, completes and changes none of the stack."""
    upgrade = system_upgrade.simulate(host, plan, repositories=True)
    if not upgrade.stack:
        unproven("the plan names no package")
    observe(_shown(upgrade), f"nothing of {len(upgrade.stack)} packages")
    if upgrade.problem and not any(name in upgrade.problem for name in upgrade.stack):
        unproven(f"the upgrade is refused, and not for a package of the plan: {upgrade.problem[:1000]}")
    _require_not_refused(upgrade, observe)
    sources = plan_variables(plan)["source"]
    wrong = [change for change in upgrade.changes if change.name in upgrade.stack or change.source in sources]
    if wrong:
        observe.fail(f"an upgrade would change the stack: {'; '.join(map(str, wrong[:_SHOWN]))}")


def _require_not_refused(upgrade: Upgrade, observe: Observe) -> None:
    __tracebackhide__ = True
    if upgrade.problem:
        observe.fail(
            f"an upgrade is refused: {upgrade.problem.strip()[:1000]}\nnot held: {_not_held(upgrade) or 'none'}"
        )


def _not_held(upgrade: Upgrade) -> str:
    return ", ".join(sorted(upgrade.to_hold - upgrade.held))


def _shown(upgrade: Upgrade) -> list[str] | str:
    return [str(change) for change in upgrade.changes[:_SHOWN]] or upgrade.problem[:200] or "nothing would change"


def _listed(upgrade: Upgrade) -> str:
    more = f" and {len(upgrade.changes) - _SHOWN} more" if len(upgrade.changes) > _SHOWN else ""
    return "; ".join(map(str, upgrade.changes[:_SHOWN])) + more
