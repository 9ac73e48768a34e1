"""The local region: moto's API with real QEMU machines behind it.

entry                what gpu-ami finds by the entry point `gpu_ami.regions`
region               the region from outside: up, down, status, console
server               the daemon of a region
control              the daemon's control socket
state                what a region keeps on disk; removes what a killed region left
loopback             its loopback addresses, and the services that a guest reaches
housekeeping         what takes disk space; removes what nothing needs
architectures        x86_64 and arm64: their programs on this host, the packages that needs
debian               releases of Debian of which base images are made
host                 this machine: programs and packages that it lacks, free space on its disk, its Debian archive
api/                 the HTTP API, and the conditions under which it behaves as AWS does
backends/            moto's models, where they answer otherwise than AWS
images/              base images and AMIs
machines/            QEMU machines
mirror/              the package mirror
commands/            `gpu-ami region`, `gpu-ami rehearse`
rehearsal/           builds every recipe in a sandbox and checks its files
sandbox/             a base image entered without booting it
replicas/            data: replica packages and emulated distributions
conditions/          data: refusals, delays and limits
"""
