"""Files that give rights: found in one walk, in which the image's own directories are left out."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.scripted_host import table_host
from tests.validator.checks.conftest import Since
from validator.probes import rights
from validator.results import CheckRecord


def _run_below(tree: Path, kept: list[str], monkeypatch: pytest.MonkeyPatch) -> rights.Rights:
    """The real command, in a tree in place of the root."""
    asked: list[str] = []

    def run(host: object, command: str, **_options: object) -> str:
        text = command.replace("find / ", f"find {tree} ")
        for path in kept:
            text = text.replace(f"-path {path} ", f"-path {tree}{path} ").replace(
                f"-path {path})", f"-path {tree}{path})"
            )
        asked.append(text)
        done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True, timeout=60)
        return done.stdout.replace(f"{tree}/", "/")

    monkeypatch.setattr(rights, "output", run)
    found = rights.find(None, Since(tuple(kept)) if kept else None)
    assert len(asked) == 1
    return found


@pytest.mark.parametrize(("kept", "program"), [([], ["/usr/bin/a", "/srv/b"]), (["/usr"], ["/srv/b"])])
def test_walk_finds_each_kind(
    kept: list[str], program: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, mode in (
        ("usr/bin/a", 0o4755),
        ("srv/b", 0o2755),
        ("srv/c", 0o666),
        ("root/.ssh/authorized_keys2", 0o600),
    ):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
        file.chmod(mode)
    for name, mode in (("srv/open", 0o777), ("srv/sticky", 0o1777), ("srv/own", 0o755)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    (tmp_path / "srv/link").symlink_to("c")
    found = _run_below(tmp_path, kept, monkeypatch)
    assert sorted(found.setuid) == sorted(program)
    assert sorted(found.writable) == ["/srv/c", "/srv/open"]
    assert found.keys == ["/root/.ssh/authorized_keys2"] and found.kept == kept


def test_a_file_of_two_kinds_is_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "authorized_keys").write_text("")
    (tmp_path / "authorized_keys").chmod(0o4777)
    found = _run_below(tmp_path, [], monkeypatch)
    assert found.setuid == found.writable == found.keys == ["/authorized_keys"]


def test_folders_in_which_every_user_may_write_are_left_out() -> None:
    host = table_host({"find*": "w/tmp\nw/tmp/x\nw/dev/null\nw/var/tmp/y\nw/tmpx\nw/var/tmp2/y\n"})
    assert rights.find(host, None).writable == ["/tmpx", "/var/tmp2/y"]


@pytest.mark.parametrize(
    ("status", "errors", "is_read"),
    [
        (1, "find: '/tmp/ansible_payload_x': No such file or directory\n", True),
        (1, "find: '/tmp/a': No such file or directory\nfind: '/b': Permission denied\n", False),
        (1, "", False),
        (127, "sh: 1: find: not found\n", False),
        (2, "find: '/tmp/a': No such file or directory\n", False),
    ],
)
def test_what_goes_while_find_walks_is_no_failure(status: int, errors: str, is_read: bool) -> None:
    """On a machine in service a temporary folder went: setuid programs and world-writable files were a FAIL."""
    host = table_host({"find*": (status, "s/usr/bin/su\n", errors)})
    if is_read:
        assert rights.find(host, None).setuid == ["/usr/bin/su"]
    else:
        with pytest.raises(pytest.fail.Exception, match=f"exited with status {status}"):
            rights.find(host, None)


def test_every_check_must_have_passed_on_the_image() -> None:
    assert rights.of_the_image(Since(("/usr", "/opt/a b"))) == ["/usr"]  # the other name is no plain pattern
    assert rights.of_the_image(Since(("/usr",), judged=False)) == [] and rights.of_the_image(None) == []

    class ButOne(Since):
        def passed(self, check: str) -> CheckRecord | None:
            return None if check == rights.CHECKS[1] else super().passed(check)

    assert rights.of_the_image(ButOne(("/usr",))) == []


def test_capabilities_are_asked_of_the_rest() -> None:
    host = table_host({"PATH*find / *-path /usr *getcap {} +*": "/srv/x cap_net_raw=ep\n\n"})
    assert rights.capabilities(host, Since(("/usr",))) == (["/srv/x cap_net_raw=ep"], ["/usr"])
    host = table_host({"PATH*getcap -r /usr /opt*": "/usr/bin/ping cap_net_raw=ep\n"})
    assert rights.capabilities(host, None) == (["/usr/bin/ping cap_net_raw=ep"], [])


@pytest.mark.skipif(os.geteuid() != 0, reason="sets capabilities")
def test_a_new_capability_changes_the_inode(tmp_path: Path) -> None:
    """So a directory with such a file is walked again."""
    file = tmp_path / "tool"
    file.write_text("")
    before = file.stat().st_ctime_ns
    os.setxattr(file, "security.capability", bytes.fromhex("0100000200200000000000000000000000000000"))
    assert file.stat().st_ctime_ns > before
