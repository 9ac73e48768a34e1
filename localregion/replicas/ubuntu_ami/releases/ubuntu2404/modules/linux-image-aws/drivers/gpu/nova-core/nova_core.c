// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica of Linux's nova_core, which is in Rust: its name, its folder and the devices that it asks for
 * (NVIDIA's display and 3D controllers). It leaves them alone, and does not ask for the local region's boards.
 */
#include <linux/module.h>
#include <linux/pci.h>

static int nova_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	return -ENODEV;
}

static const struct pci_device_id nova_pci_table[] = {
	{ PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID), .class = PCI_CLASS_DISPLAY_VGA << 8, .class_mask = ~0 },
	{ PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID), .class = PCI_CLASS_DISPLAY_3D << 8, .class_mask = ~0 },
	{ }
};
MODULE_DEVICE_TABLE(pci, nova_pci_table);

static struct pci_driver nova_pci_driver = {
	.name = "NovaCore",
	.id_table = nova_pci_table,
	.probe = nova_probe,
};
module_pci_driver(nova_pci_driver);

MODULE_LICENSE("GPL v2");
MODULE_DESCRIPTION("Nova Core GPU driver (gpu-ami replica)");
