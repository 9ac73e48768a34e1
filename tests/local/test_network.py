"""Loopback networks of the region."""

from __future__ import annotations

import socket

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.local import network
from gpu_ami.local.network import claim_network


def test_two_regions_get_two_networks() -> None:
    one, two = claim_network(), claim_network()
    with one.claim, two.claim:
        assert one.cidr != two.cidr
        assert one.cidr.startswith("127.")


def test_a_port_in_use_on_all_addresses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else listens on the preferred port: instances get the next one."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        taken = int(server.getsockname()[1])
        with socket.create_server(("127.0.0.1", 0)) as other:
            free = int(other.getsockname()[1])
        monkeypatch.setattr(network, "_SSH_PORTS", (taken, free))
        claimed = claim_network()
        with claimed.claim:
            assert claimed.ssh_port == free


def test_no_free_network_is_an_error_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        monkeypatch.setattr(network, "_SSH_PORTS", (int(server.getsockname()[1]),))
        with pytest.raises(CloudError, match="no free loopback network") as caught:
            claim_network()
    assert "gpu-ami region down" in caught.value.hint
