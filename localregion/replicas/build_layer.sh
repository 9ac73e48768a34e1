#!/bin/sh
# Builds one layer of an image: build_layer.sh LOWER RELEASE SCRIPT [ARGUMENT...], in the layer's work folder, in mount and
# PID namespaces of its own. LOWER: the layers below, as overlayfs's lowerdir. RELEASE: release of the image's kernel.
# Optional, applied in this order: ./packages (names of Debian packages, installed from ./sources.list), ./replicas (.deb,
# .rpm and installer archives), ./overlay.tar (files at their paths in the image), SCRIPT (run with the mounted tree and the
# arguments). ./upper has the changes afterwards.
set -eu
lower=$1
release=$2
script=$3
shift 3

mkdir upper work root
mount -t overlay layer root -o "lowerdir=$lower,upperdir=upper,workdir=work"
mount -t proc proc root/proc
mount -t tmpfs -o mode=755 dev root/dev
for node in null zero full random urandom tty; do
    : >"root/dev/$node"
    mount --bind "/dev/$node" "root/dev/$node"
done
ln -s /proc/self/fd root/dev/fd
mount -t tmpfs -o mode=755 run root/run
mount -t tmpfs -o mode=1777 tmp root/tmp

export PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive
if [ -s packages ]; then
    cp sources.list root/run/sources.list
    mount --bind "$(readlink -f /etc/resolv.conf)" root/etc/resolv.conf
    # Package lists and downloaded packages are kept out of the layer, and no service is started.
    for folder in lib/apt/lists cache/apt; do
        mount -t tmpfs -o mode=755 apt "root/var/$folder"
    done
    mkdir -p root/var/cache/apt/archives/partial root/var/lib/apt/lists/partial
    printf '#!/bin/sh\nexit 101\n' >root/usr/sbin/policy-rc.d
    chmod 755 root/usr/sbin/policy-rc.d
    options="-q -o Dir::Etc::SourceList=/run/sources.list -o Dir::Etc::SourceParts=/run/none -o APT::Sandbox::User=root
        -o DPkg::Use-Pty=false -o DPkg::Options::=--force-unsafe-io"
    # shellcheck disable=SC2086 # word splitting is intended
    chroot root apt-get $options update
    # shellcheck disable=SC2046,SC2086 # word splitting is intended
    chroot root apt-get $options install --yes --no-install-recommends $(cat packages)
    rm root/usr/sbin/policy-rc.d
    umount root/var/lib/apt/lists root/var/cache/apt root/etc/resolv.conf
fi
if [ -d replicas ]; then
    # Vendors' scripts build for the kernel that uname reports. The compiler may be out of PATH (hide.sh).
    cp sandbox_preload.c root/run/
    chroot root env "PATH=$PATH:/usr/libexec/gpu-ami/debian" gcc -shared -nostdlib -fPIC -O "-DRELEASE=\"$release\"" -o /run/uname.so /run/sandbox_preload.c
    mkdir root/run/replicas
    mount --bind replicas root/run/replicas
    inside() {
        chroot root env LD_PRELOAD=/run/uname.so sh -c "$1"
    }
    if ls replicas/*.deb >/dev/null 2>&1; then inside "dpkg --install /run/replicas/*.deb"; fi
    # What a layer below has stays as it is: rpm would install the replica beside it, and replace the files of the system's.
    missing=
    for file in replicas/*.rpm; do
        [ -e "$file" ] || continue
        name=$(chroot root rpm --query --package --nosignature --queryformat '%{NAME}' "/run/$file")
        chroot root rpm --query --quiet "$name" || missing="$missing /run/$file"
    done
    if [ -n "$missing" ]; then inside "rpm --install $missing"; fi
    # dnf reads the index of each repository, also for the files of an installer; no repository answers here.
    if [ -d root/etc/yum.repos.d ]; then mount -t tmpfs -o mode=755 repositories root/etc/yum.repos.d; fi
    for archive in replicas/aws-efa-installer-*.tar.gz; do
        [ -e "$archive" ] || continue
        tar -C root/run -xf "$archive"
        inside "cd /run/aws-efa-installer && ./efa_installer.sh --yes --no-verify"
    done
    if mountpoint -q root/etc/yum.repos.d; then umount root/etc/yum.repos.d; fi
    umount root/run/replicas
fi
if [ -f overlay.tar ]; then
    tar -C root --no-same-owner --no-overwrite-dir -xf overlay.tar
fi
if [ -f "$script" ]; then
    sh "$script" "$PWD/root" "$@"
fi
# AMIs are published without the logs of what installed their packages.
for log in upper/var/log/apt/* upper/var/log/dpkg.log upper/var/log/alternatives.log; do
    if [ -f "$log" ]; then rm "root/${log#upper/}"; fi
done
umount -R root
