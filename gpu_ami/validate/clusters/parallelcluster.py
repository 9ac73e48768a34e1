"""ParallelCluster: the machines of a proof are a Slurm cluster of their own, the first one head and compute node.

ParallelCluster launches the nodes of its clusters itself, so a proof's machines cannot join one.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gpu_ami.cloud import Cluster
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.plan import image_tags
from gpu_ami.process import Completed, run
from validator.plan_document import section
from validator.probes.cluster import joined

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud, Place
    from gpu_ami.recipes import PlanDocument
    from gpu_ami.validate.clusters.node_service import CleanUp, Proven
    from validator.probes.cluster import nodes as node_files

PACKAGE = "aws-parallelcluster"
_VERSION_SECONDS, _SECONDS = 60, 300  # the dry run took 9 s on an idle host, 45 on a busy one


def program() -> str | None:
    """$PCLUSTER, or the one on the PATH; None where there is none, or the variable is empty."""
    return os.environ.get("PCLUSTER", shutil.which("pcluster") or "") or None


def version(cli: str) -> str:
    """The release of the CLI. CloudError: it does not say."""
    done = run([cli, "version"], timeout=_VERSION_SECONDS, error=CloudError)
    found = _document(done).get("version")
    if not isinstance(found, str):
        raise CloudError(f"{cli} version: expected a JSON document with `version`, got {_last(done)}")
    return found


def dry_run(
    cli: str, place: Place, plan: PlanDocument, ami: str, subnet_id: str, *, instance_types: Sequence[str]
) -> dict[str, Any]:
    """`message` and `findings` (level, type, message) of a cluster with this AMI on head and compute nodes.

    Where it gives no such answer, `error` says what it gave instead.
    """
    access = place.api.environment() | ({"AWS_PROFILE": place.api.profile} if place.api.profile else {})
    with tempfile.TemporaryDirectory(prefix="gpu-ami-pcluster-") as folder:
        file = Path(folder) / "cluster.yml"
        file.write_text(yaml.safe_dump(_cluster(place, plan, ami, subnet_id, instance_types)), encoding="utf-8")
        # boto3 takes an empty AWS_PROFILE for the name of one.
        command = ["env", "-u", "AWS_PROFILE"] if place.api.credentials else []
        command += [cli, "create-cluster", "--cluster-name", "gpu-ami-dry-run", "--cluster-configuration", str(file)]
        command += ["--region", place.region, "--dryrun", "true"]
        try:
            done = run(command, timeout=_SECONDS, env=access, check=False, error=CloudError)
        except CloudError as error:  # it did not end
            return {"error": str(error)}
    document = _document(done)
    findings = document.get("configurationValidationErrors") or document.get("validationMessages") or []
    if not isinstance(document.get("message"), str) or not _are_findings(findings):
        return {"error": f"pcluster create-cluster --dryrun true: {_last(done)}"}
    return {"message": document["message"], "findings": findings}


def _cluster(
    place: Place, plan: PlanDocument, ami: str, subnet_id: str, instance_types: Sequence[str]
) -> dict[str, Any]:
    """The smallest configuration that has the AMI on a head node and on a compute node of each type."""
    from gpu_ami.plan import image_tags

    with_efa = {row["name"] for row in plan["instance_types"] if row["efa_interfaces"] and "efa" in plan}
    resources = [
        {
            "Name": f"type-{number}",
            "InstanceType": name,
            "MinCount": 0,
            "MaxCount": 1,
            "Efa": {"Enabled": name in with_efa},
        }
        for number, name in enumerate(instance_types)
    ]
    # Where there is EFA, pcluster wants an explicit choice; it is not about the AMI.
    network = {"SubnetIds": [subnet_id], "PlacementGroup": {"Enabled": False}}
    queue = {"Name": "gpu", "ComputeResources": resources, "Networking": network}
    return {
        "Region": place.region,
        "Image": {"Os": image_tags(plan)["parallelcluster:os"], "CustomAmi": ami},
        "HeadNode": {"InstanceType": plan["build"]["instance_type"], "Networking": {"SubnetId": subnet_id}},
        "Scheduling": {"Scheduler": "slurm", "SlurmQueues": [queue]},
    }


def _document(done: Completed) -> dict[str, Any]:
    """The JSON document of the output; {} for anything else."""
    try:
        found = json.loads(done.stdout[done.stdout.index("{") :])
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _are_findings(findings: Any) -> bool:
    return isinstance(findings, list) and all(
        isinstance(row, dict) and all(isinstance(row.get(key), str) for key in ("level", "type", "message"))
        for row in findings
    )


def _last(done: Completed) -> str:
    lines = (done.stdout + done.stderr).strip().splitlines()
    return f"exit status {done.returncode}: {lines[-1][:300]}" if lines else f"exit status {done.returncode}, no output"


ROLE = "node_parallelcluster"


class ParallelCluster:
    """See `service.Service`."""

    stage = "as a node of a Slurm cluster"
    returns = False  # ParallelCluster replaces a node that does not answer, and the checks start Slurm themselves

    def name_of(self, join: str, _place_s: str) -> str:
        if join:
            hint = "--join without a name: the proof's machines are a Slurm cluster of their own (docs/nodes.md)"
            message = (
                "ParallelCluster launches the nodes of its clusters itself, and no machine of a proof can join one"
            )
            raise UsageError(f"--join {join}: {message}", hint=hint)
        return ""

    def is_ready(self, _plan: PlanDocument, _place: Place) -> bool:
        return True

    def require(self, plan: PlanDocument, _cloud: Cloud, _name: str) -> None:
        self.require_program(plan)

    def require_program(self, plan: PlanDocument) -> None:
        """UsageError: pcluster is installed in another release, which refuses the AMI. CloudError: it does not run."""
        cli = program()
        found, wanted = version(cli) if cli else "", _release(plan)
        if cli and found != wanted:
            hint = (
                f"install {PACKAGE}=={wanted} and name its pcluster in the variable PCLUSTER; with PCLUSTER="
                " none is asked, and the check of the AMI by pcluster is UNPROVEN (docs/nodes.md)"
            )
            raise UsageError(f"--join: {cli}: expected release {wanted}, that of the base AMI, got {found}", hint=hint)

    @contextmanager
    def opened(self, proven: Proven, name: str, _clean_up: CleanUp) -> Iterator[Cluster]:
        yield Cluster("ParallelCluster", name, proven.run.id, own=True, version=_release(proven.plan))

    def described(self, proven: Proven, _cluster: Cluster, nodes: tuple[node_files.Node, ...]) -> joined.Joined:
        image = proven.cloud.image(proven.ami) or {}
        tags = {str(tag["Key"]): str(tag["Value"]) for tag in image.get("Tags", [])}
        expected = image_tags(proven.plan)
        kept = {name: tags[name] for name in expected if name in tags}
        return joined.Joined("parallelcluster", nodes, kept, expected, dry_run=self._dry_run(proven, nodes))

    def _dry_run(self, proven: Proven, nodes: tuple[node_files.Node, ...]) -> dict[str, Any]:
        """What pcluster says of a cluster of the AMI and the machines' instance types; {} where it is not installed."""
        cli = program()
        if cli is None:
            return {}
        machines = [proven.cloud.instance(node.name) for node in nodes]
        types = sorted({machine["InstanceType"] for machine in machines})
        return dry_run(cli, proven.cloud.place, proven.plan, proven.ami, machines[0]["SubnetId"], instance_types=types)

    def leave(self, _cloud: Cloud, _cluster: Cluster, _instance_ids: Sequence[str]) -> None:
        """The checks end what they started."""


def _release(plan: PlanDocument) -> str:
    return str(section(plan, ROLE)["version"])
