"""Kubernetes of the local region: the real kubelet of EKS images, the real control plane of their clusters.

programs          compiles the programs once (`make nodes`), kept by version; archives that containerd imports
"""

from localregion.kubernetes.programs import DEVICE_PLUGIN, KUBELET, RELEASES, Build, built, find

__all__ = ["DEVICE_PLUGIN", "KUBELET", "RELEASES", "Build", "built", "find"]
