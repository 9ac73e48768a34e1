"""The sources of a plan: checks, before anything is launched, that they have what it names, signed by the planned key.

http             client with deadlines, limits, proxies, TLS; responses in the user's cache folder; errors of a source
repositories     a repository of apt or dnf as a plan names it: its key and its signed index
package_index    packages of a repository: planned, similar, newer by rpm's or dpkg's order; their dependencies
openpgp          OpenPGP keys and signatures
planned          the packages, files and tags that a plan needs; its kernel in the archive of its operating system
survey           checks all sources of a plan at the same time; a survey as a table
refresh          rows for variables/facts from the vendors' metadata
releases         releases that no package index names, git tags
vendor_pages     changelogs, listings and pages of vendors: what they say that the facts do not
table_text       changes to the text of a table of facts
"""

from gpu_ami.sources.http import Cache, Client, Limits, SourceError, mirrored
from gpu_ami.sources.package_index import Index, Package
from gpu_ami.sources.refresh import Proposal, Refreshed, refresh
from gpu_ami.sources.repositories import Repository, index_files, read_repository
from gpu_ami.sources.survey import ResolveAmi, Survey, SurveyDocument, as_table, require, require_verified, survey

__all__ = [
    "Cache",
    "Client",
    "Index",
    "Limits",
    "Package",
    "Proposal",
    "Refreshed",
    "Repository",
    "ResolveAmi",
    "SourceError",
    "Survey",
    "SurveyDocument",
    "as_table",
    "index_files",
    "mirrored",
    "read_repository",
    "refresh",
    "require",
    "require_verified",
    "survey",
]
