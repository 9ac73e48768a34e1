"""Package repositories: their signed indexes, and what a package in them needs.

reading        a repository's key and index, read once for each client
repository     a repository as a plan names it, and its index
apt            apt repositories
dnf            dnf repositories
compression    gzip, xz and zstd, with a limit on the decompressed size
keys           OpenPGP keys and signatures
index          packages of a repository: planned, similar, newer versions by rpm's or dpkg's order; their dependencies
"""

from gpu_ami.sources.repositories.apt import index_files
from gpu_ami.sources.repositories.index import Index, Package, judge
from gpu_ami.sources.repositories.keys import Key, require_issuer
from gpu_ami.sources.repositories.reading import key_at, read_index, read_repository, repository_key
from gpu_ami.sources.repositories.repository import ReadRepository, Repository

__all__ = [
    "Index",
    "Key",
    "Package",
    "ReadRepository",
    "Repository",
    "index_files",
    "judge",
    "key_at",
    "read_index",
    "read_repository",
    "repository_key",
    "require_issuer",
]
