"""Debian's archive, of which base images are made and some replicas have files: where it is."""

from __future__ import annotations

import os

from gpu_ami.errors import MissingTool
from gpu_ami.process import find_tool, run

SUITE = "bookworm"


def proxies() -> dict[str, str]:
    """What a download needs of our environment."""
    return {key: os.environ[key] for key in ("http_proxy", "https_proxy", "no_proxy") if key in os.environ}


def archive_lines() -> list[str]:
    """sources.list lines for bookworm: the mirror that this host's own apt uses; none: mmdebstrap's default."""
    try:
        apt_get = find_tool("apt-get", package="apt")
    except MissingTool:
        return []
    form = "$(ORIGIN)|$(CODENAME)|$(REPO_URI)|$(COMPONENT)"
    listed = run([apt_get, "indextargets", "--format", form, "Created-By: Packages"], timeout=30, check=False)
    rows = [line.split("|") for line in listed.stdout.splitlines()]
    lines = [
        f"deb {uri} {codename} {component}"
        for origin, codename, uri, component in (row for row in rows if len(row) == 4)
        if origin == "Debian" and component == "main" and codename.partition("-")[0] == SUITE
    ]
    return lines if any(f" {SUITE} main" in line for line in lines) else []


def archive_sources() -> list[str]:
    """`archive_lines`, or Debian's own address where this host names none."""
    return archive_lines() or [f"deb http://deb.debian.org/debian {SUITE} main"]
