// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica of the NVIDIA kernel module: a PCI driver for the boards of gpu-ami's local region (QEMU's
 * ivshmem-plain with a board description in BAR2). It shows what monitoring programs read of the driver: version, one
 * directory and one device node a GPU and an NVSwitch, and Xid records.
 */
#include <linux/cdev.h>
#include <linux/device.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/pci.h>
#include <linux/slab.h>
#include <linux/version.h>

#include "nv.h"

/* The driver's own parameter and default (18: where the GPU supports it). */
int nv_gpu_firmware = 18;
module_param_named(NVreg_EnableGpuFirmware, nv_gpu_firmware, int, 0444);
int nv_create_imex_channel0;
module_param_named(NVreg_CreateImexChannel0, nv_create_imex_channel0, int, 0444);
#ifdef NV_HAS_GRDMA_OVERRIDE
int nv_grdma_override;
module_param_named(NVreg_GrdmaPciTopoCheckOverride, nv_grdma_override, int, 0444);
#endif
#ifdef NV_HAS_COHERENT_MODE
char *nv_coherent_mode = "";
module_param_named(NVreg_CoherentGPUMemoryMode, nv_coherent_mode, charp, 0444);
#endif

static LIST_HEAD(nv_gpus);
static DEFINE_MUTEX(nv_gpus_lock);
static struct class *nv_class;

static bool nv_has_minor(unsigned int minor)
{
	struct nv_gpu *gpu;
	bool found = false;

	mutex_lock(&nv_gpus_lock);
	list_for_each_entry(gpu, &nv_gpus, list)
		found |= gpu->minor == minor;
	mutex_unlock(&nv_gpus_lock);
	return found;
}

static int nv_open(struct inode *inode, struct file *file)
{
	unsigned int minor = iminor(inode);

	return minor == NV_MINOR_CTL || nv_has_minor(minor) ? 0 : -ENODEV;
}

static const struct file_operations nv_fops = {
	.owner = THIS_MODULE,
	.open = nv_open,
};

static int nv_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	struct nv_gpu *gpu;
	struct device *node;
	int error;

	gpu = kzalloc(sizeof(*gpu), GFP_KERNEL);
	if (!gpu)
		return -ENOMEM;
	gpu->pdev = pdev;
	mutex_init(&gpu->lock);
	error = pci_enable_device(pdev);
	if (error)
		goto free;
	error = nv_board_read(gpu);
	if (error)
		goto disable;
	if (nv_has_minor(gpu->minor)) {
		dev_err(&pdev->dev, "two boards with minor %u\n", gpu->minor);
		error = -EEXIST;
		goto disable;
	}
	error = nv_procfs_add(gpu);
	if (error)
		goto disable;
	node = device_create(nv_class, NULL, MKDEV(NV_MAJOR, gpu->minor), NULL, "nvidia%u", gpu->minor);
	if (IS_ERR(node)) {
		error = PTR_ERR(node);
		goto proc;
	}
	pci_set_drvdata(pdev, gpu);
	mutex_lock(&nv_gpus_lock);
	list_add_tail(&gpu->list, &nv_gpus);
	mutex_unlock(&nv_gpus_lock);
	return 0;
proc:
	nv_procfs_remove(gpu);
disable:
	pci_disable_device(pdev);
free:
	kfree(gpu);
	return error;
}

static void nv_remove(struct pci_dev *pdev)
{
	struct nv_gpu *gpu = pci_get_drvdata(pdev);

	mutex_lock(&nv_gpus_lock);
	list_del(&gpu->list);
	mutex_unlock(&nv_gpus_lock);
	device_destroy(nv_class, MKDEV(NV_MAJOR, gpu->minor));
	nv_procfs_remove(gpu);
	pci_disable_device(pdev);
	kfree(gpu);
}

static const struct pci_device_id nv_pci_table[] = {
	{ PCI_DEVICE(0x1af4, 0x1110) },
	{ }
};
MODULE_DEVICE_TABLE(pci, nv_pci_table);

