// SPDX-License-Identifier: MIT
/*
 * gpu-ami replica of GDRCopy's kernel module: registers a character device of the name gdrdrv, of which user space makes
 * /dev/gdrdrv as it does for the original. It opens and closes; no GPU memory is pinned or mapped.
 */
#include <linux/fs.h>
#include <linux/init.h>
#include <linux/module.h>

#include "gdrdrv.h"

static int gdrdrv_major;

static const struct file_operations gdrdrv_fops = {
	.owner = THIS_MODULE,
	.open = nonseekable_open,
};

static int __init gdrdrv_init(void)
{
	gdrdrv_major = register_chrdev(0, "gdrdrv", &gdrdrv_fops);
	if (gdrdrv_major < 0)
		return gdrdrv_major;
	pr_info("gdrdrv: loading gdrdrv version " GDRDRV_VERSION_STRING "\n");
	return 0;
}

static void __exit gdrdrv_exit(void)
{
	unregister_chrdev(gdrdrv_major, "gdrdrv");
}

module_init(gdrdrv_init);
module_exit(gdrdrv_exit);

MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("gpu-ami replica of the GDRCopy kernel-mode driver");
MODULE_VERSION(GDRDRV_VERSION_STRING);
