#!/bin/sh
# Debian's own driver, and metrics by a part in amazon-cloudwatch-agent.d. MIRROR: where Debian's archive is found.
set -eu
export DEBIAN_FRONTEND=noninteractive
SIGNED=/usr/share/keyrings/debian-archive-keyring.gpg

for suite in debian-security:bookworm-security debian:bookworm; do
  echo "deb [signed-by=$SIGNED] $MIRROR/archive/deb.debian.org/${suite%:*}/ ${suite#*:} contrib non-free non-free-firmware"
done > /etc/apt/sources.list.d/non-free.list
apt-get update
apt-get install -y --no-install-recommends "linux-headers-$(uname -r)" dkms
apt-get install -y --no-install-recommends nvidia-kernel-dkms nvidia-smi libcuda1 nvidia-persistenced
cat > /opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d/file_metrics.json <<'JSON'
{
  "metrics": {
    "endpoint_override": "http://169.254.169.251",
    "metrics_collected": {"nvidia_gpu": {"measurement": ["utilization_gpu", "memory_used"]}}
  }
}
JSON
