"""gpu-ami: from a recipe to a certified GPU AMI."""

__version__ = "0.1.0"
