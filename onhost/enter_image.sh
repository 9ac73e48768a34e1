#!/bin/sh
# Mounts an image's files read-only and runs a shell command in them. Runs in mount and process namespaces of its own;
# when they end, the mounts are gone.
# $1: mount point  $2: a mounted tree or a raw disk image  $3: offset of the file system in the disk, in bytes
# ("" for a tree)  $4: the command
set -e
if [ -n "$3" ]; then
    options=ro,loop,offset=$3
    # norecovery: the journal of a file system that is in use cannot be replayed.
    mount -o "$options" "$2" "$1" 2>/dev/null || mount -o "$options,norecovery" "$2" "$1"
else
    mount --rbind "$2" "$1"
    while read -r _ point _; do
        case "$point" in
        "$1" | "$1"/*) mount -o remount,bind,ro "$point" ;;
        esac
    done </proc/self/mounts
fi
mount -t proc -o ro proc "$1/proc"
# /dev has only the devices that programs need; /dev/shm is the only writable directory.
mount -t tmpfs -o mode=755,size=256m tmpfs "$1/dev"
for device in null zero full random urandom; do
    : >"$1/dev/$device"
    mount --bind "/dev/$device" "$1/dev/$device"
done
ln -s /proc/self/fd "$1/dev/fd"
mkdir -m 1777 "$1/dev/shm"
exec chroot "$1" /bin/sh -c "$4"
