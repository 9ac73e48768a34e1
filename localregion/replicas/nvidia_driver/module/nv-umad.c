// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica: the management devices of the InfiniBand ports through which NVSwitches of the fourth generation are reached. On the
 * original, ib_umad makes them for the ports of mlx5_core's bridges; QEMU has no such bridge. The local region says in the machine's SMBIOS
 * (OEM string "gpu-ami:umad=<number>") how many there are, and they exist only while the kernel's own ib_umad is loaded.
 */
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/dmi.h>
#include <linux/fs.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/namei.h>
#include <linux/slab.h>
#include <linux/string.h>

#include "nv.h"

#define NV_UMAD_OEM "gpu-ami:umad="
#define NV_UMAD_MAX 32
#define NV_UMAD_MODULE "ib_umad"

static DEFINE_MUTEX(nv_umad_lock);
static struct class *nv_umad_class;
static unsigned int nv_umad_count;
static int nv_umad_major;
static bool nv_umad_present;

static unsigned int nv_umad_promised(void)
{
	const struct dmi_device *string = NULL;
	unsigned int count;

	while ((string = dmi_find_device(DMI_DEV_TYPE_OEM_STRING, NULL, string)))
		if (!strncmp(string->name, NV_UMAD_OEM, strlen(NV_UMAD_OEM)) &&
		    !kstrtouint(string->name + strlen(NV_UMAD_OEM), 10, &count))
			return min_t(unsigned int, count, NV_UMAD_MAX);
	return 0;
}

static bool nv_umad_module_is_loaded(void)
{
	struct path path;

	if (kern_path("/sys/module/" NV_UMAD_MODULE, LOOKUP_FOLLOW, &path))
		return false;
	path_put(&path);
	return true;
}

static const struct file_operations nv_umad_fops = {
	.owner = THIS_MODULE,
};

static void nv_umad_remove(void)
{
	unsigned int index;

	mutex_lock(&nv_umad_lock);
	for (index = 0; nv_umad_present && index < nv_umad_count; index++)
		device_destroy(nv_umad_class, MKDEV(nv_umad_major, index));
	nv_umad_present = false;
	mutex_unlock(&nv_umad_lock);
}

static void nv_umad_add(void)
{
	unsigned int index;

	mutex_lock(&nv_umad_lock);
	for (index = 0; !nv_umad_present && index < nv_umad_count; index++)
		if (IS_ERR(device_create(nv_umad_class, NULL, MKDEV(nv_umad_major, index), NULL, "infiniband!umad%u", index)))
			pr_warn("gpu-ami replica: no device for InfiniBand port %u\n", index);
	nv_umad_present = true;
	mutex_unlock(&nv_umad_lock);
}

static int nv_umad_notify(struct notifier_block *block, unsigned long state, void *data)
{
	if (strcmp(((struct module *)data)->name, NV_UMAD_MODULE))
		return NOTIFY_DONE;
	if (state == MODULE_STATE_LIVE)
		nv_umad_add();
	else if (state == MODULE_STATE_GOING)
		nv_umad_remove();
	return NOTIFY_OK;
}

static struct notifier_block nv_umad_notifier = {
	.notifier_call = nv_umad_notify,
};

/* Nothing is created on a machine without such ports. */
int nv_umad_init(void)
{
	int error;

	nv_umad_count = nv_umad_promised();
	if (!nv_umad_count)
		return 0;
	nv_umad_class = nv_class_create("nv-infiniband-mad");
	if (IS_ERR(nv_umad_class)) {
		nv_umad_count = 0;
		return PTR_ERR(nv_umad_class);
	}
	nv_umad_major = __register_chrdev(0, 0, NV_UMAD_MAX, "nv-infiniband-mad", &nv_umad_fops);
	error = min(nv_umad_major, 0);
	if (!error)
		error = register_module_notifier(&nv_umad_notifier);
	if (!error) {
		if (nv_umad_module_is_loaded())
			nv_umad_add();
		return 0;
	}
	if (nv_umad_major > 0)
		__unregister_chrdev(nv_umad_major, 0, NV_UMAD_MAX, "nv-infiniband-mad");
	class_destroy(nv_umad_class);
	nv_umad_count = 0;
	return error;
}

void nv_umad_exit(void)
{
	if (!nv_umad_count)
		return;
	unregister_module_notifier(&nv_umad_notifier);
	nv_umad_remove();
	__unregister_chrdev(nv_umad_major, 0, NV_UMAD_MAX, "nv-infiniband-mad");
	class_destroy(nv_umad_class);
}
