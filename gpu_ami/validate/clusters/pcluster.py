"""What pcluster's validators say of an AMI: `pcluster create-cluster --dryrun true`, where the CLI is installed.

The dry run creates nothing: it reads, and calls RunInstances with DryRun. Source: aws-parallelcluster 3.16.1 (PyPI),
run against the local region on 2026-11-26; its CLI ends with 1 after a dry run that found no error, too.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from gpu_ami.errors import CloudError
from gpu_ami.process import Completed, run

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.recipes import PlanDocument

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
    cli: str, place: Place, plan: PlanDocument, ami: str, subnet_id: str, instance_types: Sequence[str]
) -> dict[str, Any]:
    """`message` and `findings` (level, type, message) of a cluster with this AMI on head and compute nodes.

    Where it gives no such answer, `error` says what it gave instead.
    """
    access = place.environment() | ({"AWS_PROFILE": place.profile} if place.profile else {})
    with tempfile.TemporaryDirectory(prefix="gpu-ami-pcluster-") as folder:
        file = Path(folder) / "cluster.yml"
        file.write_text(yaml.safe_dump(_cluster(place, plan, ami, subnet_id, instance_types)), encoding="utf-8")
        # boto3 takes an empty AWS_PROFILE for the name of one.
        command = ["env", "-u", "AWS_PROFILE"] if place.credentials else []
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
