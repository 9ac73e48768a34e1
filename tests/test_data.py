"""Files, data of the package, and errors."""

from __future__ import annotations

import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_ami import errors, files
from gpu_ami.errors import UsageError
from gpu_ami.files import home_dir, locked, parse_yaml, read_document, read_json, read_yaml, write_json, write_text

# Where the project's data lies, in a checkout and in an installed package.


CHECKOUT = Path(__file__).resolve().parents[1]


def test_data_of_a_checkout_are_its_top_level_folders() -> None:
    assert files.data_root() == CHECKOUT
    assert files.data_dir("variables", "recipes") == CHECKOUT / "variables" / "recipes"


def installed(root: Path) -> Path:
    package = root / "site-packages" / "gpu_ami"
    package.mkdir(parents=True)
    return package


def test_data_of_a_wheel_lie_in_the_package(tmp_path: Path) -> None:
    package = installed(tmp_path)
    for folder in (package / "_data", package.parent):  # another distribution may install a folder called packer
        for name in ("packer", "variables"):
            (folder / name).mkdir(parents=True)
    assert files.data_root(package) == package / "_data"


def test_incomplete_installation_names_the_folders_searched(tmp_path: Path) -> None:
    package = installed(tmp_path)
    with pytest.raises(UsageError) as caught:
        files.data_root(package)
    assert str(package / "_data") in str(caught.value) and str(package.parent) in str(caught.value)
    assert "reinstall" in caught.value.hint


# Exit codes of the errors that a user can meet, and how a message looks.


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (errors.ImageFailed, 1),
        (errors.UsageError, 2),
        (errors.MissingTool, 2),
        (errors.BuildError, 3),
        (errors.CloudError, 4),
        (errors.MachineError, 4),
        (errors.CapacityError, 5),
    ],
)
def test_exit_code_of_each_error(kind: type[errors.GpuAmiError], code: int) -> None:
    assert kind("x").exit_code == code


def test_message_details_and_hint_stand_below_each_other() -> None:
    error = errors.CloudError("launching x: Throttling", details=["Rate exceeded"], hint="wait", code="Throttling")
    assert str(error) == "launching x: Throttling\n  Rate exceeded\n  → wait"
    assert error.code == "Throttling"
    assert str(errors.UsageError("recipe.yml: no such file")) == "recipe.yml: no such file"


def test_the_tree_of_the_docstring_is_the_tree_of_the_classes() -> None:
    drawn = set(re.findall(r"^[│ ]*[├└]── (\w+)", errors.__doc__ or "", re.MULTILINE))
    assert drawn == {
        name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.GpuAmiError)
    } - {"GpuAmiError"}


# Files: written whole or not at all, private where asked, read with the reason where that fails.


def test_home_is_private_and_named_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPU_AMI_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert home_dir() == tmp_path / "state" / "gpu-ami"
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path / "home"))
    assert (home_dir(), home_dir().stat().st_mode & 0o777) == (tmp_path / "home", 0o700)


def test_home_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path / "file" / "home"))
    with pytest.raises(UsageError, match=f"cannot make the state folder {tmp_path}/file/home: Not a directory"):
        home_dir()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"old": True})

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if failing == "fsync" else Path, failing, full)
    with pytest.raises(OSError, match="No space"):
        write_json(path, {"new": True})
    assert read_json(path) == {"old": True}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


def test_document_without_json_form_leaves_the_old_file(tmp_path: Path) -> None:
    loop: list[object] = []
    loop.append(loop)
    write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(ValueError, match="Circular"):
        write_json(tmp_path / "x.json", loop)
    assert read_json(tmp_path / "x.json") == {"a": 1}


def test_file_reaches_the_disk_before_it_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda _descriptor: calls.append("fsync"))
    rename = Path.replace
    monkeypatch.setattr(Path, "replace", lambda path, target: (calls.append("replace"), rename(path, target))[1])
    write_text(tmp_path / "x", "text")
    assert calls == ["fsync", "replace"]


def test_mode_is_the_files_from_its_first_byte(tmp_path: Path) -> None:
    umask = os.umask(0o022)
    try:
        write_text(tmp_path / "public", "x")
        write_text(tmp_path / "private", "x", mode=0o600)
    finally:
        os.umask(umask)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("public", "private")] == [0o644, 0o600]


def test_bytes_that_are_not_utf8_cost_no_file(tmp_path: Path) -> None:
    output = b"caf\xe9".decode("utf-8", errors="surrogateescape")
    write_json(tmp_path / "x.json", {"said": output, "path": Path("/x")})
    assert read_json(tmp_path / "x.json") == {"said": "caf\udce9", "path": "/x"}
    write_text(tmp_path / "x.txt", output)
    assert (tmp_path / "x.txt").read_bytes() == b"caf\\udce9"


