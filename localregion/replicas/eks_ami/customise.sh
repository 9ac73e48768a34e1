#!/bin/sh
# Runs once, on the host, with the image's file tree: customise.sh TREE SYSTEM VERSION (Kubernetes' minor version).
set -eu
tree=$1
version=${3:?an EKS base image has a version, as in al2023+eks-1.33}
here=$(dirname "$0")
release=$(basename "$(readlink -f "$tree/vmlinuz")")
release=${release#vmlinuz-}

# The real kubelet where `make nodes` has built this version's (localregion/kubernetes/), else one that prints a version.
built=$PWD/kubernetes
if [ -d "$built" ]; then
    cp "$built/kubelet" "$tree/usr/bin/kubelet"
    cp "$built/gpu-ami-device-plugin" "$tree/usr/libexec/gpu-ami/"
    cp "$built/pause.tar" "$tree/etc/eks/pause.tar"
else
    sed -i "s/@VERSION@/$version/" "$tree/usr/bin/kubelet"
fi
sed -i "s/@KERNEL@/$release/; s/@MACHINE@/$(chroot "$tree" uname -m)/" "$tree/etc/eks/release"
chroot "$tree" kubelet --version >"$tree/etc/eks/kubelet-version.txt"
for plugin in host-local loopback portmap ptp; do install -D "$PWD/unpacked/usr/lib/cni/$plugin" "$tree/opt/cni/bin/$plugin"; done
mkdir -p "$tree/etc/eks/nodeadm.d" "$tree/opt/cni/bin" "$tree/etc/kubernetes/manifests" "$tree/var/lib/kubelet"

# The AMI is built on the minimal one.
chroot "$tree" rpm --erase --nodeps acl binutils bzip2
sh "$here/../hide.sh" "$tree" "$here/../al2023_ami/minimal.txt"
chroot "$tree" systemctl --quiet enable nodeadm-config.service nodeadm-run.service gpu-ami-daemonsets.service
