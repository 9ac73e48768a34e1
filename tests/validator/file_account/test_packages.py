"""Packages: planned ones and what they require are explained; others, and changed versions, are not."""

from __future__ import annotations

from validator.file_account import (
    Footprint,
    Inventory,
    Package,
    account_packages,
    packages,
    plan_variables,
    planned_names,
)


def installed(*packages: Package) -> Inventory:
    return Inventory({}, {package.name: package for package in packages})


BASE = installed(Package("libc6", "2.36"), Package("curl", "7"))


def test_planned_packages_and_their_requirements() -> None:
    image = installed(
        *BASE.packages.values(),
        Package("cuda-nvcc", "12", depends=(("gcc", "clang"), ("virtual",))),
        Package("gcc", "12"),
        Package("real", "1", provides=("virtual",)),
    )
    account = account_packages(image, BASE, ["cuda-*"], [])
    assert (account.explained, account.findings) == ({"cuda-nvcc", "gcc", "real"}, ())


def test_an_extra_a_changed_and_a_removed_package() -> None:
    image = installed(Package("libc6", "2.35"), Package("htop", "3"))
    account = account_packages(image, BASE, ["cuda"], [])
    assert account.findings == (
        "htop 3 (new: neither planned nor required by a planned package)",
        "libc6 2.35 (base 2.36: nothing planned requires it)",
        "curl 7 (removed)",
    )


def test_a_role_declares_packages() -> None:
    image = installed(Package("libc6", "2.36"), Package("efa", "2"))
    footprint = Footprint("efa", packages=("efa*",), removed_packages=("curl",))
    assert account_packages(image, BASE, [], [footprint]).findings == ()


def test_imported_keys_are_the_planned_ones() -> None:
    plan = {"cuda": {"repository": {"url": "https://x", "key_fingerprint": "EB693B3035CD5710E231E123A4B469634BF7CEFA"}}}
    image = installed(*BASE.packages.values(), Package("gpg-pubkey-4bf7cefa", "1"), Package("gpg-pubkey-deadbeef", "1"))
    assert account_packages(image, BASE, planned_names(plan), []).findings == (
        "gpg-pubkey-deadbeef 1 (new: neither planned nor required by a planned package)",
    )


def test_names_of_a_plan() -> None:
    plan = {
        "nvidia_driver": {"package": "nvidia-open-dkms", "packages": {"nvidia-persistenced": "550"}},
        "cuda": {"version": "12", "packages": {"cuda-toolkit-12-8": "12.8.1-1"}},
        "lustre": {"package": "lustre-client-modules-{release}"},
        "image": "x",
    }
    assert planned_names(plan) == {
        "nvidia-open-dkms", "nvidia-persistenced", "cuda-toolkit-12-8", "lustre-client-modules-*",
    }  # fmt: skip


def test_variables_of_a_plan() -> None:
    plan = {
        "cuda": {"repository": {"url": "https://a.example/repos/x86_64/", "suite": "./", "key_fingerprint": "ab12"}},
        "efa": {"key_fingerprint": "cd34"},
        "roles": ["fabric_manager"],
        "os": {"ssh_user": "admin"},
    }
    assert plan_variables(plan) == {
        "source": ["a.example-repos-x86-64"],
        "key": ["AB12", "CD34"],
        "role": ["fabric-manager"],
        "login": ["admin"],
        "grid": [],
        "gridlib": [],
    }


def test_files_of_the_grid_driver_are_explained_only_where_it_is_planned() -> None:
    variables = plan_variables({"nvidia_driver": {"source": "grid"}})
    assert variables["grid"] == ["nvidia"] and "libcuda" in variables["gridlib"]
    assert plan_variables({"nvidia_driver": {"source": "distribution"}})["grid"] == []


def test_source_names_are_those_of_the_role() -> None:
    assert packages.repository_slug("http://169.254.169.252/apt.repos.intel.com/mkl/", "all") == (
        "169.254.169.252-apt.repos.intel.com-mkl-all"
    )
