"""Where a host is, and which host keys are accepted.

Options of a host in OpenSSH's client configuration: which are read, and which a URL overrides.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.transport import backend
from validator.transport.errors import HostKeyChanged
from validator.transport.target import Target, check_host_key, configured, parse_url

KEY, OTHER_KEY = "ssh-ed25519 AAAAfirst", "ssh-ed25519 AAAAother"


def test_names() -> None:
    assert (Target("h").name, Target("h").known_name) == ("root@h:22", "h")
    target = Target("fe80::1", port=2222, user="admin")
    assert (target.name, target.known_name) == ("admin@fe80::1:2222", "[fe80::1]:2222")


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("10.0.0.1", Target("10.0.0.1")),
        ("admin@10.0.0.1", Target("10.0.0.1", user="admin")),
        ("ssh://admin@host:2222", Target("host", port=2222, user="admin")),
        ("ssh://admin@host/", Target("host", user="admin")),
        ("admin@[fe80::1]:2222", Target("fe80::1", port=2222, user="admin")),
        ("ssh://a%40b:p%3Aw@host", Target("host", user="a@b", password="p:w")),
    ],
)
def test_url(url: str, target: Target) -> None:
    assert parse_url(url) == target


def test_options_override_the_url() -> None:
    assert parse_url("admin@host", user="root", connect_timeout=1.0) == Target("host", connect_timeout=1.0)


@pytest.mark.parametrize("url", ["http://host", "ssh://", "ssh://host/etc", "", "host:port"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"port|not ssh://"):
        parse_url(url)


def test_first_key_is_recorded(tmp_path: Path) -> None:
    known = tmp_path / "new" / "known_hosts"
    check_host_key(Target("h", port=2222, known_hosts=known), KEY, [])
    assert known.read_text() == f"[h]:2222 {KEY}\n"
    check_host_key(Target("g", known_hosts=known), OTHER_KEY, [])
    assert known.read_text() == f"[h]:2222 {KEY}\ng {OTHER_KEY}\n"


def test_recorded_key_is_accepted_and_not_written_again(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    check_host_key(Target("h", known_hosts=known), KEY, [OTHER_KEY, f"{KEY} a comment"])
    assert not known.exists()


def test_another_key_is_refused(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    with pytest.raises(HostKeyChanged, match=rf"\(ssh-ed25519\) differs from the one in {known}"):
        check_host_key(Target("h", known_hosts=known), OTHER_KEY, [KEY])
    with pytest.raises(HostKeyChanged, match="differs from the pinned one"):
        check_host_key(Target("h", host_key=KEY), OTHER_KEY, [KEY])
    assert not known.exists()


def test_strict_accepts_no_new_host(tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    with pytest.raises(HostKeyChanged, match=f"root@h:22 is not in {known}; add its host key there"):
        check_host_key(Target("h", known_hosts=known, host_key="strict"), KEY, [])
    assert not known.exists()


def test_targets_can_be_hashed() -> None:
    """pytest keys parametrized hosts by their hash."""
    target = Target("10.0.0.7", proxy_command="nc %h %p", proxy_environment={"AWS_PROFILE": "images"})
    assert target in {target: 1} and hash(target) == hash(Target("10.0.0.7", proxy_command="nc %h %p"))


CONFIG = "Host gpu\n  HostName 10.0.0.7\n  User admin\n  Port 2222\n  IdentityFile /keys/gpu\n"


def test_target_follows_the_ssh_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(CONFIG)
    target = backend.BatchBackend("gpu", ssh_config=str(config), timeout=3).link.target
    assert isinstance(target, Target)
    assert (target.name, target.key_file) == ("admin@10.0.0.7:2222", Path("/keys/gpu"))
    assert (target.connect_timeout, target.banner_timeout) == (3.0, 3.0)
    assert not target.agent and not target.search_keys  # a key is named: no other is tried


def test_url_overrides_the_ssh_configuration(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text(CONFIG)
    target = backend.BatchBackend("root@gpu:22", ssh_config=str(config), ssh_identity_file="/keys/mine").link.target
    assert isinstance(target, Target)
    assert (target.name, target.key_file) == ("root@10.0.0.7:22", Path("/keys/mine"))


def test_options_of_a_host(tmp_path: Path) -> None:
    config = tmp_path / "config"
    assert configured("gpu", config) == {}, "no such file"
    config.write_text(CONFIG)
    expected = {"hostname": "10.0.0.7", "user": "admin", "port": "2222", "identityfile": ["/keys/gpu"]}
    assert configured("gpu", config) == expected
    assert configured("other", config) == {"hostname": "other", "identityfile": []}
