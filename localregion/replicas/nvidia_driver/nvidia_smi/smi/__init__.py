"""gpu-ami replica of nvidia-smi. Few imports: under emulation each takes tens of milliseconds."""
