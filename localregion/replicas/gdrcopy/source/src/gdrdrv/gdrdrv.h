/* SPDX-License-Identifier: MIT */
#define GDRDRV_VERSION_STRING "@MINOR@"
