"""The control plane of a cluster: its certificates and options, and what is said of a part that does not start."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from localregion.eks.control_plane import ControlPlane
from localregion.eks.credentials import Authority
from localregion.kubernetes import Build

NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")


def a_plane(tmp_path: Path, **scripts: str) -> ControlPlane:
    """Its programs are scripts: they wait, unless one is given."""
    folder = tmp_path / "build"
    folder.mkdir()
    for name in NAMES:
        program = folder / name
        program.write_text(f"#!/bin/sh\n{scripts.get(name.replace('-', '_'), 'exec sleep 60')}\n")
        program.chmod(0o755)
    return ControlPlane(Build("1.35.4", folder), tmp_path / "c", ["169.254.169.250"], "http://127.0.0.1:1/review")


def test_a_part_that_ends_is_named_with_its_last_words(tmp_path: Path) -> None:
    plane = a_plane(tmp_path, etcd="echo 'no space left' >&2; exit 3")
    with pytest.raises(CloudError, match=r"etcd ended with 3: no space left"):
        plane.start()
    plane.stop()
    assert not (tmp_path / "c").exists()


def test_programs_that_are_missing(tmp_path: Path) -> None:
    plane = a_plane(tmp_path)
    (tmp_path / "build/etcd").unlink()
    with pytest.raises(CloudError, match="etcd is not installed"):
        plane.start()
    plane.stop()


def test_the_end_of_a_cluster_that_starts_leaves_nothing(tmp_path: Path) -> None:
    import threading

    plane, errors = a_plane(tmp_path), list[CloudError]()

    def start() -> None:
        try:
            plane.start()
        except CloudError as error:
            errors.append(error)

    starting = threading.Thread(target=start)
    starting.start()
    plane.stop()
    starting.join(30)
    assert not (tmp_path / "c").exists() and "deleted while it started" in str(errors[0])


def test_a_cluster_that_was_deleted_before_it_started_makes_nothing(tmp_path: Path) -> None:
    plane = a_plane(tmp_path)
    plane.stop()
    with pytest.raises(CloudError, match="deleted while it started"):
        plane.start()
    assert not (tmp_path / "c").exists()


def test_only_its_own_authority_is_trusted_and_keys_are_private(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "a")
    authority.issue("server", "kube-apiserver", ["g"], ["127.0.0.1", "localhost"])
    authority.issue_signing_key("accounts")
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    assert [row["subject"] for row in context.get_ca_certs()] == [((("commonName", "a"),),)]
    assert {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == dict.fromkeys(
        ("ca.crt", "ca.key", "server.crt", "server.key", "accounts.key", "accounts.pub"), 0o600
    )


def test_everything_listens_on_loopback_and_etcd_asks_for_a_certificate(tmp_path: Path) -> None:
    plane = a_plane(
        tmp_path, kube_apiserver='printf "%s\\n" "$@"; exit 1', etcd='printf "%s\\n" "$@" >&2; exec sleep 60'
    )
    with pytest.raises(CloudError):
        plane.start()
    etcd, server = plane.tail("etcd", 99), plane.tail("kube-apiserver", 99)
    plane.stop()
    assert "--client-cert-auth" in etcd and "https://127.0.0.1:" in etcd and "0.0.0.0" not in etcd + server
    assert "--authorization-mode=Node,RBAC" in server
