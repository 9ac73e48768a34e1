// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* gpu-ami replica of libfabric: its name on the loader path. It has none of libfabric's calls. */
const char libfabric_version[] = "libfabric " VERSION;
