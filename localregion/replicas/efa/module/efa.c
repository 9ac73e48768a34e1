// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * gpu-ami replica of the Elastic Fabric Adapter's kernel module: as many RDMA devices as the machine's firmware says
 * (SMBIOS type 11, "gpu-ami:efa=4"), registered with the kernel's RDMA core, which makes /sys/class/infiniband/rdmap<N>s0
 * and, with ib_uverbs, /dev/infiniband/uverbs<N>. They carry no data. Their devices have the driver efa, as on AWS.
 *
 * Where NVSwitches are reached through ConnectX bridges ("gpu-ami:umad=4": two InfiniBand ports each), those are RDMA devices beside
 * them, with the driver mlx5_core and ports in state INIT: public captures of a p6-b200.48xlarge and a p6-b300.48xlarge. On the original
 * the kernel's own mlx5_ib makes them; here nothing but this module has to do with RDMA.
 */
#include <linux/dmi.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <linux/string.h>
#include <rdma/ib_verbs.h>

#define EFA_OEM_STRING "gpu-ami:efa="
#define BRIDGE_OEM_STRING "gpu-ami:umad="
#define BRIDGE_PORTS 2
#define BRIDGE_FIRST_BUS 115
#define EFA_MAXIMUM 64

struct efa_dev {
	struct ib_device ibdev;
	struct platform_device *device;
	unsigned int index;
	bool bridge;
};

static struct efa_dev *efa_devices[2 * EFA_MAXIMUM];
static unsigned int efa_count;

static int efa_probe(struct platform_device *device)
{
	return 0;
}

/* Their names are those of the drivers to which the links device/driver lead. */
static struct platform_driver efa_driver = { .probe = efa_probe, .driver = { .name = "efa" } };
static struct platform_driver bridge_driver = { .probe = efa_probe, .driver = { .name = "mlx5_core" } };

/* How many the firmware names with this string; 0 where it names none. */
static unsigned int efa_promised(const char *oem_string)
{
	const struct dmi_device *found = NULL;
	unsigned int count;

	while ((found = dmi_find_device(DMI_DEV_TYPE_OEM_STRING, NULL, found))) {
		if (strncmp(found->name, oem_string, strlen(oem_string)))
			continue;
		if (!kstrtouint(found->name + strlen(oem_string), 10, &count) && count <= EFA_MAXIMUM)
			return count;
		pr_err("efa: the firmware says \"%s\", expected a number up to %u\n", found->name, EFA_MAXIMUM);
	}
	return 0;
}

static int efa_query_device(struct ib_device *ibdev, struct ib_device_attr *attributes, struct ib_udata *data)
{
	memset(attributes, 0, sizeof(*attributes));
	attributes->vendor_id = 0x1d0f;
	attributes->vendor_part_id = 0xefa0;
	attributes->max_pd = 1;
	return 0;
}

static int efa_query_port(struct ib_device *ibdev, u32 port, struct ib_port_attr *attributes)
{
	attributes->state = container_of(ibdev, struct efa_dev, ibdev)->bridge ? IB_PORT_INIT : IB_PORT_ACTIVE;
	attributes->phys_state = IB_PORT_PHYS_STATE_LINK_UP;
	attributes->gid_tbl_len = 1;
	attributes->pkey_tbl_len = 1;
	attributes->max_mtu = IB_MTU_4096;
	attributes->active_mtu = IB_MTU_4096;
	attributes->active_speed = IB_SPEED_EDR;
	attributes->active_width = IB_WIDTH_4X;
	return 0;
}

static int efa_get_port_immutable(struct ib_device *ibdev, u32 port, struct ib_port_immutable *immutable)
{
	immutable->gid_tbl_len = 1;
	immutable->pkey_tbl_len = 1;
	return 0;
}

static int efa_query_gid(struct ib_device *ibdev, u32 port, int index, union ib_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	gid->raw[0] = 0xfe;
	gid->raw[1] = 0x80;
	gid->raw[15] = container_of(ibdev, struct efa_dev, ibdev)->index + 1;
	return 0;
}

static int efa_query_pkey(struct ib_device *ibdev, u32 port, u16 index, u16 *pkey)
{
	*pkey = 0xffff;
	return index ? -EINVAL : 0;
}

static enum rdma_link_layer efa_link_layer(struct ib_device *ibdev, u32 port)
{
	return container_of(ibdev, struct efa_dev, ibdev)->bridge ? IB_LINK_LAYER_INFINIBAND : IB_LINK_LAYER_UNSPECIFIED;
}

/* /dev/infiniband/uverbs<N> opens, and a context can be allocated; queue pairs cannot. */
static int efa_alloc_ucontext(struct ib_ucontext *context, struct ib_udata *data)
{
	return 0;
}

static void efa_dealloc_ucontext(struct ib_ucontext *context)
{
}

