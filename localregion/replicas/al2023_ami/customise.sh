#!/bin/sh
# Runs once, on the host, with the image's file tree: customise.sh TREE KERNEL (the AMI's kernel package, kernels/KERNEL.txt). Moves Debian's package tools out of PATH and adds
# Amazon Linux's.
set -eu
tree=$1
kernel=$2
here=$(dirname "$0")
hidden=/usr/libexec/gpu-ami/debian

ln -sfn amazon-linux-release "$tree/etc/system-release"
rm -f "$tree/etc/debian_version" "$tree/etc/default/grub.d/10_gpu-ami.cfg"
ln -s dnf-3 "$tree/usr/bin/yum"
ln -sfn grub "$tree/boot/grub2"
mkdir -p "$tree/etc/pki/rpm-gpg" "$tree/etc/sysconfig" "$tree/usr/lib64"
chroot "$tree" groupadd --system wheel
chroot "$tree" ldconfig

# On Amazon Linux, cloud-final does not run after multi-user.target: units of ECS and EKS in that target run after it.
sed -i '/^After=multi-user.target/d' "$tree/usr/lib/systemd/system/cloud-final.service"

# The kernel release of the Debian layer below, and the rpm database of the installed packages.
release=$(basename "$(readlink -f "$tree/vmlinuz")")
cp "$here/system_rpms.py" "$tree/run/system_rpms.py"
cat "$here/rpms.txt" "$here/kernels/$kernel.txt" >"$tree/run/rpms.txt"
chroot "$tree" python3 /run/system_rpms.py "${release#vmlinuz-}" <"$tree/run/rpms.txt"

# grub-mkconfig and mkinitramfs need dpkg and find it in this folder. python3-apt is moved too, since programs that can
# import it (Ansible) take the system for one with apt.
mkdir -p "$tree$hidden/python3"
sed -i "s|^export PATH='\(.*\)'|export PATH='\1:$hidden'|" "$tree/usr/sbin/mkinitramfs"
# What apt installed by itself says nothing of rpm's packages, whose names are the same.
rm -f "$tree/var/lib/apt/extended_states"
mv "$tree"/usr/lib/python3/dist-packages/apt "$tree"/usr/lib/python3/dist-packages/apt_*.so "$tree$hidden/python3/"
for tool in "$tree"/usr/bin/apt "$tree"/usr/bin/apt-* "$tree"/usr/bin/dpkg "$tree"/usr/bin/dpkg-* \
    "$tree"/usr/sbin/update-grub "$tree"/usr/sbin/update-grub2 "$tree"/usr/sbin/grub-mkconfig; do
    [ ! -e "$tool" ] || mv "$tool" "$tree$hidden/"
done

# gnupg2-minimal has gpg only: no gpg-agent and no dirmngr, and its gpgv2 is a link to a gpgv that it does not contain
# (amazonlinux/amazon-linux-2023 issues 414, 650 and 791, read 2026-11-22).
for tool in gpgv gpg-agent gpgsm dirmngr; do
    [ ! -e "$tree/usr/bin/$tool" ] || mv "$tree/usr/bin/$tool" "$tree$hidden/"
done
ln -sfn gpgv "$tree/usr/bin/gpgv2"

# The list of an absent plug-in, too.
rm -f "$tree/etc/dnf/plugins/versionlock.list"
sh "$here/../hide.sh" "$tree" "$here/absent.txt"
