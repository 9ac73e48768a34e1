"""HCL2 templates: variables, locals, sources and builds, and the values of expressions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError

_UNKNOWN = "${...}"


class NotUnderstood(Exception):
    """Names the kind of an expression (`function templatefile`) whose value is not known."""


def _known(value: object) -> object:
    if not isinstance(value, str) or "${" not in value:
        return value
    raise NotUnderstood("a value that is not known")


def _compact(items: Any) -> list[object]:
    return [item for item in items if item not in ("", None)]


def _replaced(text: str, old: str, new: str) -> str:
    if len(old) > 1 and old.startswith("/") and old.endswith("/"):
        return re.sub(old[1:-1], re.sub(r"\$(\d)", r"\\\1", new), text)
    return text.replace(old, new)


def _merged(*maps: Any) -> dict[str, object]:
    return {key: value for mapping in maps if mapping for key, value in mapping.items()}


_FUNCTIONS: Mapping[str, Callable[..., object]] = {
    "coalesce": lambda *values: next((value for value in values if value not in (None, "")), None),
    "compact": _compact,
    "concat": lambda *lists: [item for items in lists for item in items],
    "join": lambda separator, items: str(separator).join(str(item) for item in items),
    "length": len,
    "lower": lambda text: str(text).lower(),
    "merge": _merged,
    "replace": _replaced,
    "split": lambda separator, text: str(text).split(str(separator)),
    "tolist": list,
    "tonumber": lambda value: float(value) if "." in str(value) else int(value),
    "toset": list,
    "tostring": lambda value: None if value is None else _text(value),
    "trimspace": lambda text: str(text).strip(),
    "upper": lambda text: str(text).upper(),
}
_OPERATORS: Mapping[str, Callable[[Any, Any], object]] = {
    "==": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
    "&&": lambda left, right: left and right,
    "||": lambda left, right: left or right,
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    ">": lambda left, right: left > right,
    "<": lambda left, right: left < right,
    ">=": lambda left, right: left >= right,
    "<=": lambda left, right: left <= right,
}


class Evaluator:
    """The values of expressions (nodes of python-hcl2's tree).

    lookup: the value of `var.x` or `local.x` by its two names, or NotUnderstood. `not_understood`: what was met;
    `environment`: the variables that `env()` has asked for.
    """

    def __init__(self, lookup: Callable[[str, str], object]) -> None:
        self._lookup = lookup
        self.not_understood: list[str] = []
        self.environment: set[str] = set()

    def value(self, node: Any) -> Any:
        """The value of an expression; `${…}` in its text stands for what is not understood."""
        try:
            return self._value(node)
        except NotUnderstood as error:
            self.not_understood.append(str(error))
            return _source(node)

    def _value(self, node: Any) -> Any:
        kind = node.lark_name()
        if kind == "expr_term":
            return self._value(node.expression)
        method = getattr(self, f"_{kind}", None)
        if method is None:
            raise NotUnderstood(_KINDS.get(kind, kind.replace("_", " ")))
        return method(node)

    def _string(self, node: Any) -> object:
        """The text of a string; of a single `${…}` its value, which may be a list or mapping."""
        parts = [part.content for part in node.string_parts]
        if len(parts) == 1 and parts[0].lark_name() == "interpolation":
            return self._value(parts[0].expression)
        return "".join(self._part(part.content) for part in node.string_parts)

    def _part(self, content: Any) -> str:
        kind = content.lark_name()
        if kind == "interpolation":
            return _text(self.value(content.expression))
        text = str(content.serialize())
        if kind == "STRING_CHARS":
            return _unescaped(text)
        if kind in ("ESCAPED_INTERPOLATION", "ESCAPED_DIRECTIVE"):
            return text[1:]
        self.not_understood.append("a template directive (%{…})")
        return _UNKNOWN

    def _heredoc_template(self, node: Any) -> object:
        return _plain(node)

    _heredoc_template_trim = _heredoc_template

    def _literal_value(self, node: Any) -> object:
        return node.serialize()

    _int_lit = _float_lit = _literal_value

    def _identifier(self, node: Any) -> object:
        raise NotUnderstood(f"the name {node.serialize()}")

    def _tuple(self, node: Any) -> object:
        return [self.value(element) for element in node.elements]

    def _object(self, node: Any) -> object:
        return {self._key(element.key): self.value(element.expression) for element in node.elements}

    def _key(self, key: Any) -> str:
        if key.lark_name() == "object_elem_key":
            value = key.value
            return str(value.serialize()) if value.lark_name() == "identifier" else _text(self.value(value))
        expression = key.expression
        inner = expression.expression if expression.lark_name() == "expr_term" else expression
        return str(inner.serialize()) if inner.lark_name() == "identifier" else _text(self.value(expression))

    def _conditional(self, node: Any) -> object:
        condition = _known(self._value(node.condition))
        return self._value(node.if_true if condition in (True, "true") else node.if_false)

    def _binary_op(self, node: Any) -> object:
        operator = str(node.binary_term.binary_operator.serialize())
        if operator not in _OPERATORS:
            raise NotUnderstood(f"the operator {operator}")
        left = _known(self._value(node.expr_term))
        right = _known(self._value(node.binary_term.expr_term))
        try:
            return _OPERATORS[operator](left, right)
        except TypeError:
            raise NotUnderstood(f"the operator {operator} between these values") from None

    def _unary_op(self, node: Any) -> object:
        value = _known(self._value(node.expr_term))
        if node.operator == "!":
            return value not in (True, "true")
        if isinstance(value, int | float):
            return -value
        raise NotUnderstood("the operator -")

    def _function_call(self, node: Any) -> object:
        name = "::".join(str(part.serialize()) for part in node.identifiers)
        arguments = [self._value(argument) for argument in node.arguments.arguments] if node.arguments else []
        if name == "env" and len(arguments) == 1:
            self.environment.add(str(arguments[0]))
            return os.environ.get(str(arguments[0]), "")
        if name not in _FUNCTIONS:
            raise NotUnderstood(f"the function {name}")
        for argument in arguments:
            _known(argument)
        try:
            return _FUNCTIONS[name](*arguments)
        except (TypeError, ValueError, AttributeError, re.error):
            raise NotUnderstood(f"the function {name} of these values") from None

    def _get_attr_expr_term(self, node: Any) -> object:
        attribute = str(node.get_attr.identifier.serialize())
        below = node.expr_term
        below = below.expression if below.lark_name() == "expr_term" else below
        if below.lark_name() == "identifier":
            return self._lookup(str(below.serialize()), attribute)
        return _item(self._value(node.expr_term), attribute)

    def _index_expr_term(self, node: Any) -> object:
        below, index = node.children[0], node.children[1]
        key = index.index.serialize() if index.lark_name() == "short_index" else self._value(index.index_expression)
        return _item(self._value(below), key)


_KINDS = {
    "for_tuple_expr": "a for expression",
    "for_object_expr": "a for expression",
    "attr_splat_expr_term": "a splat expression",
    "full_splat_expr_term": "a splat expression",
}


def _item(value: Any, key: Any) -> object:
    try:
        return value[key if isinstance(value, Mapping) else int(key)]
    except (KeyError, IndexError, TypeError, ValueError):
        raise NotUnderstood("an attribute or index that is not there") from None


def _plain(node: Any) -> object:
    from hcl2 import SerializationOptions

    return node.serialize(SerializationOptions(strip_string_quotes=True, preserve_heredocs=False))


def _source(node: Any) -> object:
    """An expression as it is written, in `${…}`."""
    text = str(_plain(node))
    return text if text.startswith("${") else f"${{{text}}}"


def _unescaped(text: str) -> str:
    from hcl2.utils import process_escape_sequences

    return str(process_escape_sequences(text))


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


_TEMPLATE, _AUTO = ".pkr.hcl", ".auto.pkrvars.hcl"
_MOST_FILES = 200
_DEEPEST = 20


_Steps = list[Mapping[str, object]]


@dataclass
class Build:
    sources: set[tuple[str, str]]
    provisioners: _Steps = field(default_factory=list)
    post_processors: _Steps = field(default_factory=list)


@dataclass
class Content:
    """What the files declare, with values in place of names.

    builders: of each, as written and resolved. builds: the sources (type, name) that each build names, its provisioners
    and its post-processors.
    """

    variables: dict[str, object] = field(default_factory=dict)
    locals: dict[str, object] = field(default_factory=dict)
    sensitive: set[str] = field(default_factory=set)
    environment: dict[str, set[str]] = field(default_factory=dict)
    builders: list[tuple[Mapping[str, object], Mapping[str, object]]] = field(default_factory=list)
    builds: list[Build] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def template_files(path: Path, hint: str) -> list[Path]:
    """The files to read: of a folder its templates and automatic variables; of a file those beside it, too."""
    folder = path if path.is_dir() else path.parent
    if not path.is_dir() and not path.is_file():
        raise UsageError(f"{path}: cannot be read: no such file", hint=hint)
    beside = sorted(file for file in folder.iterdir() if file.name.endswith(_TEMPLATE) and file.is_file())
    if path.is_dir() and not beside:
        raise UsageError(f"{path}: no *{_TEMPLATE} file in this folder", hint=hint)
    beside += sorted(file for file in folder.iterdir() if file.name.endswith(_AUTO)) if path.is_dir() else []
    if len(beside) > _MOST_FILES:
        raise UsageError(f"{folder}: expected at most {_MOST_FILES} files, got {len(beside)}", hint=hint)
    return beside if path.is_dir() else [path, *(file for file in beside if file != path)]


def own(path: Path, files: Sequence[Path]) -> Sequence[Path]:
    """The files whose builders are meant: all of a folder, one alone where a file is named."""
    return files if path.is_dir() else [path]


def read_variables(path: Path, text: str) -> dict[str, object]:
    """The values of a `*.pkrvars.hcl` file. UsageError: not HCL2."""
    evaluator = Evaluator(_no_reference)
    return {
        str(node.identifier.serialize()): evaluator.value(node.expression)
        for node in _parsed(path, text).body.children
        if node.lark_name() == "attribute"
    }


def read(texts: Sequence[tuple[Path, str]], given: Mapping[str, object], own_files: set[Path]) -> Content:
    """Resolves what the files declare. given: values of variables (-var-file). UsageError: not HCL2."""
    return _Reader(texts, given, own_files).content()


class _Reader:
    def __init__(self, texts: Sequence[tuple[Path, str]], given: Mapping[str, object], own_files: set[Path]) -> None:
        self._given: dict[str, object] = {}
        self._content = Content()
        self._variables: dict[str, Any] = {}  # name → expression of the default, None: it has none
        self._locals: dict[str, Any] = {}
        self._sources: dict[tuple[str, str], tuple[Path, Any]] = {}
        self._builds: list[Any] = []
        self._depth = 0
        self._own = own_files
        for path, text in texts:
            if path.name.endswith(_AUTO):
                self._given |= read_variables(path, text)
            else:
                self._collect(path, text)
        self._given |= given

    def content(self) -> Content:
        content = self._content
        for name in self._variables.keys() | self._given.keys():
            if name not in self._variables:
                content.remarks.append(f"{name}: a value of a variable that the template does not declare; not used")
                continue
            content.variables[name] = self._variable(name)
        content.variables = {name: content.variables[name] for name in self._variables}
        remarks = list(content.remarks)
        for name, node in self._locals.items():  # what is not understood of those that no builder uses is not reported
            content.locals[name] = Evaluator(self._lookup).value(node) if node is not None else None
        content.remarks = remarks
        for key, (path, _) in self._sources.items():
            if path in self._own:
                content.builders.append(self._builder(key))
        content.builds = [self._build(node) for node in self._builds]
        content.remarks = list(dict.fromkeys(content.remarks))
        return content

    def _collect(self, path: Path, text: str) -> None:
        for node in _parsed(path, text).body.children:
            kind = node.lark_name()
            if kind == "attribute":
                self._content.remarks.append(f"{node.identifier.serialize()}: no attribute of a Packer template")
            if kind != "block":
                continue
            name, *labels = [_label(label) for label in node.labels]
            if name == "variable" and labels:
                attributes = _attributes(node.body)
                self._variables[labels[0]] = attributes.get("default")
                self._mark_sensitive(labels[0], attributes)
            elif name == "locals":
                self._locals |= _attributes(node.body)
            elif name == "local" and labels:
                attributes = _attributes(node.body)
                self._locals[labels[0]] = attributes.get("expression")
                self._mark_sensitive(labels[0], attributes)
            elif name == "source" and len(labels) == 2:
                self._sources[labels[0], labels[1]] = (path, node.body)
            elif name == "build":
                self._builds.append(node.body)
            elif name != "packer" and path in self._own:
                self._content.remarks.append(f"{'.'.join((name, *labels))}: a block that is not carried over")

    def _mark_sensitive(self, name: str, attributes: Mapping[str, Any]) -> None:
        node = attributes.get("sensitive")
        if node is not None and Evaluator(_no_reference).value(node) in (True, "true"):
            self._content.sensitive.add(name)

    def _variable(self, name: str) -> object:
        if name in self._given:
            return self._given[name]
        node = self._variables[name]
        return None if node is None else self._value(node, f"var.{name}", asked_by=name)

    def _lookup(self, scope: str, name: str) -> object:
        tables = {"var": self._variables, "local": self._locals}
        if scope not in tables:
            raise NotUnderstood(f"{scope}.{name}")
        if name not in tables[scope]:
            raise NotUnderstood(f"{scope}.{name}, which is declared nowhere")
        if self._depth >= _DEEPEST:
            raise NotUnderstood(f"{scope}.{name}, which is made of itself")
        self._depth += 1
        try:
            return self._variable(name) if scope == "var" else self._value(self._locals[name], f"local.{name}")
        finally:
            self._depth -= 1

    def _value(self, node: Any, path: str, asked_by: str = "") -> Any:
        if node is None:
            return None
        evaluator = Evaluator(self._lookup)
        value = evaluator.value(node)
        if asked_by and evaluator.environment:
            self._content.environment.setdefault(asked_by, set()).update(evaluator.environment)
        self._content.remarks += [f"{path}: {what} is not understood" for what in evaluator.not_understood]
        return value

    def _builder(self, key: tuple[str, str]) -> tuple[Mapping[str, object], Mapping[str, object]]:
        _, body = self._sources[key]
        identity: dict[str, object] = {"type": key[0], "name": key[1]}
        raw = _body(body, _as_written, "")
        return {**identity, **raw}, {**identity, **_body(body, self._value, f"source.{key[0]}.{key[1]}.")}

    def _built(self, body: Any) -> set[tuple[str, str]]:
        """The sources that a build block names."""
        attributes = _attributes(body)
        text = str(attributes["sources"].serialize()) if "sources" in attributes else ""
        named = {(kind, name) for kind, name in re.findall(r"source\.([\w-]+)\.([\w-]+)", text)}
        for block in _blocks(body):
            labels = [_label(label) for label in block.labels]
            if labels[0] == "source" and len(labels) == 2:
                named |= set(re.findall(r"source\.([\w-]+)\.([\w-]+)", labels[1]))
        return named

    def _build(self, body: Any) -> Build:
        build = Build(self._built(body))
        for block in _blocks(body):
            name, *labels = [_label(label) for label in block.labels]
            step = {"type": labels[0] if labels else "", **_body(block.body, _as_written, "")}
            if name in ("provisioner", "error-cleanup-provisioner"):
                build.provisioners.append(step)
            elif name == "dynamic" and labels == ["provisioner"]:
                build.provisioners.append({"type": "dynamic"})
            elif name == "post-processor":
                build.post_processors.append(step)
            elif name == "post-processors":
                for inner in _blocks(block.body):
                    kind = _label(inner.labels[-1])
                    build.post_processors.append({"type": kind, **_body(inner.body, _as_written, "")})
            elif name != "source":
                self._content.remarks.append(f"{'.'.join(('build', name, *labels))}: a block that is not carried over")
        return build


def _as_written(node: Any, _path: str) -> object:
    return Evaluator(_no_reference).value(node)


def _parsed(path: Path, text: str) -> Any:
    """python-hcl2's tree of a file; a message names the line, never what it holds."""
    import hcl2
    from lark.exceptions import LarkError

    try:
        return hcl2.parses(text if text.endswith("\n") else f"{text}\n")
    except LarkError as error:
        line = getattr(error, "line", None)
        where = f": line {line}, column {getattr(error, 'column', 0)}" if isinstance(line, int) and line > 0 else ""
        hint = "packer validate shows what Packer itself says of the file"
        raise UsageError(f"{path}: not HCL2 that can be read{where}", hint=hint) from None
    except RecursionError:
        raise UsageError(f"{path}: expressions or blocks are nested too deeply") from None


def _body(body: Any, value: Callable[[Any, str], object], path: str) -> dict[str, object]:
    """Attributes and blocks of a body as a JSON template has them: blocks that may repeat as a list."""
    found: dict[str, object] = {name: value(node, f"{path}{name}") for name, node in _attributes(body).items()}
    for block in _blocks(body):
        name = ".".join(_label(label) for label in block.labels)
        content = _body(block.body, value, f"{path}{name}.")
        if name.endswith("_mappings") or name in ("tag", "run_tag", "dynamic"):
            listed = found.setdefault(name, [])
            if isinstance(listed, list):
                listed.append(content)
        else:
            found[name] = content
    return found


def _attributes(body: Any) -> dict[str, Any]:
    return {str(n.identifier.serialize()): n.expression for n in body.children if n.lark_name() == "attribute"}


def _blocks(body: Any) -> Iterator[Any]:
    return (node for node in body.children if node.lark_name() == "block")


def _label(node: Any) -> str:
    return str(node.serialize()).strip('"')


def _no_reference(scope: str, name: str) -> object:
    raise NotUnderstood(f"{scope}.{name}")