static const struct ib_device_ops efa_ops = {
	.owner = THIS_MODULE,
	.driver_id = RDMA_DRIVER_EFA,
	.uverbs_abi_ver = 1,
	.alloc_ucontext = efa_alloc_ucontext,
	.dealloc_ucontext = efa_dealloc_ucontext,
	.get_link_layer = efa_link_layer,
	.get_port_immutable = efa_get_port_immutable,
	.query_device = efa_query_device,
	.query_gid = efa_query_gid,
	.query_pkey = efa_query_pkey,
	.query_port = efa_query_port,
	.size_ib_ucontext = sizeof(struct ib_ucontext),
};

/*
 * How it reaches GPU memory, as the original says it: through efa_nv_peermem, or by the NVIDIA driver's own symbols, which the
 * kernel gives only if they are GPL-only. Empty: not at all.
 */
static ssize_t p2p_show(struct device *device, struct device_attribute *attribute, char *buffer)
{
	static const struct {
		const char *symbol, *provider;
	} providers[] = {
		{ "efa_nv_peermem_p2p_get_pages", "NVIDIA peermem" },
		{ "nvidia_p2p_get_pages", "NVIDIA" },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(providers); i++) {
		if (__symbol_get(providers[i].symbol)) {
			__symbol_put(providers[i].symbol);
			return sprintf(buffer, "%s\n", providers[i].provider);
		}
	}
	return sprintf(buffer, "\n");
}
static DEVICE_ATTR_RO(p2p);

static int efa_add(unsigned int index, bool bridge)
{
	struct efa_dev *device = ib_alloc_device(efa_dev, ibdev);
	char name[IB_DEVICE_NAME_MAX];
	int error;

	if (!device)
		return -ENOMEM;
	device->index = index;
	device->bridge = bridge;
	device->device = platform_device_register_simple(bridge ? "mlx5_core" : "efa", index, NULL, 0);
	if (IS_ERR(device->device)) {
		error = PTR_ERR(device->device);
		ib_dealloc_device(&device->ibdev);
		return error;
	}
	device->ibdev.dev.parent = &device->device->dev;
	device->ibdev.node_type = bridge ? RDMA_NODE_IB_CA : RDMA_NODE_UNSPECIFIED;
	device->ibdev.phys_port_cnt = 1;
	device->ibdev.num_comp_vectors = 1;
	ib_set_device_ops(&device->ibdev, &efa_ops);
	if (bridge)
		snprintf(name, sizeof(name), "ibp%us0f0", BRIDGE_FIRST_BUS + index);
	else
		snprintf(name, sizeof(name), "rdmap%us0", index);
	error = bridge ? 0 : device_create_file(&device->device->dev, &dev_attr_p2p);
	if (!error)
		error = ib_register_device(&device->ibdev, name, NULL);
	if (error) {
		struct platform_device *parent = device->device;

		ib_dealloc_device(&device->ibdev);
		platform_device_unregister(parent);
		return error;
	}
	efa_devices[efa_count++] = device;
	return 0;
}

static void efa_remove_all(void)
{
	while (efa_count) {
		struct efa_dev *device = efa_devices[--efa_count];

		struct platform_device *parent = device->device;

		if (!device->bridge)
			device_remove_file(&parent->dev, &dev_attr_p2p);
		ib_unregister_device(&device->ibdev);
		ib_dealloc_device(&device->ibdev);
		platform_device_unregister(parent);
	}
}

static int __init efa_init(void)
{
	unsigned int promised = efa_promised(EFA_OEM_STRING);
	unsigned int bridges = efa_promised(BRIDGE_OEM_STRING) / BRIDGE_PORTS;
	unsigned int index;
	int error;

	/* Without an adapter, the module creates nothing and is not loaded. */
	if (!promised)
		return -ENODEV;
	error = platform_driver_register(&efa_driver);
	if (error)
		return error;
	error = platform_driver_register(&bridge_driver);
	if (error)
		goto unregister_efa;
	for (index = 0; !error && index < bridges; index++)
		error = efa_add(index, true);
	for (index = 0; !error && index < promised; index++)
		error = efa_add(index, false);
	if (!error) {
		pr_info("efa: Elastic Fabric Adapter (EFA) v" EFA_VERSION_STRING ", %u devices\n", promised);
		return 0;
	}
	efa_remove_all();
	platform_driver_unregister(&bridge_driver);
unregister_efa:
	platform_driver_unregister(&efa_driver);
	return error;
}

static void __exit efa_exit(void)
{
	efa_remove_all();
	platform_driver_unregister(&bridge_driver);
	platform_driver_unregister(&efa_driver);
}

module_init(efa_init);
module_exit(efa_exit);

MODULE_LICENSE("Dual BSD/GPL");
MODULE_DESCRIPTION("gpu-ami replica of the Elastic Fabric Adapter (EFA)");
MODULE_VERSION(EFA_VERSION_STRING);
MODULE_SOFTDEP("pre: ib_uverbs");
/* There is no PCI device for the adapter, so the module is loaded by the machine's SMBIOS vendor name. */
MODULE_ALIAS("dmi*:svnAmazonEC2:*");
