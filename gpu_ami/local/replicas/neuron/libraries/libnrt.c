// SPDX-License-Identifier: Apache-2.0
/* gpu-ami replica of the Neuron runtime: its name on the loader path. It runs no model. */
const char nrt_version[] = VERSION;
