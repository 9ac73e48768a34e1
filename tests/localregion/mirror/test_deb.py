"""Replicas as .debs: the same bytes every time, the real package's name, version and paths, everything filled in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.process import run
from localregion.mirror import deb as packages
from localregion.mirror import table as replica_table
from localregion.mirror.table import Package, find_row

from .replica_samples import TABLE, write_table

pytestmark = pytest.mark.slow


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_table(tmp_path / "replicas")
    monkeypatch.setattr(replica_table, "REPLICAS", folder)
    return folder


def _package(name: str, version: str, kind: str = "deb") -> Package:
    return Package(name, version, kind, "x86_64", find_row("packages", name, kind=kind, asked_by="the test"))


def _files(deb: Path) -> dict[str, str]:
    """path → mode and owner, as dpkg-deb lists them."""
    listing = run(["dpkg-deb", "--contents", deb], timeout=30).stdout.splitlines()
    return {line.split()[5].removeprefix("."): " ".join(line.split()[:2]) for line in listing}


def test_same_sources_make_the_same_bytes(tmp_path: Path, table: Path) -> None:
    made = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        made.append(packages.build(_package("tool-1", "1.2.3-1"), tmp_path / name).read_bytes())
    assert made[0] == made[1]


def test_package_is_what_its_row_says(tmp_path: Path, table: Path) -> None:
    deb = packages.build(_package("tool-1", "1:1.2.3-1+x2"), tmp_path)
    assert deb.name == "tool-1_1.2.3-1+x2_amd64.deb"
    files = _files(deb)
    assert files["/opt/tool/bin/tool"] == "-rwxr-xr-x root/root"
    assert files["/etc/tool-1.conf"] == "-rw-r--r-- root/root"
    assert {"/usr/bin/tool", "/var/lib/tool/"} <= files.keys()
    assert not any("__pycache__" in path for path in files)
    wanted = {
        "Package": "tool-1",
        "Version": "1:1.2.3-1+x2",
        "Architecture": "amd64",
        "Depends": "python3 (>= 3.9), libtool (= 1:1.2.3-1+x2)",
        "Provides": "tool",
        "Gpu-Ami-Replica": "yes",
    }
    assert {field: packages.control_field(deb, field) for field in wanted} == wanted
    described = packages.control_field(deb, "Description")
    assert "A tool of branch 1 (gpu-ami replica)" in described and "https://vendor.example/documentation" in described


def test_placeholders_are_filled_in_everywhere(tmp_path: Path, table: Path) -> None:
    run(
        ["dpkg-deb", "--raw-extract", packages.build(_package("tool-1", "1.2.3-1"), tmp_path), tmp_path / "x"],
        timeout=30,
    )
    tree = tmp_path / "x"
    assert (tree / "opt/tool/bin/tool").read_text() == "#!/bin/sh\necho 1.2.3-1 tool-1 @UNKNOWN@\n"
    assert (tree / "etc/tool-1.conf").read_text() == "version=1.2.3 of 1.2 in ${version}\n"
    assert "50% of tool-1 1.2.3" in (tree / "DEBIAN/postinst").read_text()
    assert (tree / "DEBIAN/conffiles").read_text() == "/etc/tool-1.conf\n"


def test_library_is_found_by_its_soname(tmp_path: Path, table: Path) -> None:
    import ctypes

    deb = packages.build(_package("libtool", "2:4.5-1"), tmp_path)
    run(["dpkg-deb", "--raw-extract", deb, tmp_path / "x"], timeout=30)
    library = tmp_path / "x/usr/lib/x86_64-linux-gnu/libtool.so.4.5"
    assert "[libtool.so.4]" in run(["readelf", "-d", library], timeout=30).stdout
    loaded = ctypes.CDLL(str(library))
    loaded.tool_version.restype = ctypes.c_char_p
    assert loaded.tool_version() == b"4.5"
    assert (tmp_path / "x/DEBIAN/triggers").read_text() == "activate-noawait ldconfig\n"


def test_template_that_is_not_there_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_table(tmp_path / "replicas", TABLE.replace("opt/tool/bin/*", "opt/tool/sbin/*"))
    monkeypatch.setattr(replica_table, "REPLICAS", folder)
    with pytest.raises(CloudError, match=r"replica tool-.* no file matches opt/tool/sbin"):
        packages.build(_package("tool-1", "1.2.3-1"), tmp_path)


def test_package_that_dpkg_refuses_is_an_error(tmp_path: Path, table: Path) -> None:
    with pytest.raises(CloudError, match="dpkg-deb"):
        packages.build(replace(_package("agent", "1-1"), name="Not A Name"), tmp_path)


def test_file_that_is_no_package_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.deb").write_text("no archive")
    with pytest.raises(CloudError, match="dpkg-deb"):
        packages.control_field(tmp_path / "x.deb", "Package")
