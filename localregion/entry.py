"""The region of this machine as gpu-ami sees it: what the entry point `gpu_ami.regions` names (pyproject.toml).

Implements the protocols of `gpu_ami.region`. Imported by every command, so it loads the rest of the package late.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.errors import UsageError
from gpu_ami.region import MACHINE, SANDBOX, Prerequisite, Region, RegionProvider, Session, SessionRequest, examine

if TYPE_CHECKING:
    from gpu_ami.cloud import Place, Run
    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress
    from gpu_ami.recipes import PlanDocument

NAME = "local"


def require_extra() -> None:
    """UsageError: moto, which answers the region's API, is not installed."""
    if find_spec("moto") is None:
        hint = "pip install 'gpu-ami[local]', or name a place on AWS: --where FILE"
        raise UsageError("the local region needs the extra `local` of gpu-ami: moto is not installed", hint=hint)


class LocalRegion:
    """The region for one session: up while it is open, and down after it if nobody else uses it."""

    name = NAME
    file = None

    def __init__(self, request: SessionRequest) -> None:
        from gpu_ami.files import home_dir

        self._request, self._home = request, home_dir()
        self._progress: Progress | None = None

    @property
    def images(self) -> Path | None:
        return self._home / "images"

    def open(self, run: Run, progress: Progress) -> Session:
        from gpu_ami.cloud import Cloud
        from localregion import region

        request, self._progress = self._request, progress
        up = region.up(
            self._home, embedded=True, progress=progress, conditions=request.conditions, build=self._coming_build()
        )
        place = request.applied_to(up)
        is_sandbox, note = choose_builder(request.builder, place.conditions)
        place = replace(place, machines=replace(place.machines, sandbox_builder=is_sandbox))
        self._ensure_mirror(None)
        cloud = Cloud(place, progress.note)
        examine(cloud, progress)
        return Session(place, cloud, run, progress, self, builder_note=note)

    def _coming_build(self) -> str:
        """What the daemon prepares for while it starts; nothing for builders that are booted."""
        from gpu_ami.build import layering
        from localregion.state import FROM_BASE, FROM_LAYER

        request = self._request
        if request.layering is None or request.builder == MACHINE or request.conditions:
            return ""
        return FROM_BASE if request.layering.mode == layering.NONE else FROM_LAYER

    def _ensure_mirror(self, plan: PlanDocument | None) -> None:
        from localregion.mirror import mirror

        package = self._request.agent_package
        mirror.ensure(self._home, plan=plan, agent_package=package, progress=self._opened())

    def _opened(self) -> Progress:
        if self._progress is None:
            raise RuntimeError("the region is not open")
        return self._progress

    def prepare(self, plan: PlanDocument) -> None:
        from localregion import architectures
        from localregion.images import source_ami
        from localregion.mirror import package_requests

        architectures.require_packages(plan["architecture"])
        release = functools.partial(source_ami.kernel_release, plan, self._home, self._opened())
        self._ensure_mirror(package_requests.of_kernel(plan, release))

    def publish_source_ami(self, plan: PlanDocument) -> None:
        from localregion import region

        region.publish_source_ami(plan, self._home, progress=self._opened())

    def require_programs(self, architecture: str) -> None:
        from localregion import architectures

        architectures.require_programs(architecture)

    def note_use(self, ami: str, out: Path) -> None:
        from localregion import housekeeping

        housekeeping.note(self._home / "images", ami, out)

    def make_room(self, out: Path) -> None:
        from localregion import housekeeping

        housekeeping.make_room(self._home, sorted(out.parent.glob("*")), self._opened())

    def close(self) -> None:
        from localregion import region

        region.release(self._home)


def choose_builder(asked: str, conditions: str) -> tuple[bool, str]:
    """Whether the builder is a sandbox, and a line that says it. UsageError: one was asked for and is not possible."""
    if asked == MACHINE:
        return False, ""
    reason = _reason_against_sandbox(conditions)
    if reason and asked == SANDBOX:
        raise UsageError(f"--builder sandbox: {reason}", hint="--builder machine boots a builder")
    if reason:
        return False, f"the builder is a booted machine, not a sandbox: {reason}"
    return True, "the builder is a sandbox of this host, not a booted machine (--builder machine)"


def _reason_against_sandbox(conditions: str) -> str:
    if conditions:
        return f"--conditions {conditions} needs a booted builder"
    from localregion.sandbox import builder

    return builder.unusable()


class LocalRegionProvider:
    """What gpu-ami's commands ask of the region beside a session (`gpu_ami.region.RegionProvider`)."""

    name = NAME
    commands: Mapping[str, str] = {
        "region": "localregion.commands.region_verbs",
        "rehearse": "localregion.commands.rehearse",
    }

    def json_types(self) -> Mapping[str, Any]:
        from localregion.commands import json_types

        return json_types.RESULTS

    def region(self, request: SessionRequest) -> Region:
        require_extra()
        return LocalRegion(request)

    def place(self) -> Place:
        from localregion import region

        return region.local_place()

    def running(self) -> Place | None:
        from localregion import region

        return region.local_place() if region.is_up() else None

    def hold(self, progress: Progress) -> Place:
        from localregion import region

        require_extra()
        if not region.is_up():
            raise UsageError("the local region is not up", hint="gpu-ami region up, or --where FILE for AWS")
        return region.up(embedded=True, progress=progress)

    def clean_leftovers(self) -> list[str]:
        from localregion import region

        return region.clean_leftovers()

    def require_base_image(self, plan: PlanDocument) -> None:
        from localregion.images import source_ami

        source_ami.base_of(plan)

    def prerequisites(self) -> list[Prerequisite]:
        from gpu_ami.files import home_dir
        from localregion import host

        return host.examine(home_dir())

    def missing_packages(self, findings: Sequence[Prerequisite]) -> list[str]:
        from localregion import host

        return host.missing_packages(findings)

    def agent_version(self, package: Path) -> str:
        from localregion.mirror import deb

        version = deb.control_field(package, "Version")
        release = re.match(r"\d+\.\d+\.\d+", version)
        if not release:
            text = f"--agent-package {package}: version {version!r}, expected one like 1.300071.0b1234-1"
            raise UsageError(text)
        return release[0]

    def download_agent(self, facts: Mapping[str, Any], progress: Progress) -> Path:
        from gpu_ami.files import home_dir
        from localregion.mirror import mirror

        return mirror.download_agent(home_dir(), facts, progress)

    @contextlib.contextmanager
    def mirrored(self, plans: Sequence[PlanDocument], progress: Progress) -> Iterator[Callable[[str], str]]:
        from localregion.loopback import MIRROR_ADDRESS

        local = [plan for plan in plans if f"http://{MIRROR_ADDRESS}/" in str(plan)]
        if not local:
            yield lambda url: url
            return
        from gpu_ami.files import home_dir
        from localregion.mirror import Mirror, mirror

        for plan in local:
            mirror.ensure(home_dir(), plan=plan, progress=progress)
        server = Mirror(home_dir())
        port = server.start()
        try:
            yield lambda url: url.replace(f"http://{MIRROR_ADDRESS}/", f"http://127.0.0.1:{port}/", 1)
        finally:
            server.stop()

    def require_module(self, plan: Plan) -> None:
        from localregion.sandbox import sandbox

        sandbox.require_buildable(plan)

    def build_module(self, plan: Plan, progress: Progress) -> dict[str, Any]:
        from localregion.sandbox import sandbox

        return sandbox.try_build(plan, progress)


LOCAL: RegionProvider = LocalRegionProvider()
