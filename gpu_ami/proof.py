"""The proof: boot the image on each instance type, run the validator on every machine side by side, keep the evidence.

One validator process a host (`python -m pytest -p validator.plugin …`), so a check that hangs or crashes takes nothing
else with it; all machines are ended whatever happens.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_ami import machine as machines
from gpu_ami import run as process
from gpu_ami import runs
from gpu_ami.aws import Cloud
from gpu_ami.errors import CapacityError, GpuAmiError, MachineError, UsageError
from gpu_ami.log import Progress
from gpu_ami.place import Place
from gpu_ami.report import FAIL, PASS, UNAVAILABLE, UNPROVEN, HostReport, Report

HOST_SECONDS = 1800.0  # one host's checks, all together: metrics may take 15 minutes to arrive


@dataclass(frozen=True)
class Target:
    """What a validator process needs to know of one host."""

    url: str
    instance_type: str = ""
    instance_id: str = ""
    key_file: Path | None = None
    known_hosts: Path | None = None


@dataclass
class Proof:
    """What all hosts of one proof share."""

    plan: Mapping[str, Any]
    plan_file: Path | None
    place: Place | None
    out: Path
    progress: Progress
    checks: Sequence[Path] = ()
    options: Sequence[str] = ()
    cancelled: threading.Event = field(default_factory=threading.Event)

    def evidence(self, target: Target) -> Path:
        folder = self.out / "evidence" / (target.instance_type or target.url.rpartition("@")[2].replace(":", "_"))
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def check(self, target: Target) -> HostReport:
        """Runs the checks on one host. A host that could not be checked is reported with its error, not dropped."""
        folder = self.evidence(target)
        results = folder / "checks.json"
        results.unlink(missing_ok=True)  # never judge an earlier run's results
        with (folder / "validator.log").open("w", encoding="utf-8", buffering=1) as log:
            done = process.run(
                self._command(target, results, folder),
                timeout=HOST_SECONDS,
                env=self._environment(),
                check=False,
                on_line=lambda line: print(line, file=log),
                error=MachineError,
            )
        host = HostReport(target.instance_type, target.instance_id, target.url)
        try:
            found = json.loads(results.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise MachineError(
                f"the validator left no results for {target.url}",
                details=process.describe(done),
                hint=f"see {folder}/validator.log",
            ) from error
        host.checks, host.replicas, host.facts = found["checks"], found.get("replicas", []), found.get("facts", {})
        host.waivers = found.get("waivers", [])
        if not host.checks:
            raise MachineError(
                f"no check ran on {target.url}",
                details=process.describe(done),
                hint="does --checks name the right folder?",
            )
        self._say_result(host)
        return host

    def _command(self, target: Target, results: Path, folder: Path) -> list[str | Path]:
        import validator

        own = Path(validator.__file__).parent / "checks"
        command: list[str | Path] = [
            sys.executable, "-m", "pytest", "-p", "validator.plugin", "-p", "no:cacheprovider",
            "-q", "--color=no", "--tb=short",
            f"--hosts={target.url}", f"--results={results}", f"--evidence={folder}",
        ]  # fmt: skip
        given = {"--plan": self.plan_file, "--instance-id": target.instance_id, "--instance-type": target.instance_type}
        given |= {"--ssh-identity-file": target.key_file, "--known-hosts": target.known_hosts}
        if self.place:
            given |= {
                "--aws-region": self.place.region,
                "--aws-endpoint": self.place.endpoint,
                "--aws-profile": self.place.profile,
            }
        command += [f"{option}={value}" for option, value in given.items() if value]
        return [*command, *self.options, own, *self.checks]

    def _environment(self) -> dict[str, str]:
        keys = self.place.credentials if self.place else None
        env = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1", "PYTEST_ADDOPTS": ""}
        if keys:
            env |= {"AWS_ACCESS_KEY_ID": keys.access_key_id, "AWS_SECRET_ACCESS_KEY": keys.secret_access_key}
        return env

    def _say_result(self, host: HostReport) -> None:
        counts: dict[str, int] = {}
        for check in host.checks:
            counts[check["verdict"]] = counts.get(check["verdict"], 0) + 1
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        self.progress.note(f"{host.instance_type or host.host}: {len(host.checks)} checks: {told}")


def prove_image(proof: Proof, cloud: Cloud, run: runs.Run, ami: str, instance_types: Sequence[str]) -> list[HostReport]:
    """Boots `ami` once on each instance type, side by side, and checks every machine.

    Errors of one machine end in its own report; Ctrl-C ends them all.
    """
    tags = dict(cloud.place.tags) | run.tags(
        recipe=str(proof.plan.get("image", "")), plan_digest=str(proof.plan.get("digest", ""))
    )
    user = str(proof.plan["os"]["ssh_user"])
    with ExitStack() as stack:
        stack.callback(process.stop_all)
        key = stack.enter_context(machines.temporary_key(cloud, run, tags))
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=len(instance_types)))
        stack.callback(proof.cancelled.set)
        futures = []
        reports: list[HostReport] = []
        for instance_type in instance_types:
            host = HostReport(instance_type)
            reports.append(host)
            try:
                with proof.progress.stage(f"launch {instance_type}"):
                    host.instance_id = stack.enter_context(machines.launched(cloud, ami, instance_type, key, run, tags))
            except GpuAmiError as error:
                _record_error(host, error)
                continue
            boot = machines.Boot(cloud, run, user, proof.progress, proof.cancelled)
            futures.append(pool.submit(_prove_host, proof, boot, host))
        for future in futures:
            while not future.done():  # a wait without end would not see Ctrl-C
                time.sleep(0.1)
            future.result()
        return reports


def _prove_host(proof: Proof, boot: machines.Boot, host: HostReport) -> None:
    try:
        with proof.progress.stage(f"boot {host.instance_type}"):
            booted = boot.follow(host.instance_id, host.instance_type)
        host.host, host.boot = booted.url, booted.stages
        target = Target(booted.url, host.instance_type, host.instance_id, booted.key_file, booted.known_hosts)
        with proof.progress.stage(f"check {host.instance_type}"):
            found = proof.check(target)
        host.checks, host.replicas, host.facts = found.checks, found.replicas, found.facts
        host.waivers = found.waivers
    except GpuAmiError as error:
        _record_error(host, error)
    finally:
        _keep_console(proof, boot.cloud, host)


def _record_error(host: HostReport, error: GpuAmiError) -> None:
    host.error = str(error)
    if isinstance(error, CapacityError):
        host.error_verdict = UNAVAILABLE
    elif machines.PANIC.search(host.error):
        host.error_verdict = FAIL  # the image's own kernel gave up: no network or cloud is to blame
    else:
        host.error_verdict = "ERROR"


def _keep_console(proof: Proof, cloud: Cloud, host: HostReport) -> None:
    """The console is evidence whatever the verdict; where it cannot be had, the file says why."""
    folder = proof.evidence(Target(host.host, host.instance_type))
    try:
        console = cloud.console(host.instance_id)
    except GpuAmiError as error:
        console = f"the console could not be read: {error}"
    (folder / "console.log").write_text(console, encoding="utf-8")
    if host.checks:
        host.checks.append(_judge_console(console))


def _judge_console(console: str) -> dict[str, Any]:
    """The one check that needs no shell. An empty console proves nothing, and says so."""
    panic = machines.PANIC.search(console)
    shown = "[" in console  # a kernel's first lines carry timestamps; EC2 may need minutes to show any
    verdict = FAIL if panic else PASS if shown else UNPROVEN
    found = panic.group(0) if panic else f"{len(console.splitlines())} lines, none of them a panic"
    message = (
        "" if verdict == PASS else f"the console has {found!r}" if panic else "the console was empty: nothing to judge"
    )
    return {
        "id": "boot::test_console_shows_no_panic", "role": "boot", "tier": "T1", "verdict": verdict,
        "promise": "The kernel's console shows no panic and no oops.",
        "observed": found, "planned": "no panic, no oops",
        "message": message, "seconds": 0.0, "attempts": 1, "hops": [],
    }  # fmt: skip


def prove_host(proof: Proof, target: Target) -> HostReport:
    """Checks a machine that somebody else booted."""
    with proof.progress.stage(f"check {target.url}"):
        return proof.check(target)


def assemble(proof: Proof, run: runs.Run, ami: str, hosts: list[HostReport]) -> Report:
    """The report of all hosts; instance types of the plan that no host stood for are named."""
    planned = [one["name"] for one in proof.plan.get("instance_types", [])]
    seen = {host.instance_type for host in hosts}
    place = proof.place
    return Report(
        plan=dict(proof.plan),
        image=ami,
        place=place.name if place else "",
        region=place.region if place else "",
        simulated=place.simulated if place else False,
        run=run.id,
        started=run.started,
        finished=runs.as_text(runs.now()),
        hosts=hosts,
        stages=list(proof.progress.times),
        unproven_instance_types=[name for name in planned if name not in seen],
    )


def choose_types(plan: Mapping[str, Any], asked: Sequence[str]) -> list[str]:
    """Instance types to boot: the plan's, or those of them that were asked for."""
    planned = [one["name"] for one in plan["instance_types"]]
    strange = [name for name in asked if name not in planned]
    if strange:
        raise UsageError(
            f"--instance-type {', '.join(strange)}: not in the plan", hint=f"the plan has {', '.join(planned)}"
        )
    return list(asked) or planned
