"""The plan file: everything that a run needs to know, resolved.

document             plan.json: its content, digest, reader and writer; what Packer and Ansible read of it
resolution           a recipe becomes a plan, and a plan at a place: mirror, endpoint, source AMI, kernel
lock                 variables/locks: resolved values of each recipe, its source AMI by region; what a plan would change
bump                 moves a recipe to newer versions that go together
matrix               which images a change in a git repository affects
cost                 prices of instances, the estimate of a run, --max-cost
"""

from gpu_ami.plan import cost
from gpu_ami.plan.bump import Bump, BumpPolicy, Move
from gpu_ami.plan.bump import markdown as bump_summary
from gpu_ami.plan.bump import propose as propose_bump
from gpu_ami.plan.document import (
    ANSIBLE_FILE,
    PACKER_FILE,
    PLAN_FILE,
    SITE_FOLDER,
    Plan,
    ansible_variables,
    image_tags,
    roles_path,
    site_files,
    site_folder,
    with_digest,
)
from gpu_ami.plan.lock import Change, changes, compare, locks_folder, render_lock, value_differences, write_lock
from gpu_ami.plan.matrix import AffectedImage, affected
from gpu_ami.plan.resolution import make_plan, require_digests, resolve_source_ami, system_packages

__all__ = [
    "ANSIBLE_FILE",
    "PACKER_FILE",
    "PLAN_FILE",
    "SITE_FOLDER",
    "AffectedImage",
    "Bump",
    "BumpPolicy",
    "Change",
    "Move",
    "Plan",
    "affected",
    "ansible_variables",
    "bump_summary",
    "changes",
    "compare",
    "cost",
    "image_tags",
    "locks_folder",
    "make_plan",
    "propose_bump",
    "render_lock",
    "require_digests",
    "resolve_source_ami",
    "roles_path",
    "site_files",
    "site_folder",
    "system_packages",
    "value_differences",
    "with_digest",
    "write_lock",
]
