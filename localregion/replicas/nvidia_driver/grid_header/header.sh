#!/bin/sh
# gpu-ami replica of the installer of NVIDIA's GRID driver @VERSION@: the same options, as far as AWS's own images use them.
set -eu
extract_only=no target=NVIDIA-Linux-x86_64-@VERSION@-grid-aws
payload() {
    tail -n +@LINES@ "$0"
}
die() {
    echo "$*" >&2
    exit 1
}
while [ $# -gt 0 ]; do
    case "$1" in
        --check)
            payload | gzip -t || die "$0: the archive is damaged"
            echo "$0: the archive is intact"
            exit 0
            ;;
        -x | --extract-only) extract_only=yes ;;
        --target)
            shift
            target=$1
            ;;
        *) die "$0: this replica has no option $1" ;;
    esac
    shift
done
[ "$extract_only" = yes ] || die "$0: this replica extracts alone: run it with --extract-only"
[ ! -e "$target" ] || die "$0: $target is there already"
mkdir -p "$target"
echo "Creating directory $target"
payload | tar -xz -C "$target"
exit 0
