#!/bin/sh
# Runs once, on the host, with the image's file tree: customise.sh TREE.
set -eu
tree=$1
here=$(dirname "$0")
release=$(basename "$(readlink -f "$tree/vmlinuz")")

mkdir -p "$tree/var/lib/ecs/data" "$tree/etc/docker"
# The AMI is built on the minimal one.
chroot "$tree" rpm --erase --nodeps acl binutils bzip2
sh "$here/../hide.sh" "$tree" "$here/../al2023_ami/minimal.txt"
cp "$here/../al2023_ami/system_rpms.py" "$tree/run/system_rpms.py"
# amazon-ecs-ami swaps gnupg2-minimal for gnupg2-full and keeps it (al2023.pkr.hcl at a2532d35, read 2026-11-22).
chroot "$tree" rpm --erase --nodeps gnupg2-minimal
for tool in gpgv gpg-agent gpgsm dirmngr; do
    [ ! -e "$tree/usr/libexec/gpu-ami/debian/$tool" ] || cp "$tree/usr/libexec/gpu-ami/debian/$tool" "$tree/usr/bin/"
done
chroot "$tree" python3 /run/system_rpms.py "${release#vmlinuz-}" <"$here/rpms.txt"
chroot "$tree" systemctl --quiet enable docker.service ecs.service
