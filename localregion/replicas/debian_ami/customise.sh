#!/bin/sh
# Runs once, on the host, with the finished file tree: customise.sh TREE SUITE ROOT_UUID MASKED_UNIT...
set -eu
tree=$1
suite=$2
uuid=$3
shift 3

for unit in "$@"; do
    ln -sf /dev/null "$tree/etc/systemd/system/$unit"
done
chroot "$tree" systemctl --quiet enable systemd-networkd.service ssh.service chrony.service

# systemd starts every generator at boot and at each daemon-reload, some of 0.1 s to 0.6 s under emulation. These look for what
# a machine of the region does not have.
mkdir -p "$tree/etc/systemd/system-generators"
for generator in systemd-cryptsetup-generator systemd-debug-generator systemd-gpt-auto-generator systemd-hibernate-resume-generator \
    systemd-integritysetup-generator systemd-rc-local-generator systemd-run-generator systemd-system-update-generator \
    systemd-veritysetup-generator; do
    ln -s /dev/null "$tree/etc/systemd/system-generators/$generator"
done

# grub-mkconfig runs grub-probe on the device of /, which a file tree does not have: for this run, grub-probe is replaced by
# a script that prints what it will print on the booted disk.
probe=$tree/usr/sbin/grub-probe
mv "$probe" "$probe.real"
cat >"$probe" <<PROBE
#!/bin/sh
case "\$*" in
    *target=device*) echo /dev/vda1 ;;
    *target=fs_uuid*) echo $uuid ;;
    *target=fs_label*) echo root ;;
    *target=fs*) echo ext2 ;;
    *target=partuuid*) echo 67707561-01 ;;
    *target=partmap*) echo msdos ;;
    *target=abstraction*) ;;
    *target=compatibility_hint*) echo hd0,msdos1 ;;
    *target=hints_string*) echo "--hint-bios=hd0,msdos1" ;;
esac
PROBE
chmod 755 "$probe"
mkdir -p "$tree/boot/grub"
chroot "$tree" grub-mkconfig -o /boot/grub/grub.cfg
mv "$probe.real" "$probe"

# The first boot creates these.
rm -f "$tree"/etc/ssh/ssh_host_*
: >"$tree/etc/machine-id"
rm -f "$tree/var/lib/dbus/machine-id"
rm -f "$tree/etc/resolv.conf"
: >"$tree/etc/resolv.conf"
echo localhost >"$tree/etc/hostname"
printf '127.0.0.1 localhost\n' >"$tree/etc/hosts"
# The local region's mirror instead of Debian's archive, with the few packages that roles install from it; their
# dependencies are in the image. trusted: the mirror's key is created with each state directory, after this image, and
# a machine can reach no other server.
rm -f "$tree"/etc/apt/sources.list.d/* "$tree/etc/apt/sources.list"
archive=http://169.254.169.252/deb.debian.org/debian
if [ "$suite" = bookworm ]; then # emulated distributions replace this file
    echo "deb [trusted=yes] $archive $suite main" >"$tree/etc/apt/sources.list"
else
    printf '%s\n' "Types: deb" "URIs: $archive" "Suites: $suite" "Components: main" "Trusted: yes" >"$tree/etc/apt/sources.list.d/debian.sources"
fi
