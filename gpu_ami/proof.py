"""The proof: boot the image on each instance type, run the validator on every machine side by side, keep the evidence.

One validator process a host (`python -m pytest -p validator.plugin …`), so a check that hangs or crashes takes nothing
else with it; after a reboot, and after stop and start, one more for the checks that must survive it. All machines are
ended whatever happens.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_ami import machine as machines
from gpu_ami import restart as restarting
from gpu_ami import run as process
from gpu_ami import runs
from gpu_ami.aws import Cloud
from gpu_ami.errors import CapacityError, GpuAmiError, MachineError, UsageError
from gpu_ami.log import Progress
from gpu_ami.place import Place
from gpu_ami.report import FAIL, PASS, UNAVAILABLE, UNPROVEN, HostReport, Report
from validator.kernel import PANIC

# The validator as a process; other plugins and options that are about would change what it says.
PYTEST = (
    sys.executable, "-m", "pytest",
    "-p", "validator.plugin", "-p", "no:cacheprovider", "-q", "--color=no", "--tb=short",
)  # fmt: skip
PYTEST_ENVIRONMENT = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1", "PYTEST_ADDOPTS": ""}
_RAN = (0, 1)  # pytest's exit status: all passed, or some failed; any other is of a run that did not come to its end
HOST_SECONDS = 1800.0  # one host's checks, all together: metrics may take 15 minutes to arrive


@dataclass(frozen=True)
class Target:
    """What a validator process needs to know of one host. name: its evidence folder, if not the instance type's."""

    url: str
    instance_type: str = ""
    instance_id: str = ""
    key_file: Path | None = None
    known_hosts: Path | None = None
    name: str = ""


@dataclass
class Proof:
    """What all hosts of one proof share. restarts: those that are done and checked, of gpu_ami.restart.RESTARTS."""

    plan: Mapping[str, Any]
    plan_file: Path | None
    place: Place | None
    out: Path
    progress: Progress
    checks: Sequence[Path] = ()
    options: Sequence[str] = ()
    restarts: Sequence[str] = ()
    cancelled: threading.Event = field(default_factory=threading.Event)

    def evidence(self, target: Target, after: str = "") -> Path:
        name = target.name or target.instance_type or target.url.rpartition("@")[2].replace(":", "_")
        folder = self.out / "evidence" / name
        folder = folder / f"after-{after}" if after else folder
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def check(self, target: Target, after: str = "", options: Sequence[str] = ()) -> HostReport:
        """Runs the checks on one host; `after` a restart, those that must survive it. options: for this host alone.

        MachineError: the host could not be checked.
        """
        if self.cancelled.is_set():
            raise MachineError(f"{target.url} was not checked: the run was interrupted")
        folder = self.evidence(target, after)
        results = folder / "checks.json"
        results.unlink(missing_ok=True)  # never judge an earlier run's results
        with (folder / "validator.log").open("w", encoding="utf-8", buffering=1) as log:
            done = process.run(
                [*self._command(target, results, folder), *([f"--after={after}"] if after else []), *options],
                timeout=HOST_SECONDS,
                env=self._environment(),
                check=False,
                on_line=lambda line: print(line, file=log),
                error=MachineError,
            )
        host = HostReport(target.instance_type, target.instance_id, target.name or target.url)
        if done.returncode not in _RAN:
            raise MachineError(
                f"the validator did not run all checks on {target.url}",
                details=process.describe(done),
                hint=f"see {folder}/validator.log",
            )
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
            raise MachineError(f"no check ran on {target.url}", details=process.describe(done))
        self._say_result(host, after)
        return host

    def _command(self, target: Target, results: Path, folder: Path) -> list[str | Path]:
        import validator

        own = Path(validator.__file__).parent / "checks"
        command: list[str | Path] = [*PYTEST]
        command += [f"--hosts={target.url}", f"--results={results}", f"--evidence={folder}"]
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
        env = dict(PYTEST_ENVIRONMENT)
        if keys:
            env |= {"AWS_ACCESS_KEY_ID": keys.access_key_id, "AWS_SECRET_ACCESS_KEY": keys.secret_access_key}
        return env

    def _say_result(self, host: HostReport, after: str) -> None:
        counts: dict[str, int] = {}
        for check in host.checks:
            counts[check["verdict"]] = counts.get(check["verdict"], 0) + 1
        told = ", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items()))
        where = f"{host.instance_type or host.host}{f' after {after}' if after else ''}"
        self.progress.note(f"{where}: {len(host.checks)} checks: {told}")


