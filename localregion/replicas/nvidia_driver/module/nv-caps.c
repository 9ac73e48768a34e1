// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica: device numbers of the driver's capabilities, and /proc/driver/nvidia/capabilities/mig/{config,monitor},
 * which say what nodes of them are to be created: /dev/nvidia-caps/nvidia-cap1 for root alone, nvidia-cap2 for all to read.
 * Source: NVIDIA's MIG user guide, "Device Nodes and Capabilities" (2026-11-25). No node is created here.
 */
#include <linux/fs.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "nv.h"

#define NV_CAP_MINORS 3

static int nv_caps_major;

static int nv_caps_open(struct inode *inode, struct file *file)
{
	return iminor(inode) && iminor(inode) < NV_CAP_MINORS ? 0 : -ENXIO;
}

static const struct file_operations nv_caps_fops = {
	.owner = THIS_MODULE,
	.open = nv_caps_open,
};

static int nv_caps_show(struct seq_file *out, void *unused)
{
	unsigned long minor = (unsigned long)out->private;

	seq_printf(out, "DeviceFileMinor: %lu\nDeviceFileMode: %d\nDeviceFileModify: 1\n", minor, minor == 1 ? 0400 : 0444);
	return 0;
}

int nv_caps_init(struct proc_dir_entry *proc)
{
	struct proc_dir_entry *capabilities = proc_mkdir("capabilities", proc), *mig;

	mig = capabilities ? proc_mkdir("mig", capabilities) : NULL;
	if (!mig || !proc_create_single_data("config", 0400, mig, nv_caps_show, (void *)1) ||
	    !proc_create_single_data("monitor", 0444, mig, nv_caps_show, (void *)2))
		return -ENOMEM;
	nv_caps_major = __register_chrdev(0, 0, NV_CAP_MINORS, "nvidia-caps", &nv_caps_fops);
	return min(nv_caps_major, 0);
}

void nv_caps_exit(void)
{
	if (nv_caps_major > 0)
		__unregister_chrdev(nv_caps_major, 0, NV_CAP_MINORS, "nvidia-caps");
	nv_caps_major = 0;
}
