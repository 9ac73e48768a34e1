"""A base image entered without booting it: own namespaces, copy-on-write, sshd on loopback (root).

sandbox              starts and ends a sandbox; builds a driver's module in one (`gpu-ami sources --build`)
sandbox_init         builds the root, and lets users in
builder              a builder of the local region: an instance's disk in a sandbox
"""
