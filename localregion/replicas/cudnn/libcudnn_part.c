/* One of cuDNN's libraries beside libcudnn: a name that the loader finds, without a function. */
const char gpu_ami_part[] = VERSION;
