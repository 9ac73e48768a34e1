#!/bin/sh
# Runs once, on the host, with the image's file tree: customise.sh TREE SYSTEM VERSION (ParallelCluster's).
set -eu
tree=$1
version=${3:?a ParallelCluster base image has a version, as in ubuntu2404+parallelcluster-3.16.3}

# Slurm and munge: Debian's programs (unpacked.txt), in the places of the cookbook's (aws-parallelcluster-slurm: install_slurm, munge).
# Slurm's programs know their library folder and slurmd its slurmstepd and slurm.conf by Debian's paths, so those are links.
unpacked=$PWD/unpacked
libraries=usr/lib/x86_64-linux-gnu
mkdir -p "$tree/opt/slurm/bin" "$tree/opt/slurm/sbin" "$tree/opt/slurm/etc" "$tree/opt/slurm/lib/slurm"
for name in slurmd slurmctld slurmstepd; do
    cp "$unpacked/usr/sbin/$name-wlm" "$tree/opt/slurm/sbin/$name"
done
ln -s /opt/slurm/sbin/slurmstepd "$tree/usr/sbin/slurmstepd"
sed -n 's|^/usr/bin/||p' "$unpacked/var/lib/dpkg/info/slurm-client.list" | while read -r name; do
    cp "$unpacked/usr/bin/$name" "$tree/opt/slurm/bin/$name"
done
cp "$unpacked/$libraries/slurm-wlm/"* "$tree/opt/slurm/lib/slurm/"
ln -s /opt/slurm/lib/slurm "$tree/$libraries/slurm-wlm"
ln -s /opt/slurm/etc "$tree/etc/slurm"
for name in munged mungekey; do cp "$unpacked/usr/sbin/$name" "$tree/usr/sbin/$name"; done
for name in munge unmunge remunge; do cp "$unpacked/usr/bin/$name" "$tree/usr/bin/$name"; done
cp "$unpacked/usr/lib/systemd/system/munge.service" "$tree/usr/lib/systemd/system/munge.service"
find "$unpacked/$libraries" -maxdepth 1 -name 'lib*.so*' | while read -r library; do
    [ -e "$tree/$libraries/${library##*/}" ] || cp -P "$library" "$tree/$libraries/"
done
chroot "$tree" ldconfig
# aws-parallelcluster-shared, attributes/users.rb: slurm 401, munge 402. The key is made on a cluster's head node.
account() {
    chroot "$tree" groupadd --system --gid "$2" "$1"
    chroot "$tree" useradd --system --uid "$2" --gid "$2" --no-create-home --home-dir "/home/$1" --shell "$3" --comment "$1 user" "$1"
}
account slurm 401 /bin/bash
account munge 402 /sbin/nologin
install -d -o 402 -g 402 "$tree/etc/munge" "$tree/var/log/munge"
install -d -o 402 -g 402 -m 711 "$tree/var/lib/munge"
# Debian's PMIx library is not among them, and slurmd logs an error for each plug-in that does not load.
rm "$tree"/opt/slurm/lib/slurm/mpi_pmix*.so
echo "aws-parallelcluster-cookbook-$version" >"$tree/opt/parallelcluster/.bootstrapped"
environments=$tree/opt/parallelcluster/pyenv/versions/3.12.8/envs
for name in cookbook_virtualenv node_virtualenv cfn_bootstrap_virtualenv; do
    mkdir -p "$environments/$name/bin"
done
for name in cfn-init cfn-hup cfn-signal; do
    cp "$tree/opt/parallelcluster/scripts/fetch_and_run" "$environments/cfn_bootstrap_virtualenv/bin/$name"
done
mkdir -p "$tree/etc/chef" "$tree/opt/parallelcluster/shared"
# On AWS, the start of a cluster does this on each node.
chroot "$tree" systemctl --quiet enable nvidia-persistenced.service nvidia-fabricmanager.service
# As the cookbook's ami_cleanup.sh does at the end (035bc145, read 2026-11-28).
find "$tree/var/log" -type f -delete
: >"$tree/var/log/lastlog"
