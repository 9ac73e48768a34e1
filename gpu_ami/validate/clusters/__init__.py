"""The services whose nodes an image can be, one module each behind one interface.

ecs              a container instance of an Amazon ECS cluster, by default of one that is made for the proof
eks              a node of an Amazon EKS cluster, in the local region of one that is started for the proof
parallelcluster  a Slurm cluster of the proof's machines; a dry run of pcluster with the AMI
node_service     the interface: refusals before a launch, the cluster of a proof, what its checks read, leaving it
"""

from gpu_ami.validate.clusters.ecs import Ecs
from gpu_ami.validate.clusters.eks import Eks
from gpu_ami.validate.clusters.node_service import CleanUp, Proven, Service
from gpu_ami.validate.clusters.parallelcluster import ParallelCluster

__all__ = ["CleanUp", "Ecs", "Eks", "ParallelCluster", "Proven", "Service"]
