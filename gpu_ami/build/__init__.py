"""Packer and Ansible: a plan becomes an AMI, or converges a machine that runs.

image                one build: build.json, reuse of an AMI that the same plan and roles made
builder              runs Packer until an image is complete: booted builders, sandboxes, launched builders
layering             layers of a plan with their digests; layer images: which a build starts from, which it makes
packer               Packer's command line, plugins, output and manifest
ansible              ansible-playbook's command line and output; a plan's roles on a running machine
"""

from gpu_ami.build.ansible import Machine, converge
from gpu_ami.build.layering import Layering
from gpu_ami.build.packer import Packer, ami_of_manifest

__all__ = ["Layering", "Machine", "Packer", "ami_of_manifest", "converge"]
