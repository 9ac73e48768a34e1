// SPDX-License-Identifier: MIT
/* gpu-ami replica of GDRCopy: as much of its interface as a program needs that asks for the version. */
#ifndef GDRAPI_H
#define GDRAPI_H

#define GDR_API_VERSION_STRING "@MINOR@"

void gdr_runtime_get_version(int *major, int *minor);
void *gdr_open(void);
int gdr_close(void *handle);

#endif
