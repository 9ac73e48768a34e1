#!/bin/sh
# As amazon-eks-ami's templates/al2023/provisioners/cleanup.sh does, and the key with which DKMS signed the modules.
set -eu
apt-get clean
rm -rf /etc/machine-id /etc/ssh/ssh_host* /root/.ssh/authorized_keys /var/lib/dkms/mok.* /var/lib/apt/lists/* \
  /var/lib/cloud/data /var/lib/cloud/instance /var/lib/cloud/instances /var/lib/cloud/sem \
  /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/log/cloud-init-output.log /var/log/cloud-init.log
touch /etc/machine-id
