// SPDX-License-Identifier: GPL-2.0
/*
 * gpu-ami replica of nvidia-fs: needs the symbols of NVIDIA's open module, registers its devices, and says its version and the
 * sizes with which it was compiled. It transfers nothing.
 */
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/version.h>

#ifndef MAX_PEER_DEVS
#define MAX_PEER_DEVS 64
#define MAX_PCI_DEPTH 16
#endif
#define NVFS_DEVICES 16

struct nvidia_p2p_page_table;
int nvidia_p2p_get_pages(u64 token, u32 space, u64 address, u64 length, struct nvidia_p2p_page_table **table,
			 void (*callback)(void *data), void *data);
int nvidia_p2p_put_pages(u64 token, u32 space, u64 address, struct nvidia_p2p_page_table *table);

/* What a transfer would call: the module depends on the driver by these names. */
static void *const nvfs_needs[] = { nvidia_p2p_get_pages, nvidia_p2p_put_pages };

static struct class *nvfs_class;
static struct proc_dir_entry *nvfs_proc;
static int nvfs_major;

static const struct file_operations nvfs_fops = {
	.owner = THIS_MODULE,
	.open = nonseekable_open,
};

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static char *nvfs_devnode(const struct device *device, umode_t *mode)
#else
static char *nvfs_devnode(struct device *device, umode_t *mode)
#endif
{
	if (mode)
		*mode = 0666;
	return NULL;
}

/* Major and minor number alone, as the original. */
static int nvfs_version_show(struct seq_file *file, void *data)
{
	unsigned int major = 0, minor = 0;

	if (sscanf(NVFS_VERSION_STRING, "%u.%u", &major, &minor) == 2)
		seq_printf(file, "version: %u.%u\n", major, minor);
	return 0;
}

static void nvfs_remove(int devices)
{
	while (devices--)
		device_destroy(nvfs_class, MKDEV(nvfs_major, devices));
	class_destroy(nvfs_class);
	unregister_chrdev(nvfs_major, "nvidia-fs");
}

static int __init nvfs_init(void)
{
	int i;

	if (!nvfs_needs[0] || !nvfs_needs[1])
		return -ENOSYS;
	nvfs_major = register_chrdev(0, "nvidia-fs", &nvfs_fops);
	if (nvfs_major < 0)
		return nvfs_major;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	nvfs_class = class_create("nvidia-fs-class");
#else
	nvfs_class = class_create(THIS_MODULE, "nvidia-fs-class");
#endif
	if (IS_ERR(nvfs_class)) {
		unregister_chrdev(nvfs_major, "nvidia-fs");
		return PTR_ERR(nvfs_class);
	}
	nvfs_class->devnode = nvfs_devnode;
	for (i = 0; i < NVFS_DEVICES; i++) {
		struct device *device = device_create(nvfs_class, NULL, MKDEV(nvfs_major, i), NULL, "nvidia-fs%d", i);

		if (IS_ERR(device)) {
			nvfs_remove(i);
			return PTR_ERR(device);
		}
	}
	nvfs_proc = proc_mkdir("driver/nvidia-fs", NULL);
	if (nvfs_proc)
		proc_create_single("version", 0444, nvfs_proc, nvfs_version_show);
	pr_info("nvidia_fs: max_peer_devs : %u and max_pci_depth : %u\n", MAX_PEER_DEVS, MAX_PCI_DEPTH);
	return 0;
}

static void __exit nvfs_exit(void)
{
	if (nvfs_proc)
		proc_remove(nvfs_proc);
	nvfs_remove(NVFS_DEVICES);
}

module_init(nvfs_init);
module_exit(nvfs_exit);

MODULE_LICENSE("GPL v2");
MODULE_DESCRIPTION("gpu-ami replica of NVIDIA GPUDirect Storage");
MODULE_VERSION(NVFS_VERSION_STRING);
