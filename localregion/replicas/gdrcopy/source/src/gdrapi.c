// SPDX-License-Identifier: MIT
/* gpu-ami replica of GDRCopy's library: opens the module's device and says its version; it pins and maps nothing. */
#include "gdrapi.h"

int close(int descriptor);
int open(const char *path, int flags, ...);

#define O_RDWR_CLOEXEC 02000002

void gdr_runtime_get_version(int *major, int *minor)
{
	const char *text = GDR_API_VERSION_STRING;

	for (*major = 0; *text && *text != '.'; text++)
		*major = *major * 10 + (*text - '0');
	for (*minor = 0; *text && *++text >= '0' && *text <= '9';)
		*minor = *minor * 10 + (*text - '0');
}

void *gdr_open(void)
{
	int opened = open("/dev/gdrdrv", O_RDWR_CLOEXEC);

	return opened < 0 ? (void *)0 : (void *)(opened + 1L);
}

int gdr_close(void *handle)
{
	return close((int)(long)handle - 1);
}
