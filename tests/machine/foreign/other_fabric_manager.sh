#!/bin/sh
# A fabric manager that was pinned once and stayed behind its driver, which was upgraded since.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends "linux-headers-$(uname -r)" dkms
apt-get install -y --no-install-recommends \
  nvidia-kernel-open-dkms=580.178.04-1 nvidia-driver-cuda=580.178.04-1 nvidia-smi=580.178.04-1 \
  nvidia-persistenced=580.178.04-1 nvidia-fabricmanager=580.159.03-1
apt-mark hold nvidia-kernel-open-dkms nvidia-driver-cuda nvidia-smi nvidia-persistenced nvidia-fabricmanager
systemctl enable nvidia-fabricmanager.service
