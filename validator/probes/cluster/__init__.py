"""A machine as a node of a cluster, and several machines that work together.

nodes        machines of one proof that work together: keys, addresses
joined       the cluster and its nodes, as `gpu-ami` knows them (--join)
kubernetes   a node of an EKS cluster: the API's calls, the caller's token, the pods of the proof
mpi_jobs     Open MPI on several nodes, and nccl-tests with what EFA counted meanwhile
"""
