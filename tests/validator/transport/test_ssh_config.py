"""Options of a host in OpenSSH's client configuration: which are read, and which a URL overrides."""

from __future__ import annotations

from pathlib import Path

from validator.transport import backend
from validator.transport.target import Target, configured

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
