"""HTTP to the vendors' servers.

client   deadlines, limits, proxies, TLS
cache    responses in the user's cache folder
errors   errors of a source: wrong, missing, unreachable
"""

from gpu_ami.sources.http.cache import Cache
from gpu_ami.sources.http.client import Client, Limits, mirrored
from gpu_ami.sources.http.errors import NotThere, SourceError, Unreachable

__all__ = ["Cache", "Client", "Limits", "NotThere", "SourceError", "Unreachable", "mirrored"]
