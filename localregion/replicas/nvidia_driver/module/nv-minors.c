// SPDX-License-Identifier: GPL-2.0 OR MIT
/*
 * gpu-ami replica: what /proc/driver/nvidia-caps/{nvlink,mig,sys}-minors list, the minor number of each capability that
 * there can be, whatever GPUs there are. The driver numbers NVLink's first, then MIG's, then the system's.
 * Source: open-gpu-kernel-modules 525.53 to 595.45.04, kernel-open/nvidia/nv-caps.c (2026-03-05). R610 adds to the last
 * list (profiler-device 4324 and others, of which no source has the number).
 */
#include <linux/seq_file.h>

#define NV_CAP_GPUS 32
#define NV_CAP_GPU_INSTANCES 15
#define NV_CAP_COMPUTE_INSTANCES 8

enum { NV_CAP_FABRIC_MGMT, NV_CAP_MIG_CONFIG, NV_CAP_MIG_MONITOR, NV_CAP_MIG_ACCESS };
#define NV_CAP_FABRIC_IMEX_MGMT \
	(NV_CAP_MIG_ACCESS + NV_CAP_GPUS * NV_CAP_GPU_INSTANCES * (1 + NV_CAP_COMPUTE_INSTANCES))

static int nv_nvlink_minors_show(struct seq_file *out, void *unused)
{
	seq_printf(out, "fabric-mgmt %d\n", NV_CAP_FABRIC_MGMT);
	return 0;
}

static int nv_mig_minors_show(struct seq_file *out, void *unused)
{
	int gpu, instance, compute, minor = NV_CAP_MIG_ACCESS;

	seq_printf(out, "config %d\nmonitor %d\n", NV_CAP_MIG_CONFIG, NV_CAP_MIG_MONITOR);
	for (gpu = 0; gpu < NV_CAP_GPUS; gpu++)
		for (instance = 0; instance < NV_CAP_GPU_INSTANCES; instance++) {
			seq_printf(out, "gpu%d/gi%d/access %d\n", gpu, instance, minor++);
			for (compute = 0; compute < NV_CAP_COMPUTE_INSTANCES; compute++)
				seq_printf(out, "gpu%d/gi%d/ci%d/access %d\n", gpu, instance, compute, minor++);
		}
	return 0;
}

static int nv_sys_minors_show(struct seq_file *out, void *unused)
{
	seq_printf(out, "fabric-imex-mgmt %d\n", NV_CAP_FABRIC_IMEX_MGMT);
	return 0;
}
