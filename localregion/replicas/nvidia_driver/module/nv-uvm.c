// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica of NVIDIA's module nvidia-uvm: it registers the device numbers that CUDA opens, /dev/nvidia-uvm (0) and
 * /dev/nvidia-uvm-tools (1). Like the original it creates no device node, which nvidia-modprobe or a program of the image
 * does, and names no version (NVIDIA/open-gpu-kernel-modules kernel-open/nvidia-uvm/uvm.c, 1739a20e).
 */
#include <linux/fs.h>
#include <linux/module.h>

#define UVM_MINORS 2

int nvUvmInterfaceRegisterUvmCallbacks(const void *callbacks);
void nvUvmInterfaceDeRegisterUvmOps(void);

static int uvm_major;

static int uvm_open(struct inode *inode, struct file *file)
{
	return iminor(inode) < UVM_MINORS ? 0 : -ENXIO;
}

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
	.open = uvm_open,
};

static int __init uvm_init(void)
{
	int error = nvUvmInterfaceRegisterUvmCallbacks(&uvm_fops);

	if (error)
		return error;
	uvm_major = __register_chrdev(0, 0, UVM_MINORS, "nvidia-uvm", &uvm_fops);
	if (uvm_major < 0) {
		nvUvmInterfaceDeRegisterUvmOps();
		return uvm_major;
	}
	pr_info("nvidia-uvm: Loaded the UVM driver, major device number %d.\n", uvm_major);
	return 0;
}

static void __exit uvm_exit(void)
{
	__unregister_chrdev(uvm_major, 0, UVM_MINORS, "nvidia-uvm");
	nvUvmInterfaceDeRegisterUvmOps();
	pr_info("nvidia-uvm: Unloaded the UVM driver.\n");
}

module_init(uvm_init);
module_exit(uvm_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("gpu-ami replica of NVIDIA's module nvidia-uvm");
MODULE_INFO(supported, "external");
