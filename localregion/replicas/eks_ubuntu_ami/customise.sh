#!/bin/sh
# Runs once, on the host, with the image's file tree: customise.sh TREE SYSTEM VERSION (Kubernetes' minor version).
#
# Files of Canonical's EKS AMI, and where each is named:
#   /etc/eks/bootstrap.sh, kubelet-eks.kubelet, kubelet-config.json     eksctl-io/eksctl pkg/nodebootstrap (bootstrap.ubuntu.sh, bootstrap.helper.sh)
#   snaps kubelet-eks, kubectl-eks, ecr-credential-provider, their hold  documentation.ubuntu.com/aws (snap usage in EKS worker images, EKS kubelet snap)
#   snap.kubelet-eks.daemon, off at first                               charmed-kubernetes/jenkins build-release-eks-snaps.groovy (install-mode: disable)
#   /usr/local/share/eks/*, /etc/eks/*, kubeconfig with placeholders    a copy of Canonical's bootstrap.sh in public repositories (of Kubernetes before 1.27)
#   nvidia-runtime-config.toml                                          canonical/ubuntu-cloud-docs issue 389
# What is in the files is written for the local region, except paths, arguments and placeholders. All were read on 2026-11-28.
set -eu
tree=$1
version=${3:?an EKS base image has a version, as in ubuntu2404+eks-1.35}

# The real kubelet where `make nodes` has built this version's (localregion/kubernetes/), else one that prints a version.
kubelet=$tree/snap/kubelet-eks/1/kubelet
if [ -d "$PWD/kubernetes" ]; then cp "$PWD/kubernetes/kubelet" "$kubelet"; else sed -i "s/@VERSION@/$version/" "$kubelet"; fi
release=$(chroot "$tree" /snap/kubelet-eks/1/kubelet --version | sed -n 's/^Kubernetes v\([0-9.]*\).*/\1/p')

mkdir -p "$tree/snap/bin" "$tree/var/lib/snapd/snaps"
entries=
for name in kubelet-eks kubectl-eks ecr-credential-provider; do
    mkdir -p "$tree/snap/$name/1/meta"
    printf 'name: %s\nversion: %s\nconfinement: classic\n' "$name" "$release" >"$tree/snap/$name/1/meta/snap.yaml"
    ln -s 1 "$tree/snap/$name/current"
    entries="$entries${entries:+, }\"$name\": {\"type\": \"app\", \"sequence\": [{\"name\": \"$name\", \"revision\": \"1\"}],
        \"active\": true, \"current\": \"1\", \"channel\": \"$release/stable\"}"
done
install -m 600 /dev/null "$tree/var/lib/snapd/state.json"
printf '{"data": {"config": {"core": {"refresh": {"hold": "forever"}}}, "snaps": {%s}}}\n' "$entries" >"$tree/var/lib/snapd/state.json"
ln -s /usr/bin/snap "$tree/snap/bin/kubelet-eks.kubelet"
mkdir -p "$tree/etc/kubernetes/pki" "$tree/etc/cni/net.d" "$tree/opt/cni/bin"
chroot "$tree" systemctl --quiet enable containerd.service
