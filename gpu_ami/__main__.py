"""`python -m gpu_ami` is `gpu-ami`."""

from gpu_ami.cli import entry

entry()
