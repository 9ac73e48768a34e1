// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica: /proc/driver/nvidia/{version,params,gpus/<dddd:bb:dd.f>/information} as the driver has them, and,
 * of the replica alone, gpus/<...>/board (the board's description), gpus/<...>/xid (root asks for an Xid) and
 * gpus/<...>/fault (root seeds faults of the board, which libcuda shows: libcuda/devices.c).
 */
#include <linux/proc_fs.h>
#include <linux/seq_file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "nv.h"

#define NV_XID_REQUEST_BYTES 900 /* a printk record holds 1024 */

static struct proc_dir_entry *nv_proc, *nv_proc_gpus;

static int nv_version_show(struct seq_file *out, void *unused)
{
	seq_puts(out, "NVRM version: " NV_NVRM_ID "\n");
	seq_puts(out, "GCC version:  " NV_COMPILER "\n");
	return 0;
}

static int nv_params_show(struct seq_file *out, void *unused)
{
	seq_puts(out, "ResmanDebugLevel: 4294967295\nRmLogonRC: 1\n");
	seq_puts(out, "ModifyDeviceFiles: 1\nDeviceFileUID: 0\nDeviceFileGID: 0\nDeviceFileMode: 438\n");
	seq_printf(out, "EnableGpuFirmware: %d\n", nv_gpu_firmware);
	seq_printf(out, "ImexChannelCount: 2048\nCreateImexChannel0: %d\n", nv_create_imex_channel0);
#ifdef NV_HAS_GRDMA_OVERRIDE
	seq_printf(out, "GrdmaPciTopoCheckOverride: %d\n", nv_grdma_override);
#endif
#ifdef NV_HAS_COHERENT_MODE
	seq_printf(out, "CoherentGPUMemoryMode: \"%s\"\n", nv_coherent_mode);
#endif
	seq_puts(out, "RegistryDwords: \"\"\nExcludedGpus: \"\"\n");
	return 0;
}

static int nv_information_show(struct seq_file *out, void *unused)
{
	struct nv_gpu *gpu = out->private;

	seq_printf(out, "Model: \t\t %s\n", gpu->name);
	seq_printf(out, "IRQ:   \t\t %u\n", gpu->pdev->irq);
	seq_printf(out, "GPU UUID: \t %s\n", gpu->uuid);
	seq_printf(out, "Video BIOS: \t %s\n", gpu->vbios[0] ? gpu->vbios : "??.??.??.??.??");
	seq_puts(out, "Bus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\n");
	seq_printf(out, "Bus Location: \t %s\n", pci_name(gpu->pdev));
	seq_printf(out, "Device Minor: \t %u\n", gpu->minor);
	seq_printf(out, "GPU Firmware: \t %s\n", nv_gpu_firmware ? NV_VERSION_STRING : "N/A");
	seq_puts(out, "GPU Excluded:\t No\n");
	return 0;
}

static int nv_board_show(struct seq_file *out, void *unused)
{
	struct nv_gpu *gpu = out->private;

	seq_puts(out, gpu->board);
	return 0;
}

static ssize_t nv_xid_write(struct file *file, const char __user *data, size_t count, loff_t *position)
{
	struct nv_gpu *gpu = pde_data(file_inode(file));
	char *request;
	int error;

	if (!count || count > NV_XID_REQUEST_BYTES)
		return -EINVAL;
	request = memdup_user_nul(data, count);
	if (IS_ERR(request))
		return PTR_ERR(request);
	error = nv_xid_report(gpu, request);
	kfree(request);
	return error ? error : count;
}

static int nv_xid_open(struct inode *inode, struct file *file)
{
	return stream_open(inode, file);
}

static const struct proc_ops nv_xid_ops = {
	.proc_open = nv_xid_open,
	.proc_write = nv_xid_write,
};

static int nv_fault_show(struct seq_file *out, void *unused)
{
	struct nv_gpu *gpu = out->private;

	mutex_lock(&gpu->lock);
	seq_printf(out, "%s\n", gpu->fault);
	mutex_unlock(&gpu->lock);
	return 0;
}

static ssize_t nv_fault_write(struct file *file, const char __user *data, size_t count, loff_t *position)
{
	struct nv_gpu *gpu = pde_data(file_inode(file));
	char *words;

	if (count >= NV_FAULT_BYTES)
		return -EINVAL;
	words = memdup_user_nul(data, count);
	if (IS_ERR(words))
		return PTR_ERR(words);
	mutex_lock(&gpu->lock);
	strscpy(gpu->fault, strim(words), NV_FAULT_BYTES);
	mutex_unlock(&gpu->lock);
	kfree(words);
	return count;
}

static int nv_fault_open(struct inode *inode, struct file *file)
{
	return single_open(file, nv_fault_show, pde_data(inode));
}

static const struct proc_ops nv_fault_ops = {
	.proc_open = nv_fault_open,
	.proc_read = seq_read,
	.proc_lseek = seq_lseek,
	.proc_release = single_release,
	.proc_write = nv_fault_write,
};

int nv_procfs_add(struct nv_gpu *gpu)
{
	gpu->proc = proc_mkdir(pci_name(gpu->pdev), nv_proc_gpus);
	if (!gpu->proc)
		return -ENOMEM;
	if (!proc_create_single_data("information", 0444, gpu->proc, nv_information_show, gpu) ||
	    !proc_create_single_data("board", 0444, gpu->proc, nv_board_show, gpu) ||
	    !proc_create_data("xid", 0200, gpu->proc, &nv_xid_ops, gpu) ||
	    !proc_create_data("fault", 0644, gpu->proc, &nv_fault_ops, gpu)) {
		nv_procfs_remove(gpu);
		return -ENOMEM;
	}
	return 0;
}

void nv_procfs_remove(struct nv_gpu *gpu)
{
	proc_remove(gpu->proc);
	gpu->proc = NULL;
}

int nv_procfs_init(void)
{
	nv_proc = proc_mkdir("driver/nvidia", NULL);
	if (!nv_proc)
		return -ENOMEM;
	nv_proc_gpus = proc_mkdir("gpus", nv_proc);
	if (!nv_proc_gpus || !proc_create_single("version", 0444, nv_proc, nv_version_show) ||
	    !proc_create_single("params", 0444, nv_proc, nv_params_show) || nv_caps_init(nv_proc)) {
		nv_procfs_exit();
		return -ENOMEM;
	}
	return 0;
}

void nv_procfs_exit(void)
{
	nv_caps_exit();
	proc_remove(nv_proc);
	nv_proc = NULL;
}
