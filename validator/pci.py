"""Shell commands that list the PCI devices of a host, and say whether its GPUs are real."""

from __future__ import annotations

# Address, vendor, device, class and driver of each, in a line each. Starts no process.
PCI_LIST = (
    "for d in /sys/bus/pci/devices/*; do read -r v <$d/vendor; read -r i <$d/device; read -r c <$d/class;"
    ' n=; cd -P $d/driver 2>/dev/null && n=$PWD; echo "${d##*/} $v $i $c ${n##*/}"; done'
)
# What `probes.hardware` calls simulated, as a shell command: prints "real", "simulated", or nothing without a GPU.
KIND = (
    f'{{ {PCI_LIST}; }} | awk \'$2 == "0x10de" && $4 ~ /^0x03/ {{ real = 1 }}'
    ' $2 != "0x10de" && ($5 == "nvidia" || $5 == "nvidia-gpu") { simulated = 1 }'
    ' END { if (simulated) print "simulated"; else if (real) print "real" }\''
)
