"""A machine as a node of a cluster, and several machines that work together.

nodes        machines of one proof that work together: keys, addresses
joined       the cluster and its nodes, as `gpu-ami` knows them (--join)
kubernetes   the calls of Kubernetes' API that a proof makes
eks_node     a node of an EKS cluster, and the pods that prove it
slurm        a Slurm cluster of a proof's machines
open_mpi     Open MPI on several nodes
nccl_tests   the output of nccl-tests, and what EFA counted meanwhile
"""
