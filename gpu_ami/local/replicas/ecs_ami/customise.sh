#!/bin/sh
# Runs once on the tree, from outside: customise.sh TREE.
set -eu
tree=$1
here=$(dirname "$0")
release=$(basename "$(readlink -f "$tree/vmlinuz")")

mkdir -p "$tree/var/lib/ecs/data" "$tree/etc/docker"
cp "$here/../al2023_ami/system_rpms.py" "$tree/run/system_rpms.py"
chroot "$tree" python3 /run/system_rpms.py "${release#vmlinuz-}" <"$here/rpms.txt"
chroot "$tree" systemctl --quiet enable docker.service ecs.service
