"""Attach and detach: which command after which, on which machines.

A machine that fails a step is left out of the next ones, and its outcome is that step's. A refusal by AWS ends the
whole run (CloudError): it says nothing about a machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_ami.cloud import systems_manager
from gpu_ami.errors import UsageError
from gpu_ami.fleet.payload import CONFIGURE_PACKAGE, MANAGE_AGENT, PACKAGE, Bundle

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud
    from gpu_ami.progress import Progress

_PRESENT = "present"


@dataclass
class Attachment:
    """One run of attach or detach on these machines. outcomes: of the machines that are done, by instance id."""

    cloud: Cloud
    bundle: Bundle
    machines: Sequence[systems_manager.FleetMachine]
    limits: systems_manager.Limits
    progress: Progress
    outcomes: dict[str, systems_manager.Outcome] = field(default_factory=dict)
    answers: dict[str, Mapping[str, object]] = field(default_factory=dict)

    def attach(self) -> dict[str, systems_manager.Outcome]:
        """Puts the plan's telemetry on every machine; what became of it on each."""
        self._make()
        names = self.bundle.names
        self._program("prepare")
        for name, answer in self.answers.items():
            kept = answer.get("kept")
            if isinstance(kept, list) and kept:
                files = ", ".join(str(each) for each in kept)
                self.progress.note(f"{name}: the agent keeps {files}; the plan's configuration is appended")
        self._run("agent", CONFIGURE_PACKAGE, self._lacking_agent(), action="Install", name=PACKAGE)
        for number, part in enumerate(self.bundle.part_names, start=1):
            self._run(f"files {number}", part)
        self._program("install")
        # Appended, never `configure`: that would replace a configuration that the machine has, with its own logs.
        self._configure("configure", names.base, None)
        if names.gpu in self.bundle.parameters:
            self._configure("configure GPUs", names.gpu, self._with("gpu", True))
        return self._program("status")

    def detach(self) -> dict[str, systems_manager.Outcome]:
        """Takes back what attach made on every machine, and then the documents, parameters and association."""
        names = self.bundle.names
        systems_manager.ensure_document(self.cloud, names.document, self.bundle.documents[names.document])
        self._program("detach")
        attached = self._with("agent", "installed")
        self._run("agent", CONFIGURE_PACKAGE, attached, action="Uninstall", name=PACKAGE)
        self._program("clean", attached)
        outcomes = self._finish()
        if all(outcome.status == systems_manager.SUCCESS for outcome in outcomes.values()):
            self.remove()
        return outcomes

    def remove(self) -> list[str]:
        """Removes the association, the documents and the parameters; their names."""
        names = self.bundle.names
        with self.progress.stage("remove association, documents and parameters"):
            gone = systems_manager.remove_associations(self.cloud, names.document)
            gone += systems_manager.remove_documents(self.cloud, self.bundle.documents)
            return gone + systems_manager.remove_parameters(self.cloud, [names.base, names.gpu])

    def follow_future(self, selection: systems_manager.Selection) -> str:
        """Makes the association for machines to come; its id. UsageError: instances by id have none to come."""
        require_future(selection)
        with self.progress.stage("make the association for machines to come"):
            names = self.bundle.names
            return systems_manager.ensure_association(
                self.cloud, names.document, names.future, selection.targets, self.limits
            )

    def _make(self) -> None:
        with self.progress.stage("make documents and parameters"):
            for name, value in self.bundle.parameters.items():
                systems_manager.ensure_parameter(self.cloud, name, value)
            for name, content in self.bundle.documents.items():
                systems_manager.ensure_document(self.cloud, name, content)

    def _left(self) -> list[systems_manager.FleetMachine]:
        return [machine for machine in self.machines if machine.instance_id not in self.outcomes]

    def _with(self, key: str, value: object) -> list[systems_manager.FleetMachine]:
        return [each for each in self._left() if self.answers.get(each.instance_id, {}).get(key) == value]

    def _lacking_agent(self) -> list[systems_manager.FleetMachine]:
        return [each for each in self._left() if each not in self._with("agent", _PRESENT)]

    def _program(
        self, action: str, machines: Sequence[systems_manager.FleetMachine] | None = None
    ) -> dict[str, systems_manager.Outcome]:
        """Runs the program with an action; what it answered is kept, and is the outcome after the last step."""
        done = self._run(action, self.bundle.names.document, machines, action=action)
        for name, outcome in done.items():
            self.answers[name] = {**self.answers.get(name, {}), **outcome.answer}
        return {**done, **self.outcomes} if action == "status" else self.outcomes

    def _configure(self, stage: str, parameter: str, machines: Sequence[systems_manager.FleetMachine] | None) -> None:
        self._run(
            stage, MANAGE_AGENT, machines, action="configure (append)", mode="ec2", optionalConfigurationSource="ssm",
            optionalConfigurationLocation=parameter, optionalRestart="yes",
        )  # fmt: skip

    def _run(
        self,
        stage: str,
        document: str,
        machines: Sequence[systems_manager.FleetMachine] | None = None,
        **parameters: str,
    ) -> dict[str, systems_manager.Outcome]:
        """One command on the machines that are left (or on some of them); a failure ends a machine's run."""
        chosen = self._left() if machines is None else machines
        if not chosen:
            return {}
        with self.progress.stage(f"{stage} on {len(chosen)} of {len(self.machines)} machines"):

            def update(done: int, total: int) -> None:
                self.progress.update(document, step=done, total=total)

            done = systems_manager.run(self.cloud, chosen, document, parameters, self.limits, on_update=update)
        failed = {name: outcome for name, outcome in done.items() if outcome.status != systems_manager.SUCCESS}
        self.outcomes |= {
            name: systems_manager.Outcome(each.status, f"{stage}: {each.text}", each.code)
            for name, each in failed.items()
        }
        return done

    def _finish(self) -> dict[str, systems_manager.Outcome]:
        return {
            machine.instance_id: systems_manager.Outcome(systems_manager.SUCCESS) for machine in self.machines
        } | self.outcomes


def require_future(selection: systems_manager.Selection) -> None:
    """UsageError: an association for machines to come needs tags."""
    if not selection.tags:
        raise UsageError("--future: instances by id have none to come", hint="use --tag or --auto-scaling-group")


def plan_steps(bundle: Bundle, machines: Sequence[systems_manager.FleetMachine], future: bool) -> list[str]:
    """What attach would make and send, for --dry-run."""
    lines = [f"parameter {name}: {len(value)} bytes" for name, value in bundle.parameters.items()]
    lines += [f"document {name}" for name in bundle.documents]
    lines += [f"association {bundle.names.document}: {bundle.names.future}"] if future else []
    for machine in machines:
        lines.append(f"{machine.instance_id} ({machine.instance_type}): {machine.silence or 'attach'}")
    return lines
