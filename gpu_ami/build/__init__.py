"""Packer and Ansible: a plan becomes an AMI, or converges a machine that runs.

image                one build: build.json, reuse of an AMI that the same plan and roles made
builder              runs Packer in a place until an image is complete; a booted builder or a sandbox
launched_builder     a builder that gpu-ami launches: Spot, a reservation by its id, a Capacity Block
layers               the layers of a plan, each with a digest of all that decides what it installs
layering             layer images: which a build starts from, and which it makes on the way
packer               Packer's command line, its plugins and its manifest
packer_output        Packer's machine-readable output as progress, log and cause of a failure
ansible              ansible-playbook's command line and output; a plan's roles on a running machine
"""

from gpu_ami.build.ansible import Machine, converge
from gpu_ami.build.layering import Layering
from gpu_ami.build.packer import Packer

__all__ = ["Layering", "Machine", "Packer", "converge"]
