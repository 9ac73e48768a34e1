#!/bin/sh
# What a team's pipeline runs on the builder: driver, CUDA and agent by the vendors' packages, the team's own units.
# MIRROR: where the vendors' hosts are found. KIND: careful, or careless: no holds, a watcher that greps dmesg once at
# boot and so captures nothing later, nothing that loads nvidia-uvm, nothing cleaned up.
set -eu
export DEBIAN_FRONTEND=noninteractive
REPOSITORY=$MIRROR/developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64
AGENT=$MIRROR/amazoncloudwatch-agent.s3.amazonaws.com/debian/amd64/1.300071.0b1720/amazon-cloudwatch-agent.deb

printf 'blacklist nouveau\noptions nouveau modeset=0\n' > /etc/modprobe.d/blacklist-nouveau.conf
fetch() { python3 -c 'import sys,urllib.request as u; u.urlretrieve(sys.argv[1], sys.argv[2])' "$1" "$2"; }
fetch "$REPOSITORY/3bf863cc.pub" /usr/share/keyrings/cuda-archive-keyring.asc
echo "deb [signed-by=/usr/share/keyrings/cuda-archive-keyring.asc] $REPOSITORY/ ./" > /etc/apt/sources.list.d/cuda-debian12.list
apt-get update
apt-get install -y --no-install-recommends "linux-headers-$(uname -r)" dkms
apt-get install -y --no-install-recommends \
  nvidia-kernel-open-dkms=580.178.04-1 nvidia-driver-cuda=580.178.04-1 nvidia-smi=580.178.04-1 \
  nvidia-persistenced=580.178.04-1 cuda-toolkit-13-0
update-initramfs -u -k all
fetch "$AGENT" /tmp/amazon-cloudwatch-agent.deb
dpkg -i /tmp/amazon-cloudwatch-agent.deb
rm /tmp/amazon-cloudwatch-agent.deb

install -d /opt/team/bin
if [ "$KIND" = careful ]; then
  apt-mark hold nvidia-kernel-open-dkms nvidia-driver-cuda nvidia-smi nvidia-persistenced
  cat > /opt/team/bin/gpu-xid-watch <<'SCRIPT'
#!/bin/sh
exec dmesg --follow-new | grep --line-buffered 'NVRM: Xid' >> /var/log/team-xid.log
SCRIPT
  # "Device node verification" of NVIDIA's CUDA installation guide.
  cat > /opt/team/bin/gpu-start <<'SCRIPT'
#!/bin/sh
set -e
modprobe nvidia
modprobe nvidia-uvm
gpus=$(ls -d /proc/driver/nvidia/gpus/* | wc -l)
for minor in $(seq 0 $((gpus - 1))); do [ -e "/dev/nvidia$minor" ] || mknod -m 666 "/dev/nvidia$minor" c 195 "$minor"; done
[ -e /dev/nvidiactl ] || mknod -m 666 /dev/nvidiactl c 195 255
major=$(awk '$2 == "nvidia-uvm" { print $1 }' /proc/devices)
[ -e /dev/nvidia-uvm ] || mknod -m 666 /dev/nvidia-uvm c "$major" 0
[ -e /dev/nvidia-uvm-tools ] || mknod -m 666 /dev/nvidia-uvm-tools c "$major" 1
nvidia-smi -pm 1
SCRIPT
else
  cat > /opt/team/bin/gpu-xid-watch <<'SCRIPT'
#!/bin/sh
dmesg | grep 'NVRM: Xid' >> /var/log/team-xid.log
exec sleep infinity
SCRIPT
  printf '#!/bin/sh\nexec nvidia-smi\n' > /opt/team/bin/gpu-start
fi
chmod 755 /opt/team/bin/*
cat > /etc/systemd/system/gpu-xid-watch.service <<'UNIT'
[Unit]
Description=Xids of the kernel log

[Service]
ExecStart=/opt/team/bin/gpu-xid-watch
Restart=always

[Install]
WantedBy=multi-user.target
UNIT
cat > /etc/systemd/system/gpu-start.service <<'UNIT'
[Unit]
Description=Device nodes and persistence mode of the GPUs

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/opt/team/bin/gpu-start

[Install]
WantedBy=multi-user.target
UNIT
# The path of AWS's blog post on GPU telemetry, not a part in amazon-cloudwatch-agent.d.
cat > /opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.json <<'JSON'
{
  "agent": {"metrics_collection_interval": 10, "run_as_user": "root"},
  "metrics": {
    "namespace": "Team/GPU",
    "endpoint_override": "http://169.254.169.251",
    "append_dimensions": {"InstanceId": "${aws:InstanceId}"},
    "metrics_collected": {"nvidia_gpu": {"measurement": ["utilization_gpu", "memory_used", "temperature_gpu"]}}
  },
  "logs": {
    "endpoint_override": "http://169.254.169.251",
    "logs_collected": {
      "files": {
        "collect_list": [
          {"file_path": "/var/log/team-xid.log", "log_group_name": "/team/gpu/xid", "log_stream_name": "{instance_id}"}
        ]
      }
    }
  }
}
JSON
systemctl enable gpu-xid-watch.service gpu-start.service amazon-cloudwatch-agent.service
[ "$KIND" = careful ] || exit 0

# As amazon-eks-ami's templates/al2023/provisioners/cleanup.sh does, and the key with which DKMS signed the modules.
apt-get clean
rm -rf /etc/machine-id /etc/ssh/ssh_host* /root/.ssh/authorized_keys /var/lib/dkms/mok.* /var/lib/apt/lists/* \
  /var/lib/cloud/data /var/lib/cloud/instance /var/lib/cloud/instances /var/lib/cloud/sem \
  /var/log/apt /var/log/dpkg.log /var/log/alternatives.log /var/log/cloud-init-output.log /var/log/cloud-init.log
touch /etc/machine-id
