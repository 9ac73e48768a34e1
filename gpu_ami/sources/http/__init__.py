"""HTTP to the vendors' servers.

client   deadlines, limits, proxies, TLS
cache    responses in the user's cache folder; errors of a source
"""

from gpu_ami.sources.http.cache import Cache, NotThere, SourceError, Unreachable
from gpu_ami.sources.http.client import Client, Limits, mirrored

__all__ = ["Cache", "Client", "Limits", "NotThere", "SourceError", "Unreachable", "mirrored"]