def prove_image(
    proof: Proof,
    cloud: Cloud,
    run: runs.Run,
    ami: str,
    instance_types: Sequence[str],
    files: Callable[[], HostReport] | None = None,
) -> list[HostReport]:
    """Boots `ami` once on each instance type, side by side, and checks every machine.

    files: checks the image's files meanwhile. Errors of one machine end in its own report; Ctrl-C ends them all.
    """
    tags = dict(cloud.place.tags) | run.tags(
        recipe=str(proof.plan.get("image", "")), plan_digest=str(proof.plan.get("digest", ""))
    )
    user = str(proof.plan["os"]["ssh_user"])
    with ExitStack() as stack:
        key = stack.enter_context(machines.temporary_key(cloud, run, tags))
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=len(instance_types) + 1))
        futures: list[Future[Any]] = []
        # Before the pool waits for its threads, or Ctrl-C would wait for what their validators wait for.
        stack.callback(_abandon, proof, futures)
        if files:
            futures.append(pool.submit(files))
        reports: list[HostReport] = []
        for instance_type in instance_types:
            host = HostReport(instance_type, restarts=list(restarting.RESTARTS))
            reports.append(host)
            try:
                with proof.progress.stage(f"launch {instance_type}"):
                    efa = efa_interfaces(proof.plan, instance_type)
                    launched = machines.launched(cloud, ami, instance_type, key, run, tags, efa)
                    host.instance_id = stack.enter_context(launched)
            except GpuAmiError as error:
                _record_error(host, error)
                continue
            boot = machines.Boot(cloud, run, user, proof.progress, proof.cancelled)
            futures.append(pool.submit(_prove_host, proof, boot, host))
        for future in futures:
            while not future.done():  # a wait without end would not see Ctrl-C
                time.sleep(0.1)
        found = [future.result() for future in futures]
        return [*([found[0]] if files else []), *reports]


def _abandon(proof: Proof, futures: Sequence[Future[Any]]) -> None:
    """Ends what the threads still do: nothing, unless somebody has pressed Ctrl-C."""
    proof.cancelled.set()
    while not all(future.done() for future in futures):
        process.stop_all()  # again, for a thread may have been about to start one
        time.sleep(0.1)


def efa_interfaces(plan: Mapping[str, Any], instance_type: str) -> int:
    """How many EFA interfaces to launch with: the type's where the plan has EFA, else none."""
    counts = {row["name"]: int(row["efa_interfaces"]) for row in plan.get("instance_types", ())}
    return counts.get(instance_type, 0) if "efa" in plan else 0


def _prove_host(proof: Proof, boot: machines.Boot, host: HostReport) -> None:
    machine = None
    try:
        with proof.progress.stage(f"boot {host.instance_type}"):
            machine = boot.follow(host.instance_id, host.instance_type)
        host.host, host.boot = machine.url, machine.stages
        with proof.progress.stage(f"check {host.instance_type}"):
            found = proof.check(_target(machine))
        host.checks, host.replicas, host.facts = found.checks, found.replicas, found.facts
        host.waivers = found.waivers
    except GpuAmiError as error:
        _record_error(host, error)
    finally:
        _keep_console(proof, boot.cloud, host)
    try:
        _prove_restarts(proof, boot, host, machine)
    except GpuAmiError as error:
        _record_error(host, error)


def _target(machine: machines.Machine) -> Target:
    return Target(machine.url, machine.instance_type, machine.instance_id, machine.key_file, machine.known_hosts)


def _prove_restarts(proof: Proof, boot: machines.Boot, host: HostReport, machine: machines.Machine | None) -> None:
    """Each restart in turn, whatever the checks have said so far, as long as there is a machine to restart."""
    gone = host.error.partition("\n")[0] if machine is None else ""
    for how in restarting.RESTARTS:
        if proof.cancelled.is_set():
            return  # nobody waits for it any more
        if how not in proof.restarts or machine is None:
            reason = f"not tried: {gone}" if how in proof.restarts else "not asked for (--restarts)"
            host.checks.append(restarting.not_done(how, reason))
            continue
        try:
            with proof.progress.stage(f"{how} {host.instance_type}"):
                after = restarting.restart(boot, machine, how)
        except GpuAmiError as error:
            if proof.cancelled.is_set():
                raise
            host.checks.append(restarting.not_back(how, error))
            gone, machine = f"{how} did not bring the machine back", None
        else:
            host.checks.append(restarting.came_back(how, after.stages, machine.boot_id, after.boot_id, after.url))
            machine = after
            _check_again(proof, host, _target(machine), how)
        finally:
            _keep_console(proof, boot.cloud, host, how)


