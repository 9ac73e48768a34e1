"""The services whose nodes an image can be, one module each behind one interface.

service          the interface: refusals before a launch, the cluster of a proof, what its checks read, leaving it
parallelcluster  a Slurm cluster of the proof's machines
"""

from gpu_ami.validate.clusters.parallelcluster import ParallelCluster
from gpu_ami.validate.clusters.service import CleanUp, Proven, Service

__all__ = ["CleanUp", "ParallelCluster", "Proven", "Service"]
