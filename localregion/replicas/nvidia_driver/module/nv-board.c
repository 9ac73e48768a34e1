// SPDX-License-Identifier: GPL-2.0 OR MIT
/* gpu-ami replica: reads a board's own description from BAR2, text lines "key: value" padded with NUL. */
#include <linux/io.h>
#include <linux/kernel.h>
#include <linux/string.h>

#include "nv.h"

/* The value of `key` as the board gives it, or nothing. */
static bool nv_board_value(const char *board, const char *key, char *value, size_t bytes)
{
	size_t length = strlen(key);
	const char *line = board;

	while (line && *line) {
		if (!strncmp(line, key, length) && !strncmp(line + length, ": ", 2)) {
			const char *start = line + length + 2;
			size_t count = min(strcspn(start, "\n"), bytes - 1);

			memcpy(value, start, count);
			value[count] = '\0';
			return true;
		}
		line = strchr(line, '\n');
		line = line ? line + 1 : NULL;
	}
	return false;
}

int nv_board_read(struct nv_gpu *gpu)
{
	char minor[16];
	void __iomem *bar;

	if (pci_resource_len(gpu->pdev, 2) < NV_BOARD_BYTES)
		return -ENODEV;
	bar = pci_iomap(gpu->pdev, 2, NV_BOARD_BYTES);
	if (!bar)
		return -ENOMEM;
	memcpy_fromio(gpu->board, bar, NV_BOARD_BYTES);
	pci_iounmap(gpu->pdev, bar);
	gpu->board[NV_BOARD_BYTES] = '\0';

	/* Other ivshmem devices are left alone. */
	if (strncmp(gpu->board, NV_BOARD_MAGIC, strlen(NV_BOARD_MAGIC)))
		return -ENODEV;
	if (!nv_board_value(gpu->board, "minor", minor, sizeof(minor)) || kstrtouint(minor, 10, &gpu->minor) ||
	    gpu->minor >= NV_MINOR_CTL || !nv_board_value(gpu->board, "name", gpu->name, sizeof(gpu->name)) ||
	    !nv_board_value(gpu->board, "uuid", gpu->uuid, sizeof(gpu->uuid))) {
		dev_err(&gpu->pdev->dev, "board description without minor, name or uuid\n");
		return -EINVAL;
	}
	nv_board_value(gpu->board, "serial", gpu->serial, sizeof(gpu->serial));
	nv_board_value(gpu->board, "vbios", gpu->vbios, sizeof(gpu->vbios));
	return 0;
}