def _check_again(proof: Proof, host: HostReport, target: Target, how: str) -> None:
    with proof.progress.stage(f"check {host.instance_type or target.url} after {how}"):
        found = proof.check(target, how)
    host.add(found)
    host.facts[f"after {how}"] = {key: found.facts.get(key) for key in ("boot_id", "kernel", "transport")}


def _record_error(host: HostReport, error: GpuAmiError) -> None:
    host.error = str(error)
    if isinstance(error, CapacityError):
        host.error_verdict = UNAVAILABLE
    elif PANIC.search(host.error):
        host.error_verdict = FAIL  # the image's own kernel gave up: no network or cloud is to blame
    else:
        host.error_verdict = "ERROR"


def _keep_console(proof: Proof, cloud: Cloud, host: HostReport, after: str = "") -> None:
    """The console is evidence whatever the verdict; where it cannot be had, the file says why."""
    folder = proof.evidence(Target(host.host, host.instance_type), after)
    try:
        console = cloud.console(host.instance_id)
    except GpuAmiError as error:
        console = f"the console could not be read: {error}"
    (folder / "console.log").write_text(console, encoding="utf-8")
    if host.checks:
        host.checks.append(_judge_console(console, after))


def _judge_console(console: str, after: str = "") -> dict[str, Any]:
    """The one check that needs no shell. An empty console proves nothing, and says so."""
    panic = PANIC.search(console)
    shown = "[" in console  # a kernel's first lines carry timestamps; EC2 may need minutes to show any
    verdict = FAIL if panic else PASS if shown else UNPROVEN
    found = panic.group(0) if panic else f"{len(console.splitlines())} lines, none of them a panic"
    message = (
        "" if verdict == PASS else f"the console has {found!r}" if panic else "the console was empty: nothing to judge"
    )
    return {
        "id": f"boot::test_console_shows_no_panic{f'@{after}' if after else ''}", "after": after,
        "role": "boot", "tier": "T1", "verdict": verdict,
        "promise": f"{f'After {after}: ' if after else ''}The kernel's console shows no panic and no oops.",
        "observed": found, "planned": "no panic, no oops",
        "message": message, "seconds": 0.0, "attempts": 1, "hops": [],
    }  # fmt: skip


def prove_host(proof: Proof, target: Target) -> HostReport:
    """Checks a machine that somebody else booted; it is rebooted only if that was asked for, and never stopped."""
    with proof.progress.stage(f"check {target.url}"):
        host = proof.check(target)
    if restarting.REBOOT in proof.restarts:
        host.restarts = [restarting.REBOOT]
        _reboot_host(proof, host, target)
    else:
        reason = "not asked for: the machine is not ours (--reboot reboots it)"
        host.checks.append(restarting.not_done(restarting.REBOOT, reason))
    reason = "not tried: the machine is not ours to stop"
    host.checks.append(restarting.not_done(restarting.STOP_START, reason))
    return host


def _reboot_host(proof: Proof, host: HostReport, target: Target) -> None:
    from validator import ssh

    own = target.key_file is None  # without a key named, whoever runs this expects what ssh would do
    known = {"key_file": target.key_file, "known_hosts": target.known_hosts, "agent": own, "search_keys": own}
    try:
        with proof.progress.stage(f"{restarting.REBOOT} {target.url}"):
            back = restarting.reboot_host(ssh.parse_url(target.url, **known), proof.cancelled)
    except MachineError as error:
        host.checks.append(restarting.not_back(restarting.REBOOT, error))
        return
    host.checks.append(restarting.came_back(restarting.REBOOT, *back, target.url))
    _check_again(proof, host, target, restarting.REBOOT)


def assemble(proof: Proof, run: runs.Run, ami: str, hosts: list[HostReport], no_files: str = "") -> Report:
    """The report of all hosts; instance types of the plan that no host stood for are named."""
    # Who had only files looked at has asked for no machine: the tiers say that none was booted.
    planned = [one["name"] for one in proof.plan.get("instance_types", []) if not all(host.offline for host in hosts)]
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
        no_files=no_files,
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
