#!/bin/sh
# Prints kernel modules and libraries without a package, one a line: name, version and description, separated by tabs.
# A replica has "gpu-ami replica" in its description.
for module in nvidia efa neuron gdrdrv lustre; do
    description=$(modinfo -F description "$module" 2>/dev/null) &&
        printf '%s (kernel module)\t%s\t%s\n' "$module" "$(modinfo -F version "$module")" "$description"
done
file=/opt/amazon/ofi-nccl/lib/libnccl-net.so
description=$(grep -a -o -m 1 'gpu-ami replica of aws-ofi-nccl [0-9.]*' "$file") &&
    printf '%s\t%s\t%s\n' "$file" "${description##* }" "$description"
