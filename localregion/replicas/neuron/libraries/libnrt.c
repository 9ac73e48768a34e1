// SPDX-License-Identifier: Apache-2.0
/* gpu-ami replica of the Neuron runtime: a shared object of its name. It runs no model. */
const char nrt_version[] = VERSION;
