// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/*
 * gpu-ami replica of efa_nv_peermem: it stands between the EFA driver and NVIDIA's, whose symbols it needs in the version of
 * the source that it was built against. It does not load beside a proprietary driver, and maps nothing.
 */
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/pci.h>

struct nvidia_p2p_page_table;
int nvidia_p2p_get_pages(u64 token, u32 space, u64 address, u64 length, struct nvidia_p2p_page_table **table,
			 void (*callback)(void *data), void *data) __attribute__((weak));
int nvidia_p2p_put_pages(u64 token, u32 space, u64 address, struct nvidia_p2p_page_table *table)
	__attribute__((weak));
int efa_nv_peermem_p2p_get_pages(u64 token, u32 space, u64 address, u64 length, struct nvidia_p2p_page_table **table,
				 void (*callback)(void *data), void *data);
int efa_nv_peermem_p2p_put_pages(u64 token, u32 space, u64 address, struct nvidia_p2p_page_table *table);

int efa_nv_peermem_p2p_get_pages(u64 token, u32 space, u64 address, u64 length, struct nvidia_p2p_page_table **table,
				 void (*callback)(void *data), void *data)
{
	return nvidia_p2p_get_pages(token, space, address, length, table, callback, data);
}
EXPORT_SYMBOL_GPL(efa_nv_peermem_p2p_get_pages);

int efa_nv_peermem_p2p_put_pages(u64 token, u32 space, u64 address, struct nvidia_p2p_page_table *table)
{
	return nvidia_p2p_put_pages(token, space, address, table);
}
EXPORT_SYMBOL_GPL(efa_nv_peermem_p2p_put_pages);

static int __init efa_nv_peermem_init(void)
{
	if (test_bit(TAINT_PROPRIETARY_MODULE, &THIS_MODULE->taints)) {
		pr_info("efa_nv_peermem: Nvidia proprietary is unsupported\n");
		return -EINVAL;
	}
	if (!nvidia_p2p_get_pages || !nvidia_p2p_put_pages) {
		pr_info("efa_nv_peermem: Nvidia P2P symbols are unavailable\n");
		return -ENOSYS;
	}
	pr_info("EFA NV Peermem v" EFA_NV_PEERMEM_VERSION "\n");
	return 0;
}

static void __exit efa_nv_peermem_exit(void)
{
}

module_init(efa_nv_peermem_init);
module_exit(efa_nv_peermem_exit);

MODULE_LICENSE("Dual BSD/GPL");
MODULE_DESCRIPTION("gpu-ami replica of EFA NV Peermem");
MODULE_VERSION(EFA_NV_PEERMEM_VERSION);
MODULE_SOFTDEP("pre: nvidia");
