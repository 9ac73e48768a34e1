"""Packer and Ansible: a plan becomes an AMI, or converges a machine that runs.

image                one build: the template run once, build.json, reuse of an AMI that the same plan and roles made
packer               Packer's command line, its plugins and its manifest
packer_output        Packer's machine-readable output as progress, log and cause of a failure
ansible              ansible-playbook's command line; a plan's roles on a running machine
ansible_output       ansible-playbook's output as tasks, changes, times and failures
"""

from gpu_ami.build.ansible import Machine, converge
from gpu_ami.build.packer import Packer

__all__ = ["Machine", "Packer", "converge"]
