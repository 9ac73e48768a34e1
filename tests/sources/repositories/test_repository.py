"""A repository as a plan names it."""

from dataclasses import replace

from gpu_ami.sources.repositories.repository import Repository, digest

REPOSITORY = Repository("deb", "https://vendor.example/", "./", (), "amd64", "https://vendor.example/key", "A" * 40)


def test_repository_without_suites_is_flat() -> None:
    assert REPOSITORY.is_flat and replace(REPOSITORY, suite="/").is_flat
    assert not replace(REPOSITORY, suite="jammy").is_flat


def test_digest_names_its_algorithm() -> None:
    assert digest(b"").startswith("sha256:e3b0c442")
