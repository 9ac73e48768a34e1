// SPDX-License-Identifier: Apache-2.0
/*
 * gpu-ami replica of aws-ofi-nccl: a shared object with the plugin's name and with the line that it logs, from which its
 * version is read. NCCL finds none of its tables in it, and goes on without it.
 */
const char nccl_ofi_banner[] = "NET/OFI Initializing aws-ofi-nccl " VERSION;
const char nccl_ofi_replica[] = "gpu-ami replica of aws-ofi-nccl " VERSION;
