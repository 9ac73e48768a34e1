"""A base image entered without booting it: own namespaces, copy-on-write, sshd on loopback (root).

sandbox              starts and ends a sandbox; `python -m localregion.sandbox BASE`
sandbox_init         process 1 inside
kernel_settings      settings of /proc/sys as plain files
builder              a builder of the local region: an instance's disk in a sandbox
module_build         builds a driver's module on a base image's kernel: `gpu-ami sources --build`
"""
