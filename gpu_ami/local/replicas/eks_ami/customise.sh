#!/bin/sh
# Runs once, on the host, with the image's file tree: customise.sh TREE SYSTEM VERSION (Kubernetes' minor version).
set -eu
tree=$1
version=${3:?an EKS base image has a version, as in al2023+eks-1.33}
here=$(dirname "$0")
release=$(basename "$(readlink -f "$tree/vmlinuz")")
release=${release#vmlinuz-}

sed -i "s/@VERSION@/$version/" "$tree/usr/bin/kubelet"
sed -i "s/@KERNEL@/$release/; s/@MACHINE@/$(chroot "$tree" uname -m)/" "$tree/etc/eks/release"
chroot "$tree" kubelet --version >"$tree/etc/eks/kubelet-version.txt"
mkdir -p "$tree/etc/eks/nodeadm.d" "$tree/opt/cni/bin" "$tree/etc/kubernetes/manifests" "$tree/var/lib/kubelet"

# The AMI is built on the minimal one.
chroot "$tree" rpm --erase --nodeps acl binutils bzip2
sh "$here/../hide.sh" "$tree" "$here/../al2023_ami/minimal.txt"
chroot "$tree" systemctl --quiet enable nodeadm-config.service nodeadm-run.service
