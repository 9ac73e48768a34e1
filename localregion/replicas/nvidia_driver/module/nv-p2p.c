// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica: the names by which RDMA drivers reach the GPUs' memory (nv-p2p.h). The boards have none to map, so each
 * call fails. Since 6.1.52, 5.15.131 and 5.10.195 a kernel gives a module's symbol to others by name only if it is GPL-only:
 * those of the open module are, those of the proprietary one are not (aws-parallelcluster#6015).
 */
#ifdef NV_PROPRIETARY
#define NV_EXPORT_P2P EXPORT_SYMBOL
#else
#define NV_EXPORT_P2P EXPORT_SYMBOL_GPL
#endif

struct nvidia_p2p_page_table;
struct nvidia_p2p_dma_mapping;
int nvidia_p2p_get_pages(u64 token, u32 space, u64 address, u64 length, struct nvidia_p2p_page_table **table,
			 void (*callback)(void *data), void *data);
int nvidia_p2p_put_pages(u64 token, u32 space, u64 address, struct nvidia_p2p_page_table *table);
int nvidia_p2p_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			     struct nvidia_p2p_dma_mapping **mapping);
int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			       struct nvidia_p2p_dma_mapping *mapping);

int nvidia_p2p_get_pages(u64 token, u32 space, u64 address, u64 length, struct nvidia_p2p_page_table **table,
			 void (*callback)(void *data), void *data)
{
	return -EINVAL;
}
NV_EXPORT_P2P(nvidia_p2p_get_pages);

int nvidia_p2p_put_pages(u64 token, u32 space, u64 address, struct nvidia_p2p_page_table *table)
{
	return -EINVAL;
}
NV_EXPORT_P2P(nvidia_p2p_put_pages);

int nvidia_p2p_dma_map_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			     struct nvidia_p2p_dma_mapping **mapping)
{
	return -EINVAL;
}
NV_EXPORT_P2P(nvidia_p2p_dma_map_pages);

int nvidia_p2p_dma_unmap_pages(struct pci_dev *peer, struct nvidia_p2p_page_table *table,
			       struct nvidia_p2p_dma_mapping *mapping)
{
	return -EINVAL;
}
NV_EXPORT_P2P(nvidia_p2p_dma_unmap_pages);
