// SPDX-License-Identifier: GPL-2.0 OR MIT
/* gpu-ami replica of Linux's nova_drm, nova_core's part for graphics: its name alone. */
#include <linux/module.h>

MODULE_LICENSE("GPL v2");
MODULE_DESCRIPTION("Nova GPU driver (gpu-ami replica)");
