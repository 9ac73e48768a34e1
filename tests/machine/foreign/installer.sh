#!/bin/sh
# As NVIDIA's .run installer leaves a system without DKMS: module, libraries and tools of no package, and its log. The
# files are those of NVIDIA's packages, unpacked. Nothing follows the kernel's log, and nothing configures the agent.
set -eu
VERSION=580.178.04
KERNEL=$(uname -r)

folder=$(mktemp -d)
cd "$folder"
for name in nvidia-kernel-open-dkms nvidia-driver-cuda nvidia-smi nvidia-persistenced; do
  apt-get download -q -o APT::Sandbox::User=root "$name=$VERSION-1"
done
for package in *.deb; do dpkg-deb --extract "$package" tree; done
make -C "tree/usr/src/nvidia-$VERSION" KERNEL_UNAME="$KERNEL" modules
install -D -m 644 -t "/lib/modules/$KERNEL/kernel/drivers/video" "tree/usr/src/nvidia-$VERSION"/*.ko
depmod "$KERNEL"
cp -a tree/usr/bin /usr/
cp -a tree/usr/lib/nvidia-smi tree/usr/lib/x86_64-linux-gnu /usr/lib/
ldconfig
printf 'nvidia-installer log file %s\ndriver version: %s\n' "'/var/log/nvidia-installer.log'" "$VERSION" > /var/log/nvidia-installer.log
# The repository was the installer's way into this build alone.
rm -r /etc/apt/sources.list.d/cuda-debian12.list /usr/share/keyrings/cuda-archive-keyring.asc "$folder"

install -d /opt/team/bin
cat > /opt/team/bin/gpu-start <<'SCRIPT'
#!/bin/sh
# NVIDIA's installation guide, "Device node verification".
set -e
modprobe nvidia
modprobe nvidia-uvm
major=$(awk '$2 == "nvidia-uvm" { print $1 }' /proc/devices)
[ -e /dev/nvidia-uvm ] || mknod -m 666 /dev/nvidia-uvm c "$major" 0
[ -e /dev/nvidia-uvm-tools ] || mknod -m 666 /dev/nvidia-uvm-tools c "$major" 1
nvidia-smi -pm 1
SCRIPT
chmod 755 /opt/team/bin/gpu-start
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
systemctl enable gpu-start.service
