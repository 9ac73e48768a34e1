#!/bin/sh
# What a team's pipeline runs on the builder: driver and CUDA by the vendors' packages, the team's own units.
# KIND: careful, or careless: no holds, a watcher that greps dmesg once at boot and so captures nothing later, nothing
# that loads nvidia-uvm.
set -eu
export DEBIAN_FRONTEND=noninteractive
apt-get install -y --no-install-recommends "linux-headers-$(uname -r)" dkms
apt-get install -y --no-install-recommends \
  nvidia-kernel-open-dkms=580.178.04-1 nvidia-driver-cuda=580.178.04-1 nvidia-smi=580.178.04-1 \
  nvidia-persistenced=580.178.04-1 cuda-toolkit-13-0
update-initramfs -u -k all

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
    "metrics_collected": {
      "nvidia_gpu": {
        "measurement": ["utilization_gpu", "memory_total", "memory_used", "memory_free", "temperature_gpu", "power_draw"]
      }
    }
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
systemctl enable gpu-xid-watch.service gpu-start.service
