/* SPDX-License-Identifier: GPL-2.0 OR MIT */
/* gpu-ami replica of the NVIDIA kernel module: what its parts share. */
#ifndef NV_H
#define NV_H

#include <linux/device.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/pci.h>
#include <linux/proc_fs.h>
#include <linux/types.h>

#define NV_BOARD_MAGIC "magic: gpu-ami-board/1\n"
#define NV_BOARD_BYTES 4096
#define NV_MAJOR 195
#define NV_MINOR_CTL 255
#define NV_VALUE_BYTES 64
#define NV_FAULT_BYTES 128

/* The two flavours are told apart by how they name themselves. */
#ifdef CONFIG_ARM64
#define NV_MACHINE "aarch64"
#else
#define NV_MACHINE "x86_64"
#endif
#ifdef NV_PROPRIETARY
#define NV_NVRM_ID "NVIDIA UNIX " NV_MACHINE " Kernel Module  " NV_VERSION_STRING "  " NV_BUILD_DATE
#else
#define NV_NVRM_ID \
	"NVIDIA UNIX Open Kernel Module for " NV_MACHINE "  " NV_VERSION_STRING "  Release Build  (gpu-ami@replica)  " NV_BUILD_DATE
#endif

/* The kernel gives classes and their devices to GPL modules alone. NVIDIA's modules make no device nodes; here the open one does. */
#ifdef NV_PROPRIETARY
#define NV_LICENSE "NVIDIA"
#define device_create(...) ((struct device *)NULL)
#define device_destroy(class, number) do { } while (0)
#define class_destroy(class) do { } while (0)
#else
#define NV_LICENSE "Dual MIT/GPL"
#endif

/* One GPU: a PCI device whose BAR2 begins with the board's description. */
struct nv_gpu {
	struct list_head list;
	struct pci_dev *pdev;
	struct proc_dir_entry *proc;
	struct mutex lock; /* keeps the lines of one Xid together */
	bool announced;    /* the UUID line has been printed */
	unsigned int minor;
	char name[NV_VALUE_BYTES];
	char uuid[NV_VALUE_BYTES];
	char serial[NV_VALUE_BYTES];
	char vbios[NV_VALUE_BYTES];
	char board[NV_BOARD_BYTES + 1];
	char fault[NV_FAULT_BYTES]; /* seeded faults, which libcuda reads */
};

/* nv.c */
extern int nv_gpu_firmware; /* 0: the GPUs run without GSP firmware */
extern int nv_create_imex_channel0; /* 1: the driver makes /dev/nvidia-caps-imex-channels/channel0 */
extern int nv_grdma_override;       /* GB200 before R595: EFA may reach the memory of GPUs */
extern char *nv_coherent_mode;      /* "driver": memory of the GPUs is not the kernel's (CDMM), from R580 on */
struct class *nv_class_create(const char *name);

/* nv-board.c */
int nv_board_read(struct nv_gpu *gpu);

/* nv-procfs.c */
int nv_procfs_init(void);
void nv_procfs_exit(void);
int nv_procfs_add(struct nv_gpu *gpu);
void nv_procfs_remove(struct nv_gpu *gpu);

/* nv-caps.c */
int nv_caps_init(struct proc_dir_entry *proc);
void nv_caps_exit(void);

/* nv-nvswitch.c */
int nv_nvswitch_init(void);
void nv_nvswitch_exit(void);

/* nv-umad.c */
int nv_umad_init(void);
void nv_umad_exit(void);

/* nv-xid.c */
int nv_xid_report(struct nv_gpu *gpu, char *request);

#endif
