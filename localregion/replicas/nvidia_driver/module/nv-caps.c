// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica: device numbers of the driver's capabilities, and /proc/driver/nvidia/capabilities/mig/{config,monitor},
 * which say what nodes of them are to be created: /dev/nvidia-caps/nvidia-cap1 for root alone, nvidia-cap2 for all to read.
 * Source: NVIDIA's MIG user guide, "Device Nodes and Capabilities" (2026-11-25). No node of them is created here.
 * /proc/driver/nvidia-caps lists the numbers of all (nv-minors.c), also of instances, which have no file of their own here.
 * IMEX channels have a device number of their own; the module creates channel 0 where NVreg_CreateImexChannel0 is 1.
 * Source: https://docs.nvidia.com/multi-node-nvlink-systems/imex-guide/imexchannels.html (2026-11-27)
 */
#include <linux/fs.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>

#include "nv.h"

#define NV_CAP_MINORS 3

#define NV_IMEX_CHANNELS 2048
#define NV_IMEX_NAME "nvidia-caps-imex-channels"

static struct proc_dir_entry *nv_caps_proc;
static int nv_caps_major, nv_imex_major;
static struct class *nv_imex_class;

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

static int nv_imex_open(struct inode *inode, struct file *file)
{
	return iminor(inode) < NV_IMEX_CHANNELS ? 0 : -ENXIO;
}

static const struct file_operations nv_imex_fops = {
	.owner = THIS_MODULE,
	.open = nv_imex_open,
};

static int nv_imex_init(void)
{
	struct device *node;

	nv_imex_major = __register_chrdev(0, 0, NV_IMEX_CHANNELS, NV_IMEX_NAME, &nv_imex_fops);
	if (nv_imex_major < 0 || !nv_create_imex_channel0)
		return min(nv_imex_major, 0);
	nv_imex_class = nv_class_create(NV_IMEX_NAME);
	if (IS_ERR(nv_imex_class)) {
		int error = PTR_ERR(nv_imex_class);

		nv_imex_class = NULL;
		return error;
	}
	node = device_create(nv_imex_class, NULL, MKDEV(nv_imex_major, 0), NULL, NV_IMEX_NAME "!channel0");
	return PTR_ERR_OR_ZERO(node);
}

static void nv_imex_exit(void)
{
	if (nv_imex_class) {
		device_destroy(nv_imex_class, MKDEV(nv_imex_major, 0));
		class_destroy(nv_imex_class);
	}
	if (nv_imex_major > 0)
		__unregister_chrdev(nv_imex_major, 0, NV_IMEX_CHANNELS, NV_IMEX_NAME);
	nv_imex_class = NULL;
	nv_imex_major = 0;
}

int nv_caps_init(struct proc_dir_entry *proc)
{
	struct proc_dir_entry *capabilities = proc_mkdir("capabilities", proc), *mig;

	mig = capabilities ? proc_mkdir("mig", capabilities) : NULL;
	if (!mig || !proc_create_single_data("config", 0400, mig, nv_caps_show, (void *)1) ||
	    !proc_create_single_data("monitor", 0444, mig, nv_caps_show, (void *)2))
		return -ENOMEM;
	nv_caps_proc = proc_mkdir("driver/nvidia-caps", NULL);
	if (!nv_caps_proc || !proc_create_single("mig-minors", 0444, nv_caps_proc, nv_mig_minors_show) ||
	    !proc_create_single("nvlink-minors", 0444, nv_caps_proc, nv_nvlink_minors_show) ||
	    !proc_create_single("sys-minors", 0444, nv_caps_proc, nv_sys_minors_show))
		return -ENOMEM;
	nv_caps_major = __register_chrdev(0, 0, NV_CAP_MINORS, "nvidia-caps", &nv_caps_fops);
	return nv_caps_major < 0 ? nv_caps_major : nv_imex_init();
}

void nv_caps_exit(void)
{
	nv_imex_exit();
	proc_remove(nv_caps_proc);
	nv_caps_proc = NULL;
	if (nv_caps_major > 0)
		__unregister_chrdev(nv_caps_major, 0, NV_CAP_MINORS, "nvidia-caps");
	nv_caps_major = 0;
}
