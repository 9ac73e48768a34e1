"""The package mirror: a signed tree that replaces the vendors' hosts.

mirror               builds, keeps and serves the tree for the plans that requested it; the vendor's own agent
content              what the tree holds
package_requests     what a plan requests from the mirror
table                the table of replicas (replicas/*/packages.yml)
pool                 built replicas by content digest
staging              files of one replica
debian_files         files of Debian's own packages, which some replicas have
debian_archive       Debian's archive, for what roles of a site install
deb                  Debian packages and apt repositories
rpm                  RPM packages and dnf repositories
archives             installer archives
git_repositories     git repositories
distribution_archive the part of an operating system's own archive that a plan needs
signing              the mirror's signing key
__main__             `python -m localregion.mirror`: builds a plan's replicas into a folder
"""

from localregion.mirror.archives import Archive
from localregion.mirror.content import resolve
from localregion.mirror.mirror import Mirror
from localregion.mirror.package_requests import packages, sections
from localregion.mirror.pool import Pool
from localregion.mirror.signing import signing_key
from localregion.mirror.staging import sources_digest
from localregion.mirror.table import Package, find_row, system_packages

__all__ = [
    "Archive",
    "Mirror",
    "Package",
    "Pool",
    "find_row",
    "packages",
    "resolve",
    "sections",
    "signing_key",
    "sources_digest",
    "system_packages",
]
