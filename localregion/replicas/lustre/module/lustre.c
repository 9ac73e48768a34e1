// SPDX-License-Identifier: GPL-2.0
/*
 * gpu-ami replica of the Lustre client's kernel module: registers the file system's name, so that /proc/filesystems has it;
 * a mount ends with "No such device or address", since there is no server that it could speak to.
 */
#include <linux/fs.h>
#include <linux/module.h>

static struct dentry *lustre_mount(struct file_system_type *type, int flags, const char *device, void *data)
{
	return ERR_PTR(-ENXIO);
}

static struct file_system_type lustre_type = {
	.owner = THIS_MODULE,
	.name = "lustre",
	.mount = lustre_mount,
	.kill_sb = kill_anon_super,
};

static int __init lustre_init(void)
{
	return register_filesystem(&lustre_type);
}

static void __exit lustre_exit(void)
{
	unregister_filesystem(&lustre_type);
}

module_init(lustre_init);
module_exit(lustre_exit);

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("gpu-ami replica of the Lustre Client File System");
MODULE_VERSION(LUSTRE_VERSION_STRING);
MODULE_ALIAS_FS("lustre");
