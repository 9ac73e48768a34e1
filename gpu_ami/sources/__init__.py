"""Sources: is everything that a plan names really there, signed by the planned key, before anything is launched?

errors           what keeps a source from answering as a plan expects
cache            answers kept in the user's cache folder
client           HTTP: deadlines, limits, proxies, TLS
compression      gzip, xz and zstd, with a limit of what they hold
keys             OpenPGP keys and signatures
rpm_versions     order of rpm versions
index            packages of a repository: there, near, newer
repository       a repository as a plan names it, and what was read of it
apt              apt repositories
dnf              dnf repositories
dependencies     dependencies inside a repository, at the planned versions
git              tags of git repositories
planned          what a plan asks of its sources
survey           asks all sources of a plan at the same time
table            a survey for people
refresh          rows for variables/facts from the vendors' metadata
facts_text       rows added to the text of a table
"""

from gpu_ami.sources.cache import Cache
from gpu_ami.sources.client import Client, mirrored
from gpu_ami.sources.refresh import Refreshed, refresh
from gpu_ami.sources.survey import ResolveAmi, Survey, require, survey
from gpu_ami.sources.table import as_table

__all__ = [
    "Cache",
    "Client",
    "Refreshed",
    "ResolveAmi",
    "Survey",
    "as_table",
    "mirrored",
    "refresh",
    "require",
    "survey",
]
