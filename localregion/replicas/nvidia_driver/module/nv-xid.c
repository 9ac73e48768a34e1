// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica: prints Xid and SXid records as the driver does.
 *
 * The driver's nv_printf puts KERN_CONT before every line, so that its records in /dev/kmsg have the default level,
 * facility 0 (kernel) and the continuation flag "c". NVSwitch lines come with a level of their own.
 */
#include <linux/ctype.h>
#include <linux/kernel.h>
#include <linux/printk.h>
#include <linux/string.h>

#include "nv.h"

static void nv_announce(struct nv_gpu *gpu, const char *where)
{
	if (gpu->announced)
		return;
	gpu->announced = true;
	printk(KERN_CONT "NVRM: GPU at PCI:%s: %s\n", where, gpu->uuid);
	if (gpu->serial[0])
		printk(KERN_CONT "NVRM: GPU Board Serial Number: %s\n", gpu->serial);
}

static bool nv_printable(const char *text)
{
	for (; *text; text++)
		if (!isprint(*text) && *text != '\t')
			return false;
	return true;
}

/*
 * request: "<code>[, text]", one Xid of this GPU;
 *          "NVRM: ..." a line of the driver as it stands; "nvidia-nvswitch<i>: ..." a line of the NVSwitch driver.
 */
int nv_xid_report(struct nv_gpu *gpu, char *request)
{
	char where[16];
	char *text;
	unsigned int code;

	request = strim(request);
	if (!nv_printable(request))
		return -EINVAL;
	if (!strncmp(request, "NVRM: ", 6)) {
		printk(KERN_CONT "%s\n", request);
		return 0;
	}
	if (!strncmp(request, "nvidia-nvswitch", 15)) {
		printk(KERN_ERR "%s\n", request);
		return 0;
	}
	text = strchr(request, ',');
	if (text)
		*text++ = '\0';
	if (kstrtouint(request, 10, &code))
		return -EINVAL;
	snprintf(where, sizeof(where), "%04x:%02x:%02x", pci_domain_nr(gpu->pdev->bus), gpu->pdev->bus->number,
		 PCI_SLOT(gpu->pdev->devfn));
	mutex_lock(&gpu->lock);
	nv_announce(gpu, where);
	printk(KERN_CONT "NVRM: Xid (PCI:%s): %u, %s\n", where, code, text ? skip_spaces(text) : "");
	mutex_unlock(&gpu->lock);
	return 0;
}
