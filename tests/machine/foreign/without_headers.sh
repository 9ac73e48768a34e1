#!/bin/sh
# The kernel's headers are not there when the driver is installed: DKMS builds no module, and apt succeeds all the same.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get purge -y 'linux-headers-*'
apt-get install -y --no-install-recommends \
  nvidia-kernel-open-dkms=580.178.04-1 nvidia-driver-cuda=580.178.04-1 nvidia-smi=580.178.04-1 \
  nvidia-persistenced=580.178.04-1
apt-mark hold nvidia-kernel-open-dkms nvidia-driver-cuda nvidia-smi nvidia-persistenced
