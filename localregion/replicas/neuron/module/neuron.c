// SPDX-License-Identifier: GPL-2.0
/*
 * gpu-ami replica of AWS's Neuron driver: as many devices as the machine's firmware says (SMBIOS type 11,
 * "gpu-ami:neuron=16"), each /dev/neuron<N> and /sys/devices/virtual/neuron_device/neuron<N>. They compute nothing.
 */
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/dmi.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/string.h>
#include <linux/version.h>

#define NEURON_OEM_STRING "gpu-ami:neuron="
#define NEURON_MAXIMUM 64

static struct class *neuron_class;
static struct cdev neuron_cdev;
static dev_t neuron_first;
static unsigned int neuron_count;

/* How many devices the firmware names; 0 where it names none. */
static unsigned int neuron_promised(void)
{
	const struct dmi_device *found = NULL;
	unsigned int count;

	while ((found = dmi_find_device(DMI_DEV_TYPE_OEM_STRING, NULL, found))) {
		if (strncmp(found->name, NEURON_OEM_STRING, strlen(NEURON_OEM_STRING)))
			continue;
		if (!kstrtouint(found->name + strlen(NEURON_OEM_STRING), 10, &count) && count <= NEURON_MAXIMUM)
			return count;
		pr_err("neuron: the firmware says \"%s\", expected a number up to %u\n", found->name, NEURON_MAXIMUM);
	}
	return 0;
}

static const struct file_operations neuron_fops = {
	.owner = THIS_MODULE,
	.open = nonseekable_open,
};

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static char *neuron_devnode(const struct device *dev, umode_t *mode)
#else
static char *neuron_devnode(struct device *dev, umode_t *mode)
#endif
{
	if (mode)
		*mode = 0666;
	return NULL;
}

static void neuron_remove_all(void)
{
	while (neuron_count)
		device_destroy(neuron_class, neuron_first + --neuron_count);
	cdev_del(&neuron_cdev);
}

static int neuron_add_all(unsigned int promised)
{
	struct device *node;
	int error;

	cdev_init(&neuron_cdev, &neuron_fops);
	neuron_cdev.owner = THIS_MODULE;
	error = cdev_add(&neuron_cdev, neuron_first, NEURON_MAXIMUM);
	if (error)
		return error;
	while (neuron_count < promised) {
		node = device_create(neuron_class, NULL, neuron_first + neuron_count, NULL, "neuron%u", neuron_count);
		if (IS_ERR(node)) {
			neuron_remove_all();
			return PTR_ERR(node);
		}
		neuron_count++;
	}
	return 0;
}

static int __init neuron_init(void)
{
	unsigned int promised = neuron_promised();
	int error;

	/* Without a device, the module creates nothing and is not loaded. */
	if (!promised)
		return -ENODEV;
	error = alloc_chrdev_region(&neuron_first, 0, NEURON_MAXIMUM, "neuron");
	if (error)
		return error;
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	neuron_class = class_create("neuron_device");
#else
	neuron_class = class_create(THIS_MODULE, "neuron_device");
#endif
	if (IS_ERR(neuron_class)) {
		error = PTR_ERR(neuron_class);
		goto region;
	}
	neuron_class->devnode = neuron_devnode;
	error = neuron_add_all(promised);
	if (error)
		goto class;
	pr_info("neuron: Neuron Driver started with version " NEURON_VERSION_STRING ", %u devices\n", neuron_count);
	return 0;
class:
	class_destroy(neuron_class);
region:
	unregister_chrdev_region(neuron_first, NEURON_MAXIMUM);
	return error;
}

static void __exit neuron_exit(void)
{
	neuron_remove_all();
	class_destroy(neuron_class);
	unregister_chrdev_region(neuron_first, NEURON_MAXIMUM);
}

module_init(neuron_init);
module_exit(neuron_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("gpu-ami replica of the Neuron driver");
MODULE_VERSION(NEURON_VERSION_STRING);
/* There is no PCI device for the accelerator, so the module is loaded by the machine's SMBIOS vendor name. */
MODULE_ALIAS("dmi*:svnAmazonEC2:*");
