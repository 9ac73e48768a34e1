"""Files: where this machine keeps state, the atomic writer, the readers of JSON and YAML.

Every file that another run, stage or process may read is written here: to a temporary file beside it, flushed to the
disk, then renamed. A reader never sees half a file, and neither a crash nor a full disk leaves one.
"""

from __future__ import annotations

import fcntl
import functools
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError
from validator.inputs import parse_json, read_text
from validator.schema import key_lines, line_of

_OWNER_AND_UMASK = 0o666
# Of a file in YAML that a person writes; the largest table of facts has a tenth of it.
_LARGEST_YAML = 1 << 20


def home_dir() -> Path:
    """`$GPU_AMI_HOME`, else `$XDG_STATE_HOME/gpu-ami`, else `~/.local/state/gpu-ami`; made private to its owner.

    UsageError: it cannot be made.
    """
    named = os.environ.get("GPU_AMI_HOME")
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    home = Path(named) if named else Path(state) / "gpu-ami"
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        hint = "set GPU_AMI_HOME to a folder that you can write to"
        raise UsageError(f"cannot make the state folder {home}: {error.strerror}", hint=hint) from error
    return home.resolve()


def cache_dir() -> Path:
    """What can be had again: `$GPU_AMI_HOME/cache`, else `$XDG_CACHE_HOME/gpu-ami`, else `~/.cache/gpu-ami`.

    It need not exist: what cannot be kept there is fetched again.
    """
    if named := os.environ.get("GPU_AMI_HOME"):
        return Path(named) / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpu-ami"


