"""Variables of the caller that are left out: by them a program or a setting would take part that nobody named.

SECURITY.md says which others the caller is trusted with: credentials, proxies, PATH, HOME. `process.clean_environment`
gives no child a variable of this table. Those that put code into gpu-ami itself count from its first instruction on:
`prepare` starts it again without them.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import tempfile
from collections.abc import Callable, MutableMapping
from pathlib import Path

from gpu_ami.errors import UsageError

# Code in gpu-ami's own process: of the dynamic loader, glibc's converters, OpenSSL's providers, Python.
_OF_THIS_PROCESS = re.compile(
    r"LD_(?!LIBRARY_PATH$)\w+|GCONV_PATH|LOCPATH|OPENSSL_(CONF|ENGINES|MODULES)"
    r"|PYTHON(?!UNBUFFERED$|DONTWRITEBYTECODE$|IOENCODING$|UTF8$|HASHSEED$|FAULTHANDLER$|NOUSERSITE$|SAFEPATH$)\w+"
)
# Programs and settings of those that it starts. Of Packer's, its program, plugins, cache and token stay; those of HCP
# Packer send a build's data to a registry, and add provisioners to it.
_OF_BUILDS = re.compile(
    r"ANSIBLE_\w+|PKR_VAR_.+|HCP_PACKER_\w+|PACKER_(?!PLUGIN_PATH$|CACHE_DIR$|GITHUB_API_TOKEN$)\w+"
)
_OF_OTHERS = re.compile(r"GIT_\w+|BASH_(ENV|FUNC_.+)|SHELLOPTS|BASHOPTS|PS4|PERL5(DB|LIB|OPT)|NODE_OPTIONS")
_NOTED = "GPU_AMI_LEFT_OUT"  # names, for the run that `prepare` starts
_LIBRARIES = "LD_LIBRARY_PATH"
_OWN = tuple(Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix))


def is_left_out(name: str) -> bool:
    """Whether no program that gpu-ami starts gets this variable of the caller."""
    return any(names.fullmatch(name) for names in (_OF_THIS_PROCESS, _OF_BUILDS, _OF_OTHERS))


def note() -> str:
    """A line that names those that somebody may count on, such as ANSIBLE_CONFIG; "" where there are none."""
    names = {*filter(_OF_BUILDS.fullmatch, os.environ), *os.environ.get(_NOTED, "").split()}
    return f"left out of the caller's environment: {', '.join(sorted(names))}" if names else ""


def prepare() -> None:
    """Starts this program again where variables put code into it. UsageError: TMPDIR is everybody's."""
    kept = {name: value for name, value in os.environ.items() if not _OF_THIS_PROCESS.fullmatch(name)}
    # A Python of another place than the system's may need it to find its own library.
    _keep_folders(kept, _LIBRARIES, lambda folder: any(folder.resolve().is_relative_to(own) for own in _OWN))
    if left_out := [name for name, value in os.environ.items() if kept.get(name) != value]:
        os.execve(sys.executable, sys.orig_argv, kept | {_NOTED: " ".join(left_out)})
    _keep_folders(os.environ, "PATH", Path.is_absolute)
    _require_own_temporary_folder()


def _keep_folders(variables: MutableMapping[str, str], name: str, keep: Callable[[Path], bool]) -> None:
    """Leaves other folders out of a variable that lists some: an empty name is the working folder."""
    if name in variables:
        kept = [entry for entry in variables[name].split(os.pathsep) if entry and keep(Path(entry))]
        variables[name] = os.pathsep.join(kept)


def _require_own_temporary_folder() -> None:
    """UsageError: in the temporary folder, another user could put files of theirs in the place of ours."""
    folder = tempfile.gettempdir()
    mode = os.stat(folder).st_mode  # noqa: PTH116
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        hint = f"set TMPDIR to a folder of your own, or: chmod +t {folder}"
        raise UsageError(
            f"{folder}: every user can rename other users' files in it (mode {mode & 0o7777:o})", hint=hint
        )
