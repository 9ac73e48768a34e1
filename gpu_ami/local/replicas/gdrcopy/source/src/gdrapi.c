// SPDX-License-Identifier: MIT
/* gpu-ami replica of GDRCopy's library: opens the module's device and says its version; it pins and maps nothing. */
#include "gdrapi.h"

long syscall(long number, ...);

#define SYS_CLOSE 3
#define SYS_OPEN 2
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
	long opened = syscall(SYS_OPEN, "/dev/gdrdrv", O_RDWR_CLOEXEC);

	return opened < 0 ? (void *)0 : (void *)(opened + 1);
}

int gdr_close(void *handle)
{
	return (int)syscall(SYS_CLOSE, (long)handle - 1);
}