static struct pci_driver nv_pci_driver = {
	.name = "nvidia",
	.id_table = nv_pci_table,
	.probe = nv_probe,
	.remove = nv_remove,
};

#ifdef NV_PROPRIETARY
struct class *nv_class_create(const char *name)
{
	return NULL;
}
#else
#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
static char *nv_devnode(const struct device *dev, umode_t *mode)
#else
static char *nv_devnode(struct device *dev, umode_t *mode)
#endif
{
	if (mode)
		*mode = 0666;
	return NULL;
}

/* Device nodes of the class are readable and writable for all users, as the driver's. */
struct class *nv_class_create(const char *name)
{
	struct class *made;

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 4, 0)
	made = class_create(name);
#else
	made = class_create(THIS_MODULE, name);
#endif
	if (!IS_ERR(made))
		made->devnode = nv_devnode;
	return made;
}
#endif

static int nv_devices_init(void)
{
	struct device *node;
	int error;

	nv_class = nv_class_create("nvidia");
	if (IS_ERR(nv_class))
		return PTR_ERR(nv_class);
	error = __register_chrdev(NV_MAJOR, 0, 256, "nvidia-frontend", &nv_fops);
	if (error)
		goto class;
	node = device_create(nv_class, NULL, MKDEV(NV_MAJOR, NV_MINOR_CTL), NULL, "nvidiactl");
	if (!IS_ERR(node))
		return 0;
	error = PTR_ERR(node);
	__unregister_chrdev(NV_MAJOR, 0, 256, "nvidia-frontend");
class:
	class_destroy(nv_class);
	return error;
}

static void nv_devices_exit(void)
{
	device_destroy(nv_class, MKDEV(NV_MAJOR, NV_MINOR_CTL));
	__unregister_chrdev(NV_MAJOR, 0, 256, "nvidia-frontend");
	class_destroy(nv_class);
}

/* What nvidia-uvm needs of this module, under the driver's own names. */
int nvUvmInterfaceRegisterUvmCallbacks(const void *callbacks);
void nvUvmInterfaceDeRegisterUvmOps(void);

int nvUvmInterfaceRegisterUvmCallbacks(const void *callbacks)
{
	return callbacks ? 0 : -EINVAL;
}
EXPORT_SYMBOL(nvUvmInterfaceRegisterUvmCallbacks);

void nvUvmInterfaceDeRegisterUvmOps(void)
{
}
EXPORT_SYMBOL(nvUvmInterfaceDeRegisterUvmOps);

static int __init nv_init(void)
{
	int error;

	error = nv_devices_init();
	if (error)
		return error;
	error = nv_procfs_init();
	if (error)
		goto devices;
	printk(KERN_CONT "NVRM: loading " NV_NVRM_ID "\n");
	error = pci_register_driver(&nv_pci_driver);
	if (error)
		goto procfs;
	if (!list_empty(&nv_gpus)) {
		error = nv_nvswitch_init();
		if (error)
			goto driver;
		error = nv_umad_init();
		if (!error)
			return 0;
		nv_nvswitch_exit();
		goto driver;
	}
	/* Like the driver, the module is not loaded where it has no device. */
	printk(KERN_CONT "NVRM: No NVIDIA GPU found.\n");
	error = -ENODEV;
driver:
	pci_unregister_driver(&nv_pci_driver);
procfs:
	nv_procfs_exit();
devices:
	nv_devices_exit();
	return error;
}

static void __exit nv_exit(void)
{
	nv_umad_exit();
	nv_nvswitch_exit();
	pci_unregister_driver(&nv_pci_driver);
	nv_procfs_exit();
	nv_devices_exit();
}

module_init(nv_init);
module_exit(nv_exit);

MODULE_LICENSE(NV_LICENSE);
MODULE_DESCRIPTION("gpu-ami replica of the NVIDIA kernel module");
MODULE_VERSION(NV_VERSION_STRING);
MODULE_INFO(supported, "external");
