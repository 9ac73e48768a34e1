// SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0
/* gpu-ami replica of libfabric: a shared object of its name. It exports none of libfabric's functions. */
const char libfabric_version[] = "libfabric " VERSION;
