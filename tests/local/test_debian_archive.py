"""Where Debian's archive is."""

from __future__ import annotations

import pytest

from gpu_ami.local import debian_archive
from gpu_ami.process import Completed


def test_archive_is_the_hosts_own_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = (
        "Debian|bookworm|http://mirror.example/debian/|main\nDebian|bookworm-security|http://mirror.example/security/|main\n"
        "Debian|bookworm|http://mirror.example/debian/|contrib\nDebian|trixie|http://mirror.example/debian/|main\n"
        "Node|nodistro|http://other.example/|main\nhalf a line\n"
    )
    monkeypatch.setattr(debian_archive, "find_tool", lambda *_, **__: "apt-get")
    monkeypatch.setattr(debian_archive, "run", lambda *_, **__: Completed(("apt-get",), 0, shown, "", 0.0))
    assert debian_archive.archive_lines() == [
        "deb http://mirror.example/debian/ bookworm main",
        "deb http://mirror.example/security/ bookworm-security main",
    ]


def test_archive_of_a_host_that_is_not_bookworm_is_left_to_mmdebstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(debian_archive, "find_tool", lambda *_, **__: "apt-get")
    monkeypatch.setattr(debian_archive, "run", lambda *_, **__: Completed(("apt-get",), 100, "", "", 0.0))
    assert debian_archive.archive_lines() == []
