"""gpu-ami: from a recipe to a certified GPU AMI."""

__version__ = "0.2.0"
