"""The sources of a plan: checks, before anything is launched, that they have what it names, signed by the planned key.

errors           errors of a source: wrong, missing, unreachable
cache            HTTP responses in the user's cache folder
client           HTTP: deadlines, limits, proxies, TLS
compression      gzip, xz and zstd, with a limit on the decompressed size
keys             OpenPGP keys and signatures
rpm_versions     order of rpm versions
index            packages of a repository: planned, similar, newer versions
repository       a repository as a plan names it, and its index
apt              apt repositories
dnf              dnf repositories
dependencies     dependencies inside a repository, at the planned versions
git              tags of git repositories
planned          the packages, files and tags that a plan needs
survey           checks all sources of a plan at the same time
table            a survey as a table
refresh          rows for variables/facts from the vendors' metadata
facts_text       adds rows to the text of a table of facts
"""

from gpu_ami.sources.apt import index_files
from gpu_ami.sources.cache import Cache
from gpu_ami.sources.client import Client, Limits, mirrored
from gpu_ami.sources.errors import SourceError
from gpu_ami.sources.index import Index, Package
from gpu_ami.sources.refresh import Refreshed, refresh
from gpu_ami.sources.repository import Repository
from gpu_ami.sources.survey import ResolveAmi, Survey, read_repository, require, survey
from gpu_ami.sources.table import as_table

__all__ = [
    "Cache",
    "Client",
    "Index",
    "Limits",
    "Package",
    "Refreshed",
    "Repository",
    "ResolveAmi",
    "SourceError",
    "Survey",
    "as_table",
    "index_files",
    "mirrored",
    "read_repository",
    "refresh",
    "require",
    "survey",
]
