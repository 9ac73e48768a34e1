"""Any image as it is found: what is in it, whether its sources agree, and which rules it breaks.

observation          reads a host, this machine, or an image's files; what was read, component by component:
                     version, where each source has it, whether they agree
captures             what the agent sends, and whether new kernel lines of the driver reach it
findings             the rules of `plan`, and what only an image as found can break
nearest              the nearest recipe by which gpu-ami would rebuild it, and the plan with origin `observed`
screen               the text of `gpu-ami observe`
"""

from gpu_ami.observe.captures import Capture, capture_of
from gpu_ami.observe.findings import Finding, Level, findings_of
from gpu_ami.observe.nearest import (
    RECIPE_FILE,
    against,
    against_manifest,
    context_of,
    instance_types,
    nearest_recipe,
    observed_plan,
)
from gpu_ami.observe.observation import (
    OBSERVATION_FILE,
    Found,
    Observation,
    load,
    read_files,
    read_host,
    read_local,
    request,
    same,
)
from gpu_ami.observe.screen import text

__all__ = [
    "OBSERVATION_FILE",
    "RECIPE_FILE",
    "Capture",
    "Finding",
    "Found",
    "Level",
    "Observation",
    "against",
    "against_manifest",
    "capture_of",
    "context_of",
    "findings_of",
    "instance_types",
    "load",
    "nearest_recipe",
    "observed_plan",
    "read_files",
    "read_host",
    "read_local",
    "request",
    "same",
    "text",
]
