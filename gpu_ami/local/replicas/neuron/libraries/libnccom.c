// SPDX-License-Identifier: Apache-2.0
/* gpu-ami replica of the Neuron collectives: their name on the loader path. They carry no data. */
const char nccom_version[] = VERSION;