@contextmanager
def locked(path: Path, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """One process at a time is inside the block. path: of the lock; on_wait: called if another is inside."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def write_text(path: Path, text: str, *, mode: int = _OWNER_AND_UMASK) -> None:
    """Replaces a file's content, whole or not at all. mode: permissions of the file, less the umask.

    A character that is not UTF-8 (a surrogate, from a host's output) is written as its escape `\\udcXX`. OSError: the
    old file is still there, and the temporary file is not.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"), mode=mode)


def write_bytes(path: Path, data: bytes, *, mode: int = _OWNER_AND_UMASK) -> None:
    """Replaces a file's content, whole or not at all, as `write_text` does."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: object, *, mode: int = _OWNER_AND_UMASK) -> None:
    """Writes a document as JSON, indented by two, UTF-8; what JSON has no type for (a path, a date) as its text."""
    write_text(path, json.dumps(data, indent=2, ensure_ascii=False, default=str) + "\n", mode=mode)


def read_json(path: Path) -> dict[str, Any] | None:
    """The file's object; None where there is no file or no whole object in it (a power failure can leave it empty).

    For state that can be made again; a file that a user names is read by `read_document`.
    """
    try:
        data = parse_json(read_text(path))
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def read_document(path: Path, schema: str, command: str) -> dict[str, Any]:
    """A stage's file with this schema. UsageError: not there, not JSON, or of another schema. command: writes it."""
    rewrite = f"`gpu-ami {command}` writes a new one"
    try:
        data = parse_json(read_text(path))
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such file", hint=f"`gpu-ami {command}` writes it") from error
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", hint=rewrite) from error
    except ValueError as error:
        raise UsageError(f"{path}: not JSON: {error}", hint=rewrite) from error
    if not isinstance(data, dict):
        raise UsageError(f"{path}: expected a JSON object, got {type(data).__name__}", hint=rewrite)
    if data.get("schema") != schema:
        raise UsageError(f"{path}: expected schema {schema!r}, got {data.get('schema')!r}", hint=rewrite)
    return data


def parse_yaml(text: str, name: str) -> Any:
    """The document in a text; `name` stands for it in the message. UsageError: not YAML, or a key is there twice."""
    import yaml

    try:
        loader = _loader()(text)
        node = loader.get_single_node()
        duplicates = sorted(set(_duplicate_keys(node, set())))
        document = None if node is None else loader.construct_document(node)
    except RecursionError as error:
        raise _nested_too_deeply(name) from error
    except (yaml.YAMLError, ValueError, AttributeError, TypeError, LookupError) as error:
        # The libyaml of PyYAML 6.0.4 stops at 1,000 levels by itself; the one before it leaves that to Python's stack.
        if "exceeded maximum nesting depth" in str(error):
            raise _nested_too_deeply(name) from error
        details = [line.replace('in "<unicode string>", ', "") for line in str(error).splitlines()]
        if "integer string conversion" in str(error):
            details = ["a number of more than 4,300 digits"]
        elif isinstance(error, LookupError):  # of PyYAML's tables: `!!bool maybe`, `!!int ""`
            details = [f"a value that its tag (!!bool, !!int, !!float) does not allow: {error.args[0]!r}"]
        raise UsageError(f"{name}: not YAML", details=details, hint=_yaml_hint(text, error)) from error
    if duplicates:
        raise UsageError(
            f"{name}: {len(duplicates)} duplicate key{'s' * (len(duplicates) > 1)}",
            details=[f"line {line}: {key}: expected once, also in line {first}" for line, first, key in duplicates],
            hint="YAML would keep the last value only: remove the others, or merge them into one",
        )
    return document


def _nested_too_deeply(name: str) -> UsageError:
    return UsageError(f"{name}: not YAML that can be read: lists or mappings are nested too deeply")


def _yaml_hint(text: str, error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    lines = text.splitlines()
    line = lines[mark.line] if mark is not None and mark.line < len(lines) else ""
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "indent with spaces: YAML allows no tabs there"
    if "constructor for the tag" in str(error):
        return "write the value itself: no other file is included, and no tag beside YAML's own is read"
    return "`key: value` a line, indented with spaces; quote text that begins with * & ! % @ ` or contains `: `"


def not_utf_8(data: bytes, error: UnicodeDecodeError) -> str:
    """What is wrong with a text file that is not UTF-8: `not UTF-8: byte 0xe9 in line 5`."""
    line = data.count(b"\n", 0, error.start) + 1
    return f"not UTF-8: byte 0x{data[error.start]:02x} in line {line}"


def read_yaml(path: Path, hint: str) -> Any:
    """The document in a YAML file. UsageError: it cannot be read, or is not YAML; hint: what the file should be."""
    try:
        text = read_text(path, _LARGEST_YAML)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", hint=hint) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {not_utf_8(error.object, error)}", hint=hint) from error
    return parse_yaml(text, str(path))


def lines_of(path: Path) -> dict[str, int]:
    """The line of each key of a YAML file, by its path; {} if it cannot be read."""
    try:
        return key_lines(read_text(path, _LARGEST_YAML))
    except (OSError, ValueError):
        return {}


def located(name: str, lines: Mapping[str, int], path: str) -> str:
    """`recipe.yml:5`: a file's name with the line of a key; the name alone where the file does not have the key."""
    line = line_of(lines, path)
    return name if line is None else f"{name}:{line}"


def _duplicate_keys(node: Any, seen: set[int]) -> Iterator[tuple[int, int, str]]:
    """Line, line of the first, and key of every key that a mapping has twice, at any depth.

    seen: nodes that were looked at; an alias stands for the same node wherever it is used.
    """
    import yaml

    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from _duplicate_keys(item, seen)
    elif isinstance(node, yaml.MappingNode):
        first: dict[str, int] = {}
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != "tag:yaml.org,2002:merge":
                line = key.start_mark.line + 1
                if key.value in first:
                    yield line, first[key.value], key.value
                first.setdefault(key.value, line)
            yield from _duplicate_keys(value, seen)


class _Float(float):
    """A number that YAML shortens: 1.10 is 1.1. written: the text in the file, for messages."""

    written = ""


class _Int(int):
    """A number that was written otherwise: 0x10, 02, 2:21. written: the text in the file, for messages."""

    written = ""


def _number(kind: str, written_as: Any, loader: Any, node: Any) -> Any:
    value = getattr(loader, f"construct_yaml_{kind}")(node)
    if str(value) == node.value:
        return value
    kept = written_as(value)
    kept.written = node.value
    return kept


@lru_cache(maxsize=1)
def _loader() -> Any:
    """YAML's safe loader, in C where it was built so; a date stays the text that was written."""
    import yaml

    base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("TextDates", (base,), {})
    for kind, number in (("float", _Float), ("int", _Int)):
        loader.add_constructor(f"tag:yaml.org,2002:{kind}", functools.partial(_number, kind, number))
    loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in base.yaml_implicit_resolvers.items()
    }
    return loader


_PACKAGE = Path(__file__).resolve().parent


def data_root(package: Path = _PACKAGE) -> Path:
    """The folder that holds packer/, playbooks/, roles/, variables/ and ansible.cfg. `package` is gpu_ami's own folder.

    UsageError: the installation is incomplete; the message names the folders that were searched.
    """
    installed, checkout = package / "_data", package.parent
    for root in (installed, checkout):
        if (root / "packer").is_dir() and (root / "variables").is_dir():
            return root
    raise UsageError(
        f"packer/ and variables/ not found; searched {installed} and {checkout}",
        hint="reinstall gpu-ami; in a checkout of the project: pip install -e .",
    )


def data_dir(*names: str) -> Path:
    """A folder or file of the project's data: data_dir("variables", "recipes")."""
    return data_root().joinpath(*names)