def test_concurrent_writers_leave_one_whole_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: write_json(tmp_path / "x.json", [number] * 1000), range(32)))
    assert len(set(json.loads((tmp_path / "x.json").read_text()))) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_broken_state_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert read_json(tmp_path / "x.json") is None
    assert read_json(tmp_path / "missing.json") is None


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "no such file"),
        ("{", "not JSON"),
        ("[]", "expected a JSON object, got list"),
        ('{"schema": "x/0"}', "expected schema 'x/1', got 'x/0'"),
        ("{}", "expected schema 'x/1', got None"),
    ],
)
def test_document_of_another_kind_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "x.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_document(path, "x/1", "make")
    assert str(path) in caught.value.message and message in caught.value.message
    assert "`gpu-ami make` writes" in caught.value.hint


def test_document_is_read_back(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"schema": "x/1", "text": "ü"})
    assert read_document(tmp_path / "x.json", "x/1", "make") == {"schema": "x/1", "text": "ü"}


def test_aliases_are_looked_at_once() -> None:
    """Nine levels of nine aliases each stand for 9⁹ nodes."""
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    assert len(parse_yaml("\n".join(levels), "x.yml")) == 9
    with pytest.raises(UsageError, match="1 duplicate key"):
        parse_yaml("\n".join([*levels, "a0: 1"]), "x.yml")


def test_a_yaml_file_that_cannot_be_read_says_what_it_should_be(tmp_path: Path) -> None:
    (tmp_path / "good.yml").write_text("a: 1\n")
    assert read_yaml(tmp_path / "good.yml", "the policy") == {"a": 1}
    (tmp_path / "bytes.yml").write_bytes(b"\xff")
    for name in ("absent.yml", "bytes.yml"):
        with pytest.raises(UsageError, match=name) as refused:
            read_yaml(tmp_path / name, "the policy")
        assert refused.value.hint == "the policy"


@pytest.mark.parametrize(
    ("text", "hint"),
    {
        "a:\n\t- b\n": "indent with spaces: YAML allows no tabs there",
        "a: *b\n": "quote text that begins with *",
    }.items(),
)
def test_text_that_is_not_yaml_is_named_by_its_line_and_a_remedy(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_yaml(text, "a.yml")
    assert caught.value.message == "a.yml: not YAML" and hint in caught.value.hint
    assert any(line.strip().startswith("line ") for line in caught.value.details)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("a: " + "[" * 5000 + "]" * 5000, id="lists"),
        pytest.param("{a: " * 5000 + "1" + "}" * 5000, id="mappings"),
        pytest.param("\n".join(" " * level + "a:" for level in range(1500)), id="indented mappings"),
    ],
)
def test_yaml_that_is_nested_too_deeply_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="nested too deeply"):
        parse_yaml(text, "a.yml")


def test_number_keeps_the_text_of_the_file_where_it_differs() -> None:
    document = parse_yaml("[1.10, 0x10, 2.5, 7]", "a.yml")
    assert document == [1.1, 16, 2.5, 7] and [type(value) for value in document[2:]] == [float, int]
    assert [value.written for value in document[:2]] == ["1.10", "0x10"] and json.dumps(document) == "[1.1, 16, 2.5, 7]"


def test_byte_that_is_not_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_bytes("a: 1\nb: café\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"a\.yml: not UTF-8: byte 0xe9 in line 2"):
        read_yaml(tmp_path / "a.yml", "the policy")


def test_one_at_a_time_is_inside_a_lock(tmp_path: Path) -> None:
    """Locks of two open files are two, also within one process."""
    order: list[str] = []
    path = tmp_path / "locks" / "x.lock"
    waits = threading.Event()

    def second() -> None:
        with locked(path, waits.set):
            order.append("second")

    with locked(path, lambda: order.append("had to wait")):
        other = threading.Thread(target=second)
        other.start()
        assert waits.wait(30)
        order.append("first")
    other.join(30)
    assert order == ["first", "second"]


def test_yaml_of_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "recipe.yml")
    with pytest.raises(UsageError, match=r"recipe\.yml: expected a regular file, got a named pipe"):
        read_yaml(tmp_path / "recipe.yml", "a recipe")


def test_document_of_a_named_pipe_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "plan.json")
    with pytest.raises(UsageError, match=r"plan\.json: cannot be read: expected a regular file, got a named pipe"):
        read_document(tmp_path / "plan.json", "gpu-ami/plan/1", "plan")


def test_yaml_has_a_size_limit(tmp_path: Path) -> None:
    (tmp_path / "recipe.yml").write_text("".join(f"key{number}: 1\n" for number in range(200_000)))
    with pytest.raises(UsageError, match=r"recipe\.yml: expected at most 1,048,576 bytes, got 2,488,890"):
        read_yaml(tmp_path / "recipe.yml", "a recipe")


def test_a_number_of_thousands_of_digits_in_yaml_is_named() -> None:
    """Python's own text advises to call sys.set_int_max_str_digits."""
    with pytest.raises(UsageError) as refused:
        parse_yaml(f"interval_s: {'9' * 5000}\n", "x.yml")
    assert list(refused.value.details) == ["a number of more than 4,300 digits"]
