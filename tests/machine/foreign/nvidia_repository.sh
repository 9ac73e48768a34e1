#!/bin/sh
# NVIDIA's repository, as its installation guide says. MIRROR: where the vendors' hosts are found.
set -eu
export DEBIAN_FRONTEND=noninteractive
REPOSITORY=$MIRROR/developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64

fetch() { python3 -c 'import sys,urllib.request as u; u.urlretrieve(sys.argv[1], sys.argv[2])' "$1" "$2"; }
fetch "$REPOSITORY/3bf863cc.pub" /usr/share/keyrings/cuda-archive-keyring.asc
echo "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.asc] $REPOSITORY/ ./" > /etc/apt/sources.list.d/cuda-debian12.list
apt-get update
printf 'blacklist nouveau\noptions nouveau modeset=0\n' > /etc/modprobe.d/blacklist-nouveau.conf
