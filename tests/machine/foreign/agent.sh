#!/bin/sh
# The CloudWatch agent's package. MIRROR: where the vendors' hosts are found.
set -eu
export DEBIAN_FRONTEND=noninteractive
AGENT=$MIRROR/amazoncloudwatch-agent.s3.amazonaws.com/debian/amd64/1.300071.0b1720/amazon-cloudwatch-agent.deb

python3 -c 'import sys,urllib.request as u; u.urlretrieve(sys.argv[1], sys.argv[2])' "$AGENT" /tmp/amazon-cloudwatch-agent.deb
dpkg -i /tmp/amazon-cloudwatch-agent.deb
rm /tmp/amazon-cloudwatch-agent.deb
systemctl enable amazon-cloudwatch-agent.service
