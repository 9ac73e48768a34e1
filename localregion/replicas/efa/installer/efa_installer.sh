#!/bin/sh
# gpu-ami replica of the EFA installer: same options, same folders, same record. It installs the packages beside it with the
# system's package manager. Not there: debug packages, the choice of an Open MPI, the test of the device.
set -eu
RECORD=/opt/amazon/efa_installed_packages
debug=no uninstall=no yes=no limits=yes module=yes minimal=no

usage() {
    cat <<EOF
usage: $(basename "$0") [options]

Options:
 -d, --debug-packages   Install debug packages
 -u, --uninstall        Uninstall EFA packages
 -y, --yes              Run installer without prompting for confirmation
 -n, --no-verify        Skip EFA device verification and test
 -l, --skip-limit-conf  Skip EFA limit configuration
 -k, --skip-kmod        Skip EFA kmod installation
 -g, --enable-gdr       Enable GPUDirect RDMA support (it is by default)
 -m, --minimal          Only install kernel module and rdma-core, do not install libfabric, mpi, or the NCCL plugin
EOF
}

die() {
    echo "Error: $*" >&2
    exit 1
}

if [ ! -e env.sh ]; then
    die "Please cd into the installer directory."
fi
. ./env.sh
while [ $# -gt 0 ]; do
    case "$1" in
        -d | --debug-packages) debug=yes ;;
        -u | --uninstall) uninstall=yes ;;
        -y | --yes) yes=yes ;;
        -l | --skip-limit-conf) limits=no ;;
        -k | --skip-kmod) module=no ;;
        -m | --minimal) minimal=yes ;;
        -n | --no-verify | -g | --enable-gdr) ;;
        *)
            usage
            exit 1
            ;;
    esac
    shift
done

echo "= Starting Amazon Elastic Fabric Adapter Installation Script ="
echo "= EFA Installer Version: $EFA_INSTALLER_VERSION ="
echo
[ "$(id -u)" = 0 ] || die "you must be root to run this script"
[ "$yes" = yes ] || die "this replica never asks: run it with --yes"
[ "$debug" = no ] || die "this replica has no debug packages"

. /etc/os-release
case "$ID-$VERSION_ID" in
    debian-*) folder=DEBS/DEBIAN${VERSION_ID} suffix=deb ;;
    ubuntu-*) folder=DEBS/UBUNTU$(echo "$VERSION_ID" | tr -d .) suffix=deb ;;
    amzn-2) folder=RPMS/ALINUX2 suffix=rpm ;;
    amzn-*) folder=RPMS/ALINUX${VERSION_ID%%.*} suffix=rpm ;;
    *) die "Unsupported operating system $ID $VERSION_ID." ;;
esac
folder=$folder/$(uname -m)

wanted() { # package file name
    case "$1" in
        efa-config*) [ "$limits" = yes ] ;;
        efa-profile* | libfabric* | openmpi* | libnccl-ofi*) [ "$minimal" = no ] ;;
        efa-nv-peermem*) [ "$module" = yes ] ;;
        efa[-_][0-9]*) [ "$module" = yes ] ;;
        *) true ;;
    esac
}

uninstall() {
    [ -f "$RECORD" ] || die "EFA is not installed, exiting."
    packages=$(grep -v '^#' "$RECORD")
    echo "== Uninstalling EFA packages =="
    if [ "$suffix" = deb ]; then
        names=$(for package in $packages; do echo "${package%%_*}"; done)
        DEBIAN_FRONTEND=noninteractive apt-get remove -y --allow-change-held-packages $names
    else
        dnf remove -y $packages
    fi
    rm -f "$RECORD"
    echo "EFA uninstall complete."
}

install() {
    [ -d "$folder" ] || die "package directory $folder does not exist."
    files= record=
    for file in "$folder"/*."$suffix" "$folder"/rdma-core/*."$suffix" "$folder"/efa-driver/*."$suffix"; do
        [ -f "$file" ] || continue
        grep -Fxq "$file" package_list.txt || die "unknown package found: $file"
        package=$(basename "$file" ".$suffix")
        if ! wanted "$package"; then
            echo "skipping $package because of the options"
            continue
        fi
        files="$files ./$file" record="$record$package "
    done
    echo "== Installing EFA packages =="
    if [ "$suffix" = deb ]; then
        apt-get update -q >/dev/null 2>&1 || echo "the index of the system's archive was not read" # none where a base image is made
        DEBIAN_FRONTEND=noninteractive apt-get install -y --allow-downgrades --allow-change-held-packages $files
    else
        dnf install -y $files
    fi
    mkdir -p "$(dirname "$RECORD")"
    printf '# EFA installer version: %s\n# Debug packages installed: no\n# Packages installed:\n%s\n' \
        "$EFA_INSTALLER_VERSION" "${record% }" >"$RECORD"
    ldconfig
    if [ "$module" = yes ]; then
        modprobe ib_core || true
        modprobe ib_uverbs || true
        modprobe efa || true
    fi
    cat <<EOF
===================================================
EFA installation complete.
- Please logout/login to complete the installation.
===================================================
EOF
}

if [ "$uninstall" = yes ]; then uninstall; else install; fi
