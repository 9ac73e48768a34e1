// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* gpu-ami replica of libfabric: a shared object of its name, whose versioned names plugins are linked to. No call works. */
#define FI_ENOSYS 38

const char libfabric_version[] = "libfabric " VERSION;

unsigned int fi_version(void)
{
	return 0;
}

const char *fi_tostr(const void *data, int type)
{
	(void)data;
	(void)type;
	return libfabric_version;
}

int fi_getinfo(void)
{
	return -FI_ENOSYS;
}

void fi_freeinfo(void)
{
}
