"""HTTP to the vendors' servers.

client   deadlines, limits, proxies, TLS; responses in the user's cache folder; errors of a source
"""

from gpu_ami.sources.http.client import Cache, Client, Limits, NotThere, SourceError, Unreachable, mirrored

__all__ = ["Cache", "Client", "Limits", "NotThere", "SourceError", "Unreachable", "mirrored"]
