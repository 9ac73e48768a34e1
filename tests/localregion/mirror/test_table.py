"""The table of the replicas: what a name matches, what comes with it, and the tables that are committed."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path

import pytest
import yaml

from gpu_ami.errors import UsageError
from localregion.mirror import table as replica_table
from localregion.mirror.content import resolve
from localregion.mirror.package_requests import packages, sections
from localregion.mirror.table import REPLICAS, Package, find_row, load_rows, with_related

from .replica_samples import TABLE, write_table


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = write_table(tmp_path / "replicas")
    monkeypatch.setattr(replica_table, "REPLICAS", folder)
    return folder


def _package(name: str, version: str, kind: str = "deb", architecture: str = "x86_64") -> Package:
    return Package(name, version, kind, architecture, find_row("packages", name, kind=kind, asked_by="the test"))


@pytest.mark.parametrize(
    ("full_version", "epoch", "version", "release", "deb", "rpm"),
    [
        ("1.2.3-1", "", "1.2.3", "1", "agent_1.2.3-1_amd64.deb", "agent-1.2.3-1.x86_64.rpm"),
        ("1:4.4.2", "1", "4.4.2", "", "agent_4.4.2_amd64.deb", "agent-4.4.2-1.x86_64.rpm"),
        ("2.21.5-1+cuda12.4", "", "2.21.5", "1+cuda12.4", "agent_2.21.5-1+cuda12.4_amd64.deb", None),
        ("2020.0-088", "", "2020.0", "088", "agent_2020.0-088_amd64.deb", "agent-2020.0-088.x86_64.rpm"),
        ("3:580.1-1.amzn2023", "3", "580.1", "1.amzn2023", None, "agent-580.1-1.amzn2023.x86_64.rpm"),
    ],
)
def test_versions_come_apart(
    table: Path, full_version: str, epoch: str, version: str, release: str, deb: str | None, rpm: str | None
) -> None:
    package = _package("agent", full_version)
    assert (package.epoch, package.version, package.release) == (epoch, version, release)
    assert deb in (None, package.file_name)
    assert rpm in (None, _package("agent", full_version, "rpm").file_name)


def test_architectures_have_each_kinds_name(table: Path) -> None:
    assert _package("agent", "1-1", architecture="arm64").file_name == "agent_1-1_arm64.deb"
    assert _package("agent", "1-1", "rpm", "arm64").file_name == "agent-1-1.aarch64.rpm"


def test_row_brings_packages_and_other_versions_of_the_branch(table: Path) -> None:
    found = [f"{one.name}={one.full_version}" for one in with_related([_package("tool-1", "3:1.2.3-1+x2")])]
    assert found == [
        "tool-1=3:1.2.2-1+x2",  # also; 2.0.0 is another branch's
        "tool-1=3:1.2.3-1+x2",
        "tool-data=3:1.2.2-1+x2",
        "tool-data=3:1.2.3-1+x2",
        "tool-extra=1.2.2-9",
        "tool-extra=1.2.3-9",
    ]


@pytest.mark.parametrize(
    ("version", "later"),
    [("580.178.04", "580.178.05"), ("580.178.99", "580.178.100"), ("3.2.1", "3.2.2"), ("1.6.20~ds1", "1.6.20~ds2")],
)
def test_later_version_follows(version: str, later: str) -> None:
    assert replica_table.later_version(version) == later


def test_vendor_publishes_one_later_driver_with_all_its_parts() -> None:
    """As repositories do after a build: an image that does not hold its packages is refused an upgrade or takes it."""
    related = with_related([_package("kmod-nvidia-open-dkms", "580.178.04-1.amzn2023", "rpm")])
    later = {one.name for one in related if one.full_version == "580.178.05-1.amzn2023"}
    assert later == {"kmod-nvidia-open-dkms", "nvidia-kmod-common", "nvidia-modprobe"}
    assert not [one for one in related if one.version == "580.178.06"]
    assert [one.full_version for one in related if one.name == "dkms"] == ["3.4.1-1.amzn2023"]


@pytest.mark.parametrize(
    ("recipe", "expected"),
    [
        ("al2023-compute", {f"kernel6.12{part}=6.12.999-1.amzn2023" for part in ("", "-devel", "-headers")}),
        ("debian12-gpu", {f"linux-{part}-cloud-amd64=6.1.999-1" for part in ("image", "headers")}),
        ("debian13-distribution", {f"linux-{part}-cloud-amd64=6.12.999-1" for part in ("image", "headers")}),
    ],
)
def test_system_publishes_a_later_kernel(recipe: str, expected: set[str]) -> None:
    lock = json.loads((_LOCKS / f"{recipe}.json").read_text(encoding="utf-8"))
    system = sections(lock["plan"])[0]
    assert expected <= {f"{one.name}={one.full_version}" for one in packages(system)}


def test_name_without_a_row_is_named_with_who_asks_and_the_table(table: Path) -> None:
    with pytest.raises(UsageError) as error:
        find_row("packages", "cuda-toolkit-99", kind="deb", asked_by="plan key cuda")
    text = str(error.value)
    assert "no replica of the deb package cuda-toolkit-99, for which plan key cuda asks" in text
    assert f"{table}/*/packages.yml" in text


def test_name_with_two_rows_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    twice = TABLE.replace("  - name: libtool\n", "  - name: ag.*\n", 1)
    monkeypatch.setattr(replica_table, "REPLICAS", write_table(tmp_path / "replicas", twice))
    with pytest.raises(UsageError, match=r"deb package agent \(the test\) matches 2 rows"):
        find_row("packages", "agent", kind="deb", asked_by="the test")


def test_row_may_be_for_one_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only = TABLE.replace("  - name: agent\n", "  - name: agent\n    kind: rpm\n")
    monkeypatch.setattr(replica_table, "REPLICAS", write_table(tmp_path / "replicas", only))
    assert find_row("packages", "agent", kind="rpm", asked_by="the test").entry["kind"] == "rpm"
    with pytest.raises(UsageError, match="no replica of the deb package agent"):
        find_row("packages", "agent", kind="deb", asked_by="the test")


@pytest.mark.parametrize(
    ("before", "after", "mistake"),
    [
        ("    revision:", "    revison:", "agent: revison: unknown key; did you mean revision?"),
        ("    does: has a soname\n", "", "libtool: does: missing"),
        ("name: libtool", "name: lib(tool", "name: not a regular expression"),
        ("{deb: [tool],", "{dep: [tool],", "provides.dep: unknown key; did you mean deb?"),
        ("git:\n", "gits:\n", "gits: unknown key; did you mean git?"),
        ("libtool=1.9-2", "libtool", "system.deb[1]: expected something like agent=1.2-3, got 'libtool'"),
        ("    revision:", "    kind: zip\n    revision:", "kind: expected one of deb, rpm, got 'zip'"),
    ],
)
def test_mistakes_in_a_table_are_named(tmp_path: Path, before: str, after: str, mistake: str) -> None:
    folder = write_table(tmp_path / "replicas", TABLE.replace(before, after, 1))
    with pytest.raises(UsageError) as error:
        load_rows(folder)
    assert mistake in str(error.value) and f"{folder}/family/packages.yml" in str(error.value)


def test_all_mistakes_of_a_table_are_named_at_once(tmp_path: Path) -> None:
    text = TABLE.replace("    revision:", "    revison:").replace('templates: ["opt/tool/bin/*"]', "templates: 5")
    folder = write_table(
        tmp_path / "replicas", text.replace("  - name: libtool\n", "  - name: libtool\n    kind: zip\n")
    )
    with pytest.raises(UsageError) as error:
        load_rows(folder)
    table = f"{folder}/family/packages.yml"
    assert error.value.message == "3 mistakes in the table of the replicas"
    assert [line.removeprefix(f"{table}: ").partition(";")[0] for line in error.value.details] == [
        "tool-(?P<branch>\\d+): templates: expected a list with at least one item, got 5",
        "libtool: kind: expected one of deb, rpm, got 'zip'",
        "agent: revison: unknown key",
    ]
    assert "revison: unknown key; did you mean revision?" in error.value.details[2]


@pytest.mark.parametrize(
    ("text", "message"), [("a: [", "not YAML"), ("- a", "(whole file): expected keys and values, got a list of 1")]
)
def test_file_that_is_no_table_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        load_rows(write_table(tmp_path / "replicas", text))
    assert f"packages.yml: {message}" in str(error.value)


def test_committed_tables_name_documentation_and_sources_that_exist() -> None:
    rows = load_rows(REPLICAS)
    assert {"nvidia_driver", "cloudwatch_agent"} <= {row.family for row in rows}
    for row in rows:
        assert re.match(r"https://\S+", row.documentation), f"{row.family}: {row.entry['name']}"
        assert row.entry["does"], row.entry["name"]
        named = [*row.entry.get("trees", {}), *([row.entry["scripts"]] if "scripts" in row.entry else [])]
        assert [source for source in named if not (row.folder / source).is_dir()] == []
        libraries = row.entry.get("libraries", {}).values()
        assert [one["source"] for one in libraries if not (row.folder / one["source"]).is_file()] == []


def test_readme_says_of_every_family_where_the_real_one_is_documented() -> None:
    lines = (REPLICAS / "README.md").read_text().splitlines()
    for path in sorted(REPLICAS.glob("*/packages.yml")):
        documentation = yaml.safe_load(path.read_text())["documentation"].split()[0]
        named = [line for line in lines if line.startswith(f"| `{path.parent.name}` |")]
        assert len(named) == 1 and named[0].endswith(f"| {documentation} |"), f"README.md: {path.parent.name}"


def test_readme_documents_every_key() -> None:
    text = (REPLICAS / "README.md").read_text()
    keys = set(replica_table.FAMILY.keys).union(*(row.keys for row in replica_table.ROWS.values()))
    assert sorted(key for key in keys if f"`{key}`" not in text) == []


def test_committed_tables_match_no_name_twice() -> None:
    """Patterns cannot be compared, but the names that they spell can."""
    rows = [row for row in load_rows(REPLICAS) if row.sort == "packages"]
    literal = [row.entry["name"] for row in rows if re.fullmatch(r"[\w.+-]+", row.entry["name"])]
    for name, kind in itertools.product(sorted(set(literal)), ("deb", "rpm")):
        found = [f"{row.family}: {row.entry['name']}" for row in rows if row.match(name, kind)]
        assert len(found) <= 1, f"{kind} {name}: {found}"


_LOCKS = Path(__file__).parents[3] / "variables/locks"


@pytest.mark.parametrize("system", ["debian 12", "ubuntu 24.04", "amzn 2023"])
def test_every_plan_that_the_local_region_builds_has_its_replicas(system: str) -> None:
    plans = [json.loads(path.read_text())["plan"] for path in sorted(_LOCKS.glob("*.json"))]
    there = [one for one in plans if f"{one['os']['id']} {one['os']['version']}" == system]
    assert there
    for plan in there:
        resolve(sections(plan))


def test_no_folder_is_empty() -> None:
    """git keeps none, so whatever relies on one works here and fails in everybody else's clone."""
    assert [str(path) for path in REPLICAS.rglob("*") if path.is_dir() and not any(path.iterdir())] == []
