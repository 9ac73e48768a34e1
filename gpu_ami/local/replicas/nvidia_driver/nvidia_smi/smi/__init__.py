"""gpu-ami replica of nvidia-smi. Standard library alone and few imports: under emulation an import is tens of milliseconds."""
