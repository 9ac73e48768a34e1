"""EKS in the local region: clusters with a real control plane.

clusters          the EKS API: clusters, access entries, add-ons, reviews of tokens
control_plane     etcd, API server, controller manager and scheduler of one cluster; describes and forgets nodes
credentials       a cluster's own authority, and what it issues; whose a token of `aws eks get-token` is
"""

from localregion.eks.clusters import Eks, Identities, Reach, identities
from localregion.eks.control_plane import Instance

__all__ = ["Eks", "Identities", "Instance", "Reach", "identities"]
