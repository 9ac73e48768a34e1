#!/bin/sh
# As the original: builds the NVIDIA driver's source for its Module.symvers; of several sources the last by name.
kernel=$1
nvidia=$(find "$2" -maxdepth 1 -type d -name '*nvidia-*' | sort | tail -n 1)
: >nvidia.mk
[ -n "$nvidia" ] || exit 0
rm -rf nvidia && cp -r "$nvidia" nvidia
if make -C nvidia KERNEL_UNAME="$kernel" modules >nvidia.log 2>&1; then
    echo "KBUILD_EXTRA_SYMBOLS := $PWD/nvidia/Module.symvers" >nvidia.mk
else
    echo "== Couldn't build NVIDIA Module.symvers, proceeding without. For additional info see $PWD/nvidia.log"
fi
