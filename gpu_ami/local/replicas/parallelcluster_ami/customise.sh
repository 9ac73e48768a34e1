#!/bin/sh
# Runs once, on the host, with the image's file tree: customise.sh TREE SYSTEM VERSION (ParallelCluster's).
set -eu
tree=$1
version=${3:?a ParallelCluster base image has a version, as in ubuntu2404+parallelcluster-3.16.3}

mkdir -p "$tree/opt/slurm/sbin"
for name in bin/sinfo bin/scontrol bin/squeue bin/srun bin/sbatch sbin/slurmd sbin/slurmctld; do
    cp "$tree/opt/slurm/bin/slurm-replica" "$tree/opt/slurm/$name"
done
rm "$tree/opt/slurm/bin/slurm-replica"
echo "aws-parallelcluster-cookbook-$version" >"$tree/opt/parallelcluster/.bootstrapped"
environments=$tree/opt/parallelcluster/pyenv/versions/3.12.8/envs
for name in cookbook_virtualenv node_virtualenv cfn_bootstrap_virtualenv; do
    mkdir -p "$environments/$name/bin"
done
for name in cfn-init cfn-hup cfn-signal; do
    cp "$tree/opt/parallelcluster/scripts/fetch_and_run" "$environments/cfn_bootstrap_virtualenv/bin/$name"
done
mkdir -p "$tree/etc/chef" "$tree/etc/munge" "$tree/opt/parallelcluster/shared"
# On AWS, the start of a cluster does this on each node.
chroot "$tree" systemctl --quiet enable nvidia-persistenced.service nvidia-fabricmanager.service
