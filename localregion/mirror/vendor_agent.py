"""Downloads the vendor's CloudWatch agent, verifies its signature and keeps it in the home folder.

URL, key and fingerprint are in `variables/facts/cloudwatch_agent.yml`; an unverified package is not kept.
"""

from __future__ import annotations

import shutil
import tempfile
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from gpu_ami.errors import CloudError
from gpu_ami.process import find_tool, run
from gpu_ami.progress import Progress

_SECONDS = 30.0  # without any data
_CHUNK = 1 << 20
_PACKAGE = "amazon-cloudwatch-agent.deb"


def download_agent(home: Path, facts: Mapping[str, object], progress: Progress) -> Path:
    """The vendor's newest .deb for amd64, from the home if it was fetched before.

    facts: `base_url`, `key_url`, `key_fingerprint`. CloudError: not reachable, another key, or a bad signature.
    """
    kept = home / "vendor" / _PACKAGE
    if kept.exists():
        return kept
    kept.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    url = f"{facts['base_url']}/debian/amd64/latest/{_PACKAGE}"
    with progress.stage(f"download {url}"), tempfile.TemporaryDirectory(dir=kept.parent) as work:
        folder = Path(work)
        for name, source in ((_PACKAGE, url), (f"{_PACKAGE}.sig", f"{url}.sig"), ("key", str(facts["key_url"]))):
            _fetch(source, folder / name)
        _verify(folder, str(facts["key_fingerprint"]), url)
        (folder / f"{_PACKAGE}.sig").replace(kept.with_name(f"{_PACKAGE}.sig"))
        (folder / _PACKAGE).replace(kept)
    return kept


def _fetch(url: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as answer, path.open("wb") as file:
            shutil.copyfileobj(answer, file, _CHUNK)
            length = answer.headers.get("Content-Length")
    except (urllib.error.URLError, OSError) as error:
        hint = "fetch it elsewhere and give --agent-package FILE, or leave the option out: a replica then stands in"
        raise CloudError(f"{url}: {getattr(error, 'reason', error)}", hint=hint) from error
    if length is not None and path.stat().st_size != int(length):
        raise CloudError(
            f"{url}: incomplete download: expected {length} bytes, got {path.stat().st_size}", hint="try again"
        )


def _verify(folder: Path, fingerprint: str, url: str) -> None:
    """The key is the one that the facts name, and it has signed the package."""
    gpgv, ring = find_tool("gpgv", package="gpgv"), folder / "ring.gpg"
    # gpg's home needs a short path, which the state directory may not have; public keys need no agent.
    with tempfile.TemporaryDirectory(prefix="gpu-ami-") as home:
        gpg = [find_tool("gpg", package="gnupg"), "--homedir", home, "--batch", "--quiet", "--no-autostart"]
        shown = run([*gpg, "--with-colons", "--show-keys", folder / "key"], timeout=60, check=False).stdout
        fingerprints = [line.split(":")[9] for line in shown.splitlines() if line.startswith("fpr:")]
        if fingerprint not in fingerprints[:1]:
            raise CloudError(f"{url}: signed by key {', '.join(fingerprints) or 'none'}, expected {fingerprint}")
        run([*gpg, "--import", folder / "key"], timeout=60)
        run([*gpg, "--output", ring, "--export", fingerprint], timeout=60)
    done = run([gpgv, "--keyring", ring, folder / f"{_PACKAGE}.sig", folder / _PACKAGE], timeout=120, check=False)
    if done.returncode != 0:
        raise CloudError(f"{url}: bad signature", details=done.stderr.splitlines()[-3:])
