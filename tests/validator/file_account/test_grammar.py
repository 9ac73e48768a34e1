"""Rules and footprints: patterns, and every mistake with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.file_account import InvalidRules, load_footprint, load_footprints, load_rules, load_system_rules


def write(folder: Path, text: str) -> Path:
    path = folder / "role/meta/footprint.yml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/etc/x.d/*.conf", "/etc/x.d/a.conf", True),
        ("/etc/x.d/*.conf", "/etc/x.d/sub/a.conf", False),
        ("/opt/x/**", "/opt/x/a/b", True),
        ("/opt/x/**", "/opt/xy", False),
        ("/etc/rc?.d/*", "/etc/rc3.d/S01", True),
        ("/etc/a.b", "/etc/aXb", False),
        ("/opt/x/*", "/opt/x/a\nb", True),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, path: str, matches: bool) -> None:
    footprint = load_footprint(write(tmp_path, f"files: [{{path: '{pattern}'}}]"), "role")
    assert footprint.files[0].matches(path) is matches


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "role/meta/footprint.yml: (whole file): expected keys and values, got an empty list"),
        ("files: [a, ?, b", "not YAML: while parsing a flow"),
        ("files: [{path: '/etc/*'}]", "files[0].path: /etc/*: a pattern must name a directory below the first level"),
        ("files: [{path: '/usr/lib/*'}]", "files[0].path: /usr/lib/*: the whole directory would be explained"),
        ("files: [{path: '/**'}]", "a pattern must name a directory below the first level"),
        ("files: [{path: etc/x}]", "expected an absolute path"),
        ("files: [{mode: '0644'}]", "files[0].path: missing: expected text such as /etc/example/*"),
        ("files: [{path: /etc/x, mode: 644}]", 'files[0].mode: expected text such as "0644", got 644'),
        ("files: [{path: /etc/x, mode: rw}]", "files[0].mode: expected something like \"0644\", got 'rw'"),
        ("files: [{path: /etc/x, check: sum}]", "files[0].check: expected one of alternative"),
        ("files: [{path: /etc/x, type: socket, colour: red}]", "files[0].colour: unknown key"),
        ("files: [{path: /etc/x, source: files/none}]", "files[0].source: files/none: no such file below role/"),
        ("packages: 3\nmore: []", "more: unknown key; allowed: files"),
        ("packages: 3\nmore: []", "packages: expected text such as example, got 3"),
        ("files: [{path: /etc/x, removed: 'no'}]", "files[0].removed: expected true or false, got 'no'"),
        ("files: [{path: /etc/x, when: [built]}]", "files[0].when: expected one of built"),
        ("files: [{path: /etc/x}, 3]", "files[1]: expected keys and values, got 3"),
        ("files: [{path: etc/x, removed: 1}]", "files[0].path: etc/x: expected an absolute path"),
    ],
)
def test_mistakes(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidRules) as error:
        load_footprint(write(tmp_path, text), "role")
    assert message in str(error.value)


def test_content_is_that_of_the_role_file(tmp_path: Path) -> None:
    path = write(tmp_path, "files: [{path: /usr/local/sbin/x, source: files/x}]")
    (tmp_path / "role/files").mkdir()
    (tmp_path / "role/files/x").write_text("x")
    assert load_footprint(path, "role").files[0].sha256[0].startswith("2d711642b726")


@pytest.mark.parametrize(
    ("pattern", "path", "matches"),
    [
        ("/home/<login>/.profile", "/home/admin/.profile", True),
        ("/home/<login>/.profile", "/home/builder/.profile", False),
        ("/etc/apt/sources.list.d/<source>.list", "/etc/apt/sources.list.d/docker.list", False),
    ],
)
def test_variables(tmp_path: Path, pattern: str, path: str, matches: bool) -> None:
    text = f"files: [{{path: '{pattern}', owner: '<login>:<login>'}}]"
    (rule,) = load_footprint(write(tmp_path, text), "role", {"login": ["admin"], "source": []}).files
    assert (rule.matches(path), rule.owners) == (matches, ("admin:admin",))


@pytest.mark.parametrize("folder", ["roles", "docs/examples/site/roles"])
def test_every_role_has_a_footprint(folder: str) -> None:
    roles = Path(__file__).parents[3] / folder
    names = sorted(path.name for path in roles.iterdir() if path.is_dir())
    footprints, without = load_footprints([roles], names)
    assert (sorted(footprints), without) == (names, [])


def test_included_roles_are_loaded_too(tmp_path: Path) -> None:
    write(tmp_path, "includes: [other]")
    (tmp_path / "other/meta").mkdir(parents=True)
    (tmp_path / "other/meta/footprint.yml").write_text("{}")
    footprints, without = load_footprints([tmp_path], ["role"])
    assert (list(footprints), without) == (["role", "other"], [])


def test_roles_without_a_footprint_are_named(tmp_path: Path) -> None:
    write(tmp_path, "{}")
    footprints, without = load_footprints([tmp_path], ["role", "other"])
    assert (list(footprints), without) == (["role"], ["other"])


def test_every_system_rule_has_a_reason_and_a_name() -> None:
    rules = load_system_rules()
    assert len({rule.name for rule in rules}) == len(rules)
    assert not [rule.name for rule in rules if len(rule.reason) < 10]


def test_a_rule_without_a_reason(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text("[{name: x, path: /etc/x}]")
    with pytest.raises(InvalidRules, match=r"rules\.yml: \[0\]\.reason: missing"):
        load_rules(tmp_path / "rules.yml")
