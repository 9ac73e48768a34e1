#!/bin/sh
# Runs once on the tree, from outside: customise.sh TREE. Debian's own tools go out of the way, Amazon Linux's come in.
set -eu
tree=$1
here=$(dirname "$0")
hidden=/usr/libexec/gpu-ami/debian

ln -sfn amazon-linux-release "$tree/etc/system-release"
rm -f "$tree/etc/debian_version" "$tree/etc/default/grub.d/10_gpu-ami.cfg"
ln -s dnf-3 "$tree/usr/bin/yum"
# A plug-in that Amazon Linux does not have.
sed -i 's/^enabled = .*/enabled = false/' "$tree/etc/dnf/plugins/local.conf"
ln -sfn grub "$tree/boot/grub2"
mkdir -p "$tree/etc/pki/rpm-gpg" "$tree/etc/sysconfig" "$tree/usr/lib64"
chroot "$tree" groupadd --system wheel
chroot "$tree" ldconfig

# Amazon's cloud-final does not wait for all of multi-user.target: units of ECS and EKS in that target wait for it.
sed -i '/^After=multi-user.target/d' "$tree/usr/lib/systemd/system/cloud-final.service"

# Of the machine beneath: its kernel, and the database of what is there.
release=$(basename "$(readlink -f "$tree/vmlinuz")")
cp "$here/system_rpms.py" "$tree/run/system_rpms.py"
chroot "$tree" python3 /run/system_rpms.py "${release#vmlinuz-}" <"$here/rpms.txt"

# What asks dpkg, asks for it there: grub-mkconfig and mkinitramfs do. Without python3-apt nothing takes this for a system
# of dpkg's because of its modules.
mkdir -p "$tree$hidden/python3"
sed -i "s|^export PATH='\(.*\)'|export PATH='\1:$hidden'|" "$tree/usr/sbin/mkinitramfs"
mv "$tree"/usr/lib/python3/dist-packages/apt "$tree"/usr/lib/python3/dist-packages/apt_*.so "$tree$hidden/python3/"
for tool in "$tree"/usr/bin/apt "$tree"/usr/bin/apt-* "$tree"/usr/bin/dpkg "$tree"/usr/bin/dpkg-* \
    "$tree"/usr/sbin/update-grub "$tree"/usr/sbin/update-grub2 "$tree"/usr/sbin/grub-mkconfig; do
    [ ! -e "$tool" ] || mv "$tool" "$tree$hidden/"
done

# gnupg2-minimal verifies with gpg alone: it has no agent and no directory manager, and its gpgv2 leads to a gpgv that it
# does not have (amazonlinux/amazon-linux-2023 issues 414, 650 and 791, read 2026-11-22).
for tool in gpgv gpg-agent gpgsm dirmngr; do
    [ ! -e "$tree/usr/bin/$tool" ] || mv "$tree/usr/bin/$tool" "$tree$hidden/"
done
ln -sfn gpgv "$tree/usr/bin/gpgv2"
