// SPDX-License-Identifier: Apache-2.0
/* gpu-ami replica of the Neuron collectives: a shared object of their name. It transfers no data. */
const char nccom_version[] = VERSION;
