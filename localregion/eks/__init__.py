"""EKS in the local region: clusters with a real control plane.

clusters          the EKS API: clusters, access entries, add-ons, reviews of tokens
control_plane     etcd, API server, controller manager and scheduler of one cluster
credentials       a cluster's own authority, and what it issues; whose a token of `aws eks get-token` is
cloud_controller  describes new nodes, forgets those of instances that have ended
"""

from localregion.eks.cloud_controller import Instance
from localregion.eks.clusters import Eks, Identities, Reach, identities

__all__ = ["Eks", "Identities", "Instance", "Reach", "Refused", "identities"]
