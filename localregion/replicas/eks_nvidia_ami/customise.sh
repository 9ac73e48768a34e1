#!/bin/sh
# Runs once, on the host, with the image's file tree: customise.sh TREE SYSTEM VERSION (Kubernetes' minor version). ./apart has a folder of each
# driver's packages, lts and pb, which are laid out as trees below /opt/nvidia (amazon-eks-ami, install-nvidia-drivers.sh), and installers.
set -eu
tree=$1
release=$(basename "$(readlink -f "$tree/vmlinuz")")
release=${release#vmlinuz-}
# The compiler may be out of PATH (hide.sh).
inside() {
    chroot "$tree" env "PATH=$PATH:/usr/libexec/gpu-ami/debian" "$@"
}
unpack() {
    rpm2archive -n <"$1" | tar -x -C "$2" --no-same-owner
}

for branch in lts pb; do
    driver=$tree/opt/nvidia/$branch
    mkdir -p "$driver/.rpms" "$driver/etc" "$driver/usr/bin" "$driver/usr/lib64" "$driver/usr/share"
    for file in "apart/$branch"/*.rpm; do
        case ${file##*/} in
            kmod-nvidia-open-dkms-*) flavour=open ;;
            kmod-nvidia-latest-dkms-*) flavour=proprietary ;;
            *) cp "$file" "$driver/.rpms/"; unpack "$file" "$driver"; continue ;;
        esac
        # Each flavour's modules are built once, for the AMI's kernel; no source stays.
        mkdir -p "$driver/flavors/$flavour/.rpms" "$driver/flavors/$flavour/lib/modules/$release/extra" "$tree/run/module"
        cp "$file" "$driver/flavors/$flavour/.rpms/"
        unpack "$file" "$tree/run/module"
        source=$(cd "$tree/run/module" && echo usr/src/nvidia-*)
        inside make -s -C "/run/module/$source" "KERNEL_UNAME=$release" modules
        cp "$tree/run/module/$source"/*.ko "$driver/flavors/$flavour/lib/modules/$release/extra/"
        version=${source##*nvidia-}
        rm -r "$tree/run/module"
    done
    echo "$version" >"$driver/.version"
    : >"$driver/.tree-$branch"
    mkdir -p "$driver/usr/lib/firmware/nvidia/$version"
    : >"$driver/usr/lib/firmware/nvidia/$version/gsp_ga10x.bin"
done
# install-efa.sh: the minimal installation. dnf reads the index of each repository, and no repository answers here.
mount -t tmpfs -o mode=755 repositories "$tree/etc/yum.repos.d"
tar -C "$tree/run" -xf apart/installers/aws-efa-installer-*.tar.gz
chroot "$tree" env LD_PRELOAD=/run/uname.so sh -c "cd /run/aws-efa-installer && ./efa_installer.sh --minimal --yes --no-verify"
umount "$tree/etc/yum.repos.d"
echo ib_umad >"$tree/etc/modules-load.d/ib-umad.conf"
for part in bin lib64 share; do mkdir -p "$tree/var/lib/eks/nvidia/$part/upper" "$tree/var/lib/eks/nvidia/$part/work"; done
# The scripts of packages in the trees do not run.
chroot "$tree" useradd --system --user-group --home-dir /nonexistent --shell /usr/sbin/nologin --comment "NVIDIA Persistence Daemon" \
    nvidia-persistenced
chroot "$tree" systemctl --quiet enable nvidia-driver-resolve.service usr-bin.mount usr-lib64.mount usr-share.mount nvidia-setup.service \
    nvidia-package-install.service
