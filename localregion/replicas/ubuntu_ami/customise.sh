#!/bin/sh
# Runs once, on the host, with the image's file tree: customise.sh TREE KERNEL SYSTEM (the AMI's kernel package, kernels/KERNEL.txt;
# ubuntu2204 or ubuntu2404, releases/SYSTEM). Installs packages with Ubuntu's names for what Debian has under other names, and removes
# what Ubuntu's AMI does not have.
set -eu
tree=$1
kernel=$2
system=$3
here=$(dirname "$0")
# A checkout's owners and modes do not reach the image.
(cd "$here/releases/$system/rootfs" && find . -type f) | while read -r path; do
    install -D -m 644 -o root -g root "$here/releases/$system/rootfs/$path" "$tree/$path"
done
release=$(basename "$(readlink -f "$tree/vmlinuz")")
release=${release#vmlinuz-}
architecture=$(chroot "$tree" dpkg --print-architecture)

build=$tree/run/system-debs
mkdir -p "$build"

# control NAME VERSION DEPENDS DESCRIPTION
control() {
    mkdir -p "$build/$1/DEBIAN"
    cat >"$build/$1/DEBIAN/control" <<CONTROL
Package: $1
Version: $2
Architecture: $architecture
Maintainer: gpu-ami <gpu-ami@localhost>
Depends: $3
Description: $4 (gpu-ami base image)
CONTROL
    [ -n "$3" ] || sed -i '/^Depends:/d' "$build/$1/DEBIAN/control"
}

# own NAME: the package gets what standard input lists of the tree; files below /etc are configuration. /bin and its like are
# links to directories, and directories in packages.
own() {
    while read -r path; do
        if [ -d "$tree$path" ]; then
            mkdir -p "$build/$1$path"
            chmod --reference="$tree$path" "$build/$1$path"
            continue
        fi
        [ -f "$tree$path" ] || [ -L "$tree$path" ] || continue
        mkdir -p "$build/$1$(dirname "$path")"
        cp -a "$tree$path" "$build/$1$path"
        case $path in /etc/*) [ -L "$tree$path" ] || echo "$path" >>"$build/$1/DEBIAN/conffiles" ;; esac
    done
    (cd "$build/$1" && find . -path ./DEBIAN -prune -o -type f -print0 | xargs -0 -r md5sum | sed 's|  \./|  |' >DEBIAN/md5sums)
}

# build_deb NAME: one of the packages that are installed at the end
build_deb() {
    chroot "$tree" dpkg-deb --root-owner-group -Znone --build "/run/system-debs/$1" >/dev/null
}

# Modules that this kernel has and Debian's has not, at their places; linux-modules owns them.
modules=$here/releases/$system/modules/$kernel
if [ -d "$modules" ]; then
    cp -r "$modules" "$build/modules"
    chroot "$tree" make -s -C "/lib/modules/$release/build" M=/run/system-debs/modules modules >/dev/null
    (cd "$build/modules" && find drivers -name '*.ko') | while read -r path; do
        install -D -m 644 "$build/modules/$path" "$tree/lib/modules/$release/kernel/$path"
        echo "/lib/modules/$release/kernel/$path" >>"$build/modules.list"
    done
    chroot "$tree" depmod "$release"
fi

sed -e 's/#.*//' -e "s/release/$release/g" "$here/releases/$system/kernels/$kernel.txt" | while read -r name first rest; do
    [ -n "$name" ] || continue
    # shellcheck disable=SC2016 # dpkg-query expands it
    version=$(chroot "$tree" dpkg-query -W -f '${Version}' "$first")
    control "$name" "$version" "$(echo "$first $rest" | sed -e 's/ *$//' -e 's/ /, /g')" "$name of the Debian layer below"
    if [ "$name" = "linux-modules-$release" ] && [ -d "$modules" ]; then own "$name" <"$build/modules.list"; fi
    build_deb "$name"
done

# os-release and lsb-release are Ubuntu's, and so is the package that has them. Its scripts are Debian's.
control base-files "$(cat "$here/releases/$system/base-files")" "" "Ubuntu's base system files"
sed -i '/^Description:/i Essential: yes\nMulti-Arch: foreign' "$build/base-files/DEBIAN/control"
for script in preinst postinst postrm prerm; do
    [ ! -e "$tree/var/lib/dpkg/info/base-files.$script" ] || cp -p "$tree/var/lib/dpkg/info/base-files.$script" "$build/base-files/DEBIAN/$script"
done
{ chroot "$tree" dpkg-query -L base-files; echo /etc/lsb-release; } | own base-files
build_deb base-files

# A hidden program and what belongs to it stay in the tree; dpkg no longer knows its package. What is left is one package's, so that
# dpkg owns all that the base image has, as it does on Ubuntu's.
absent=$(sed -e 's/#.*//' -e 's/ .*//' "$here/absent.txt")
control base-image-tools 1 "" "Debian's build tools, out of PATH"
for name in $absent; do chroot "$tree" dpkg-query -L "$name"; done >"$build/absent-files"
sh "$here/../hide.sh" "$tree" "$here/absent.txt"
for name in $absent; do
    rm -f "$tree/var/lib/dpkg/info/$name".*
    sed -i "/^Package: $name\$/,/^\$/d" "$tree/var/lib/dpkg/status"
done
{ cat "$build/absent-files"; find "$tree/usr/libexec/gpu-ami/debian" -mindepth 1 | sed "s|^$tree||"; } | own base-image-tools
build_deb base-image-tools

chroot "$tree" sh -c 'dpkg --force-confold --install /run/system-debs/*.deb' >/dev/null
rm -rf "$build"
