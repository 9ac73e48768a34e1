"""A replica's content laid out: trees, files, links, templates; uniform modes and times; a digest of its sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from localregion.mirror import staging
from localregion.mirror.table import SOURCE_DATE_EPOCH, Package, find_row

pytestmark = pytest.mark.usefixtures("mirror_table")


@pytest.fixture
def package(mirror_table: None) -> Package:
    row = find_row("packages", "tool-1", kind="deb", asked_by="the test")
    return Package("tool-1", "1.2.3-1+x2", "deb", "x86_64", row)


def test_a_row_is_laid_out_filled_in_and_uniform(package: Package, tmp_path: Path) -> None:
    staging.stage(package.row, package.values, tmp_path)
    assert (tmp_path / "etc/tool-1.conf").read_text() == "version=1.2.3 of 1.2 in ${version}\n"
    assert (tmp_path / "usr/bin/tool").readlink() == Path("/opt/tool/bin/tool")
    assert (tmp_path / "var/lib/tool").is_dir()
    paths = [path for path in tmp_path.rglob("*") if not path.is_symlink()]
    assert {path.stat().st_mode & 0o777 for path in paths} <= {0o755, 0o644}
    assert {int(path.stat().st_mtime) for path in paths} == {SOURCE_DATE_EPOCH}


def test_a_template_that_matches_no_file_is_named(package: Package, tmp_path: Path) -> None:
    package.row.entry["templates"] = ["opt/nothing/*"]
    try:
        with pytest.raises(CloudError, match=r"no file matches opt/nothing/\*"):
            staging.stage(package.row, package.values, tmp_path)
    finally:
        package.row.entry["templates"] = ["opt/tool/bin/*"]


def test_relations_are_of_the_package_s_kind_and_filled_in(package: Package) -> None:
    assert staging.relations(package, "depends") == ["python3 (>= 3.9)", "libtool (= 1.2.3-1+x2)"]
    assert staging.relations(package, "conflicts") == []
    summary, lines = staging.description(package)
    assert summary == "A tool of branch 1 (gpu-ami replica)"
    assert lines == [
        "says its version.",
        "Stands in for the package of this name: https://vendor.example/documentation",
    ]


def test_a_digest_follows_the_sources_and_their_mode(package: Package) -> None:
    before = staging.sources_digest(package.row)
    assert staging.sources_digest(package.row) == before
    program = package.row.folder / "tree/bin/tool"
    mode, text = program.stat().st_mode, program.read_text()
    try:
        program.chmod(mode ^ 0o111)
        other_mode = staging.sources_digest(package.row)
        program.chmod(mode)
        program.write_text(text + "# changed\n")
        assert len({before, other_mode, staging.sources_digest(package.row)}) == 3
    finally:
        program.write_text(text)
        program.chmod(mode)


def test_a_library_s_digest_has_what_it_includes_from_beside_it(tmp_path: Path) -> None:
    """Else a mirror keeps the library of before a change."""
    for folder in ("mine", "shared", "other"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "part.c").touch()
    source = tmp_path / "mine/library.c"
    source.write_text('#include "../shared/part.c"\n#include "part.c"\n', encoding="utf-8")
    assert staging.compiled_folders(source) == {tmp_path / "mine", tmp_path / "shared"}
