#!/bin/sh
# Runs once, on the host, with the image's file tree: customise.sh TREE. Installs packages with Ubuntu's names for what
# Debian has under other names, and removes what Ubuntu's AMI does not have.
set -eu
tree=$1
here=$(dirname "$0")
release=$(basename "$(readlink -f "$tree/vmlinuz")")
release=${release#vmlinuz-}

build=$tree/run/system-debs
mkdir -p "$build"
sed -e 's/#.*//' -e "s/release/$release/g" "$here/debs.txt" | while read -r name first rest; do
    [ -n "$name" ] || continue
    # shellcheck disable=SC2016 # dpkg-query expands it
    version=$(chroot "$tree" dpkg-query -W -f '${Version}' "$first")
    mkdir -p "$build/$name/DEBIAN"
    depends=$(echo "$first $rest" | sed -e 's/ *$//' -e 's/ /, /g')
    cat >"$build/$name/DEBIAN/control" <<CONTROL
Package: $name
Version: $version
Architecture: amd64
Maintainer: gpu-ami <gpu-ami@localhost>
Depends: $depends
Description: $name of the Debian layer below (gpu-ami base image)
 Depends on the Debian packages that contain it.
CONTROL
    chroot "$tree" dpkg-deb --root-owner-group -Znone --build "/run/system-debs/$name" >/dev/null
done
chroot "$tree" sh -c 'dpkg --install /run/system-debs/*.deb' >/dev/null
rm -rf "$build"

# The libraries of a hidden program stay; dpkg no longer knows the package.
sh "$here/../hide.sh" "$tree" "$here/absent.txt"
sed -e 's/#.*//' -e 's/ .*//' "$here/absent.txt" | while read -r name; do
    [ -n "$name" ] || continue
    rm -f "$tree/var/lib/dpkg/info/$name".*
    sed -i "/^Package: $name\$/,/^\$/d" "$tree/var/lib/dpkg/status"
done
