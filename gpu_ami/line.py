"""The line: recipe → plan → build → proof → certificate. Each function is one stage: one file in, one file out.

`prove` runs all of them; each can be run again from the file of the one before it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami import build as builds
from gpu_ami import certificate, image_files, page, proof, report, restart, runs
from gpu_ami.aws import Cloud
from gpu_ami.errors import UsageError
from gpu_ami.home import home_dir
from gpu_ami.log import Progress
from gpu_ami.place import Place, load_place
from gpu_ami.plan import PLAN_FILE, Plan, make_plan


def source_root() -> Path:
    """The checkout that holds packer/, playbooks/ and roles/. UsageError where there is none."""
    here = Path(__file__).resolve().parent.parent
    for root in (here, Path.cwd()):
        if (root / "packer").is_dir() and (root / "roles").is_dir():
            return root
    raise UsageError(
        "packer/ and roles/ are neither beside the installed package nor in this directory",
        hint="run gpu-ami in a checkout of the project",
    )


@dataclass(frozen=True)
class Standing:
    """A place that is up, its API, and this run of the driver.

    stock: has the place offer a plan's packages; offer: its source AMI. images: where AMIs lie as files, if they do.
    """

    place: Place
    cloud: Cloud
    run: runs.Run
    progress: Progress
    stock: Callable[[Mapping[str, Any]], object] = lambda _plan: None
    offer: Callable[[Mapping[str, Any]], object] = lambda _plan: None
    images: Path | None = None


@contextmanager
def standing(where: Path | None, progress: Progress, agent_package: Path | None = None) -> Iterator[Standing]:
    """A place to work in: the `--where` file's, or the local region, which goes down again if it was not up before."""
    home = home_dir()
    if where:
        if agent_package:
            raise UsageError("--agent-package is served by the local region's mirror; it has no meaning with --where")
        place = load_place(where)
        with runs.begin(home, place.name) as run:
            yield Standing(place, Cloud(place), run, progress)
        return
    with runs.begin(home, "local") as run, _local_region(home, progress) as place:
        from gpu_ami.local import mirror, region

        def stock(plan: Mapping[str, Any] | None) -> object:
            return mirror.ensure(home, plan=plan, agent_package=agent_package, progress=progress)

        stock(None)
        offer = functools.partial(region.offer, home=home, progress=progress)
        yield Standing(place, Cloud(place), run, progress, stock, offer, home / "images")


@contextmanager
def _local_region(home: Path, progress: Progress) -> Iterator[Place]:
    from gpu_ami.local import region

    place = region.up(home, embedded=True, progress=progress)
    try:
        yield place
    finally:
        region.release(home)


def running_local_place(home: Path) -> Place | None:
    """The local region's place if it is up; None otherwise (nothing is started for a host that runs already)."""
    from gpu_ami.local import region

    return region.local_place(home) if region.is_up(home) else None


def check_recipe(recipe: Path, overrides: Sequence[str]) -> None:
    """UsageError with all mistakes of a recipe, before anything is started for it."""
    make_plan(recipe, Place(name="nowhere", region="us-east-1"), overrides)


def agent_version(agent_package: Path | None) -> list[str]:
    """The override that makes a plan ask for the release that a given agent package is of."""
    if agent_package is None:
        return []
    from gpu_ami.local import packages

    version = packages.control_field(agent_package, "Version")
    found = re.match(r"\d+\.\d+\.\d+", version)
    if not found:
        raise UsageError(f"--agent-package {agent_package}: version {version!r}, expected one like 1.300071.0b1234-1")
    return [f"cloudwatch_agent.version={found[0]}"]


def plan_stage(recipe: Path, overrides: Sequence[str], out: Path, at: Standing) -> Plan:
    """Recipe → plan.json (and the var-files of Packer and Ansible)."""
    with at.progress.stage(f"plan {recipe.stem}"):
        plan = make_plan(recipe, at.place, overrides)
        plan.write(out, at.place)
        at.progress.note(f"{plan.digest[:19]}… → {out / PLAN_FILE}")
    return plan


def build_stage(plan: Plan, out: Path, at: Standing, *, fresh: bool) -> builds.Build:
    """plan.json → build.json. An AMI that the same plan and roles made here is used again, unless `fresh`."""
    root = source_root()
    kept = None if fresh else builds.reusable(out, plan, at.cloud, root)
    if kept:
        at.progress.note(f"build: {kept.ami} was made by this plan and these roles; --fresh builds it anew")
        return kept
    at.stock(plan.document)
    at.offer(plan.document)
    plan.write(out, at.place)  # the place's endpoint may have moved since the plan was made
    with at.progress.stage(f"build {plan.image}"):
        made = builds.build_image(plan, out, at.cloud, at.run, root, at.progress)
        at.progress.note(f"{made.ami} → {out / builds.BUILD_FILE}")
    return made


@dataclass(frozen=True)
class Ask:
    """What the proof is asked beside plan and image: instance types, further checks, validator's options, restarts."""

    instance_types: Sequence[str] = ()
    checks: Sequence[Path] = ()
    options: Sequence[str] = ()
    restarts: Sequence[str] = restart.RESTARTS


def validate_stage(plan: Plan, ami: str, out: Path, at: Standing, ask: Ask) -> report.Report:
    """plan.json + an AMI → report.json, junit.xml, evidence/."""
    chosen = proof.choose_types(plan.document, ask.instance_types)
    given = (ask.checks, ask.options, ask.restarts)
    wanted = proof.Proof(plan.document, out / PLAN_FILE, at.place, out, at.progress, *given)
    files = image_files.find(at.images, ami)
    look = functools.partial(image_files.check, wanted, files.path) if files.path else None
    with at.progress.stage(f"prove {ami} on {', '.join(chosen)}"):
        hosts = proof.prove_image(wanted, at.cloud, at.run, ami, chosen, look)
    found = proof.assemble(wanted, at.run, ami, hosts, files.reason)
    found.write(out)
    return found


def certify_stage(found: report.Report, out: Path) -> certificate.Certificate:
    """report.json → certificate.json, certificate.md, report.html."""
    drawn = certificate.certify(found)
    drawn.write(out)
    page.write(found.to_json(), drawn.content, out)
    return drawn


def verdict_text(found: report.Report, drawn: certificate.Certificate | None, out: Path) -> str:
    """What a run says last: the verdict, every failure with observed and planned, and where the files are."""
    lines = []
    for host in found.hosts:
        counts = [one["verdict"] for one in host.checks]
        told = ", ".join(f"{counts.count(verdict)} {verdict}" for verdict in report.ORDER if verdict in counts)
        lines.append(f"{host.verdict(found.roles):12} {host.instance_type or host.host}  ({told or 'no checks'})")
        lines += [f"    {line}" for line in host.error.splitlines()]
    for host, check in found.failures():
        lines += ["", f"{check['verdict']} {host.instance_type or host.host} {check['id']}", f"    {check['promise']}"]
        lines += [f"    {line}" for line in str(check["message"]).splitlines()[:12]]
    named = [f"not booted: {name}" for name in found.unproven_instance_types]
    named += [f"not proven: {host.name}: {one}" for host in found.hosts for one in host.unproven_restarts(found.roles)]
    lines += ["", *named] if named else []
    lines += ["", "tiers: " + ", ".join(f"{tier['name']} {tier['verdict']}" for tier in found.tiers)]
    level = f", {drawn.level}" if drawn and drawn.level != "none" else ", no certificate" if drawn else ""
    lines += ["", f"{found.verdict}{level}: {found.image or 'host'} → {out}/"]
    return "\n".join(lines)
