// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica: NVSwitches. The local region says in the machine's SMBIOS (OEM string "gpu-ami:nvswitch=<number>") how
 * many there are; each gets a device node and /proc/driver/nvidia-nvswitch/devices/<dddd:bb:dd.f>/information, as the
 * driver makes them (kernel-open/nvidia/procfs_nvswitch.c). They are no PCI devices here: the addresses are names.
 */
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/dmi.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/string.h>

#include "nv.h"

#define NV_NVSWITCH_OEM "gpu-ami:nvswitch="
#define NV_NVSWITCH_MAX 32
#define NV_NVSWITCH_CTL 255
#define NV_NVSWITCH_BUS 0x05

static struct proc_dir_entry *nv_nvswitch_proc;
static struct class *nv_nvswitch_class;
static unsigned int nv_nvswitch_count;
static int nv_nvswitch_major;

static unsigned int nv_nvswitch_promised(void)
{
	const struct dmi_device *string = NULL;
	unsigned int count;

	while ((string = dmi_find_device(DMI_DEV_TYPE_OEM_STRING, NULL, string)))
		if (!strncmp(string->name, NV_NVSWITCH_OEM, strlen(NV_NVSWITCH_OEM)) &&
		    !kstrtouint(string->name + strlen(NV_NVSWITCH_OEM), 10, &count))
			return min_t(unsigned int, count, NV_NVSWITCH_MAX);
	return 0;
}

static int nv_nvswitch_open(struct inode *inode, struct file *file)
{
	return iminor(inode) == NV_NVSWITCH_CTL || iminor(inode) < nv_nvswitch_count ? 0 : -ENODEV;
}

static const struct file_operations nv_nvswitch_fops = {
	.owner = THIS_MODULE,
	.open = nv_nvswitch_open,
};

static int nv_nvswitch_permissions_show(struct seq_file *out, void *unused)
{
	seq_puts(out, "DeviceFileMode: 438\n");
	return 0;
}

static int nv_nvswitch_information_show(struct seq_file *out, void *unused)
{
	seq_puts(out, "BIOS Version: N/A\n");
	return 0;
}

static int nv_nvswitch_procfs_add(struct proc_dir_entry *devices, unsigned int index)
{
	struct proc_dir_entry *device;
	char name[16];

	snprintf(name, sizeof(name), "0000:%02x:00.0", NV_NVSWITCH_BUS + index);
	device = proc_mkdir(name, devices);
	if (!device || !proc_create_single("information", 0444, device, nv_nvswitch_information_show))
		return -ENOMEM;
	return 0;
}

static int nv_nvswitch_procfs_init(void)
{
	struct proc_dir_entry *devices;
	unsigned int index;
	int error = 0;

	nv_nvswitch_proc = proc_mkdir("driver/nvidia-nvswitch", NULL);
	if (!nv_nvswitch_proc || !proc_create_single("permissions", 0444, nv_nvswitch_proc, nv_nvswitch_permissions_show))
		return -ENOMEM;
	devices = proc_mkdir("devices", nv_nvswitch_proc);
	if (!devices)
		return -ENOMEM;
	for (index = 0; index < nv_nvswitch_count && !error; index++)
		error = nv_nvswitch_procfs_add(devices, index);
	return error;
}

static void nv_nvswitch_nodes_remove(void)
{
	unsigned int index;

	for (index = 0; index < nv_nvswitch_count; index++)
		device_destroy(nv_nvswitch_class, MKDEV(nv_nvswitch_major, index));
	device_destroy(nv_nvswitch_class, MKDEV(nv_nvswitch_major, NV_NVSWITCH_CTL));
}

static int nv_nvswitch_nodes_add(void)
{
	struct device *node;
	unsigned int index;

	node = device_create(nv_nvswitch_class, NULL, MKDEV(nv_nvswitch_major, NV_NVSWITCH_CTL), NULL,
			     "nvidia-nvswitchctl");
	for (index = 0; index < nv_nvswitch_count && !IS_ERR(node); index++)
		node = device_create(nv_nvswitch_class, NULL, MKDEV(nv_nvswitch_major, index), NULL,
				     "nvidia-nvswitch%u", index);
	if (!IS_ERR(node))
		return 0;
	nv_nvswitch_nodes_remove();
	return PTR_ERR(node);
}

static int nv_nvswitch_devices_init(void)
{
	int error;

	nv_nvswitch_class = nv_class_create("nvidia-nvswitch");
	if (IS_ERR(nv_nvswitch_class))
		return PTR_ERR(nv_nvswitch_class);
	nv_nvswitch_major = __register_chrdev(0, 0, 256, "nvidia-nvswitch", &nv_nvswitch_fops);
	error = min(nv_nvswitch_major, 0);
	if (error)
		goto class;
	error = nv_nvswitch_nodes_add();
	if (!error)
		return 0;
	__unregister_chrdev(nv_nvswitch_major, 0, 256, "nvidia-nvswitch");
class:
	class_destroy(nv_nvswitch_class);
	return error;
}

/* Nothing is created on a machine without NVSwitches. */
int nv_nvswitch_init(void)
{
	int error;

	nv_nvswitch_count = nv_nvswitch_promised();
	if (!nv_nvswitch_count)
		return 0;
	error = nv_nvswitch_procfs_init();
	if (!error)
		error = nv_nvswitch_devices_init();
	if (!error)
		return 0;
	proc_remove(nv_nvswitch_proc);
	nv_nvswitch_count = 0;
	return error;
}

void nv_nvswitch_exit(void)
{
	if (!nv_nvswitch_count)
		return;
	nv_nvswitch_nodes_remove();
	__unregister_chrdev(nv_nvswitch_major, 0, 256, "nvidia-nvswitch");
	class_destroy(nv_nvswitch_class);
	proc_remove(nv_nvswitch_proc);
}
