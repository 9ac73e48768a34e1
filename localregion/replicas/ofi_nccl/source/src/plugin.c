// SPDX-License-Identifier: Apache-2.0
/*
 * gpu-ami replica of aws-ofi-nccl: a shared object with the plugin's name and with the line that it logs, from which its
 * version is read. NCCL finds none of its tables in it, and goes on without it.
 */
const char nccl_ofi_banner[] = "NET/OFI Initializing aws-ofi-nccl " VERSION;
const char nccl_ofi_replica[] = "gpu-ami replica of aws-ofi-nccl " VERSION;

/* As the original it is linked to libfabric, and needs its versions of these names. */
extern int fi_getinfo(void);
extern void fi_freeinfo(void);
int (*const nccl_ofi_getinfo)(void) = fi_getinfo;
void (*const nccl_ofi_freeinfo)(void) = fi_freeinfo;
