"""Disk images of the local region: base images and AMIs.

store                AMIs and their disks: create, copy, register, remove; copies that are begun before the launch
base_image           Debian 12, made by mmdebstrap
prepare              makes it before it is needed, for `make prove`
source_ami           the AMIs of base images, as plans find them; an AMI made of a tree of files; the SSM Agent
rootfs_layers        the layers of a base image as folders
base_ami_packages    packages that a node family's base AMI contains
"""

from localregion.images.rootfs_layers import Base, Tree, require_root
from localregion.images.store import ImageJob, ImageStore, LoopDevice, Request, SpareDisks, copy_disk, own_disk

__all__ = [
    "Base", "ImageJob", "ImageStore", "LoopDevice", "Request", "SpareDisks", "Tree", "copy_disk", "own_disk",
    "require_root",
]  # fmt: skip
