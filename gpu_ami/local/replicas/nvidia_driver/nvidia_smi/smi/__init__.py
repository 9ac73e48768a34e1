"""gpu-ami replica of nvidia-smi. Few imports: under emulation one is tens of milliseconds."""
