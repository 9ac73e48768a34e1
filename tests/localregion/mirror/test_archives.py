"""Archives of replicas: the digest that a plan has is that of the file which the mirror serves."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from localregion.mirror import archives
from localregion.mirror.archives import Archive
from localregion.mirror.table import find_row


@pytest.mark.slow  # compiles what the installer holds
def test_a_plan_has_the_digest_of_the_installer_that_is_served(tmp_path: Path) -> None:
    url, version = "https://x/NVIDIA-Linux-x86_64-580.65.06-grid-aws.run", "580.65.06"
    row = find_row("archives", url.rpartition("/")[2], asked_by="a test")
    values = archives.values_of(row, url.rpartition("/")[2], {"version": version, "contents": {}})
    served = Archive(row, values, frozenset({"x86_64"}), frozenset({"rpm"}))
    file = archives.write(served, tmp_path / "served", lambda _: [])
    assert archives.digest(url, version) == hashlib.sha256(file.read_bytes()).hexdigest()
    assert archives.digest("https://x/of-the-vendor.run", "1") is None
