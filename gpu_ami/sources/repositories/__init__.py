"""Package repositories: their signed indexes, and what a package in them needs.

repository     a repository as a plan names it, and its index
keys           OpenPGP keys and signatures
index          packages of a repository: planned, similar, newer by rpm's or dpkg's order; compressed indexes
signed_index   a repository's key and signed index, of apt or dnf, read once for each client
"""

from gpu_ami.sources.repositories.index import Index, Package, compare, judge
from gpu_ami.sources.repositories.keys import Key, require_issuer
from gpu_ami.sources.repositories.repository import ReadRepository, Repository
from gpu_ami.sources.repositories.signed_index import index_files, key_at, read_index, read_repository, repository_key

__all__ = [
    "Index",
    "Key",
    "Package",
    "ReadRepository",
    "Repository",
    "compare",
    "index_files",
    "judge",
    "key_at",
    "read_index",
    "read_repository",
    "repository_key",
    "require_issuer",
]
