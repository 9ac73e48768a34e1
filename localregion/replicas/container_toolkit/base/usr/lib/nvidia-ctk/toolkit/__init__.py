"""gpu-ami replica of NVIDIA's container toolkit. Few imports: under emulation each takes tens of milliseconds.

log            messages in the toolkit's form
settings       /etc/nvidia-container-runtime/config.toml
specification  a CDI specification of the GPUs that the driver shows
registry       CDI specifications on disk
edits          applies CDI's edits to an OCI configuration
toml           writes TOML
engines        the runtimes' own configuration
runtime        nvidia-container-runtime
hook           nvidia-cdi-hook
control        nvidia-ctk
"""
