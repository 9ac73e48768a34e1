"""Reads a Packer template: JSON (or YAML with the same keys), an HCL2 file, or a folder of HCL2 files.

An error names the file and the line, never what the line holds: it may be a secret.

`{{user `x`}}` and `{{env `X`}}` of JSON templates (Packer's documentation, "JSON templates: user variables" and
"template engine", read 2026-11-25): a variable's value may name other variables and the environment; everything else
may name variables.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpu_ami.errors import UsageError
from gpu_ami.importer import hcl2
from gpu_ami.importer.secrets import Secrets, is_secret_name
from validator.inputs import read_text

_HINT = "gpu-ami import takes a Packer template: JSON, *.pkr.hcl, or a folder of *.pkr.hcl files"
_LARGEST = 4 << 20
_LOOKS_LIKE_HCL = re.compile(r"^\s*(variable|source|build|locals|packer|data|local)\b[^:=]*\{", re.MULTILINE)


@dataclass
class Template:
    """A template with its variables' values in place of their names.

    variables: by name; None: declared without a value. environment: by a variable's name, the environment variables
    that its value comes from. builders, provisioners, post_processors: as in a JSON template, `raw_builders` before
    the variables' values were put in. description: the template's own. others: top-level keys that Packer has not.
    remarks: what was not understood of it, assumed, or chosen.
    """

    path: Path
    variables: dict[str, object] = field(default_factory=dict)
    environment: Mapping[str, set[str]] = field(default_factory=dict)
    builders: list[Mapping[str, object]] = field(default_factory=list)
    raw_builders: list[Mapping[str, object]] = field(default_factory=list)
    provisioners: list[Mapping[str, object]] = field(default_factory=list)
    post_processors: list[Mapping[str, object]] = field(default_factory=list)
    description: object = None
    others: dict[str, object] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    secrets: Secrets = field(default_factory=Secrets)


def read_template(path: Path, variable_files: Sequence[Path] = (), only: str = "") -> Template:
    """UsageError: not a template, or a file of variables that cannot be read. only: a builder's name, or TYPE.NAME."""
    if path.is_dir() or path.name.endswith(".hcl"):
        template = _of_hcl2(path, variable_files, only)
    else:
        text = _text(path)
        if _LOOKS_LIKE_HCL.search(text) and not text.lstrip().startswith("{"):
            template = _of_hcl2(path, variable_files, only)
        else:
            template = _of_json(path, _document(path, text), variable_files, only)
    _require_builder(template, only)
    template.remarks += _without_value(template)
    return template


def _text(path: Path) -> str:
    try:
        return read_text(path, _LARGEST)
    except UnicodeDecodeError:
        raise UsageError(f"{path}: cannot be read: not UTF-8", hint=_HINT) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}", hint=_HINT) from error


def _document(path: Path, text: str) -> dict[str, object]:
    """The keys of a JSON template, or of the same template as YAML."""
    try:
        document = json.loads(text)
    except RecursionError:
        raise UsageError(f"{path}: lists or objects are nested too deeply", hint=_HINT) from None
    except ValueError as error:
        document = _yaml(path, text, error)
    if not isinstance(document, dict):
        raise UsageError(f"{path}: no `variables` block", hint=_HINT)
    if isinstance(document.get("source") or document.get("build") or document.get("variable"), dict | list):
        hint = "packer hcl2_upgrade and packer fmt write *.pkr.hcl files, which are read"
        raise UsageError(f"{path}: HCL2 written as JSON (.pkr.json) is not read", hint=hint)
    if not isinstance(document.get("variables"), dict) and not document.get("builders"):
        raise UsageError(f"{path}: no `variables` block", hint=_HINT)
    return document


def _yaml(path: Path, text: str, error: ValueError) -> object:
    import yaml

    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise UsageError(f"{path}: lists or mappings are nested too deeply", hint=_HINT) from None
    except (yaml.YAMLError, ValueError, AttributeError, TypeError) as wrong:
        if text.lstrip().startswith("{") and isinstance(error, json.JSONDecodeError):
            message = f"not JSON and not YAML: line {error.lineno}: {error.msg}"
            raise UsageError(f"{path}: {message}", hint=_HINT) from None
        mark = getattr(wrong, "problem_mark", None)
        where = f": line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise UsageError(f"{path}: neither JSON nor HCL2, and not YAML{where}", hint=_HINT) from None


def _of_json(path: Path, document: Mapping[str, object], variable_files: Sequence[Path], only: str) -> Template:
    declared = document.get("variables")
    values: dict[str, object] = (
        {str(key): value for key, value in declared.items()} if isinstance(declared, dict) else {}
    )
    for file in variable_files:
        values |= _variable_file(file)
    user = UserVariables(values)
    template = Template(path, environment=user.environment, description=user.resolved(document.get("description")))
    template.variables = {name: _stripped(user.value(name)) for name in values}
    sensitive = document.get("sensitive-variables")
    for name, value in template.variables.items():
        is_sensitive = isinstance(sensitive, list) and name in sensitive
        template.secrets.learn(value, name, sensitive=is_sensitive)
    for key in ("builders", "provisioners", "post-processors"):
        template.secrets.learn(user.resolved(document.get(key)))
    builders = [builder for builder in _mappings(document.get("builders")) if _is_chosen(builder, only)]
    template.raw_builders = builders
    template.builders = [resolved for builder in builders if isinstance(resolved := user.resolved(builder), dict)]
    steps = [
        step for written in _mappings(document.get("provisioners")) if isinstance(step := user.resolved(written), dict)
    ]
    first = builders[0] if builders else {}
    source = (str(first.get("type", "")), str(first.get("name") or first.get("type", "")))
    template.provisioners = [step for step in steps if _runs_for(step, source)]
    template.post_processors = list(_mappings(document.get("post-processors")))
    known = {"variables", "builders", "provisioners", "post-processors", "description", "sensitive-variables"}
    comments = {key for key in document if key.startswith("_")}  # Packer reads no key that begins with _
    template.others = {key: value for key, value in document.items() if key not in known | comments}
    return template


def _is_chosen(builder: Mapping[str, object], only: str) -> bool:
    kind, name = str(builder.get("type", "")), str(builder.get("name") or builder.get("type", ""))
    return not only or only in (name, f"{kind}.{name}")


def _runs_for(step: Mapping[str, object], source: tuple[str, str]) -> bool:
    """Whether a provisioner runs for a builder: its keys `only` and `except`."""
    names = {source[1], ".".join(source)}
    only, excepted = step.get("only"), step.get("except")
    chosen = not isinstance(only, list) or bool(names & set(map(str, only)))
    return chosen and not (isinstance(excepted, list) and names & set(map(str, excepted)))


def _of_hcl2(path: Path, variable_files: Sequence[Path], only: str) -> Template:
    given: dict[str, object] = {}
    for file in variable_files:
        given |= _variable_file(file)
    files = hcl2.template_files(path, _HINT)
    content = hcl2.read([(file, _text(file)) for file in files], given, set(hcl2.own(path, files)))
    template = Template(path, environment=content.environment, remarks=content.remarks)
    template.variables = {name: _stripped(value) for name, value in content.variables.items()}
    for name, value in template.variables.items():
        template.secrets.learn(value, name, sensitive=name in content.sensitive)
    template.secrets.learn(
        [value for name, value in content.locals.items() if name in content.sensitive], sensitive=True
    )
    template.secrets.learn(content.locals)
    template.secrets.learn([builder for _, builder in content.builders])
    chosen = [pair for pair in content.builders if _is_chosen(pair[1], only)]
    template.raw_builders = [raw for raw, _ in chosen]
    template.builders = [builder for _, builder in chosen]
    source = (str(chosen[0][1].get("type")), str(chosen[0][1].get("name"))) if chosen else ("", "")
    for build in content.builds:
        template.secrets.learn([*build.provisioners, *build.post_processors])
        if source in build.sources:
            template.provisioners += [step for step in build.provisioners if _runs_for(step, source)]
            template.post_processors += build.post_processors
    return template


def _require_builder(template: Template, only: str) -> None:
    if only and not template.builders:
        raise UsageError(f"{template.path}: no builder {only}", hint="--only takes the name of a builder, or TYPE.NAME")


def _variable_file(path: Path) -> dict[str, object]:
    """A file for Packer's -var-file: JSON, or HCL2 (`*.pkrvars.hcl`)."""
    text = _text(path)
    if path.name.endswith(".hcl") or not text.lstrip().startswith("{"):
        return hcl2.read_variables(path, text)
    try:
        document = json.loads(text)
    except ValueError as error:
        where = f": line {error.lineno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(f"{path}: not JSON{where}", hint="--var-file takes a file of Packer's -var-file") from None
    return {str(key): value for key, value in document.items() if not str(key).startswith("_")}


def _without_value(template: Template) -> Iterator[str]:
    names = [name for name, value in template.variables.items() if value is None and name not in template.environment]
    if names:
        yield f"{', '.join(names)}: without a value here; --var-file FILE gives values, as Packer's -var-file does"
    for name, sources in template.environment.items():
        if name in template.variables:
            unset = template.variables[name] in (None, "")
            what = "which is not set here: not carried over" if unset else "whose value is not shown"
            hidden = "" if not is_secret_name(name) else "; a secret"
            yield f"{name}: read from the environment variable {', '.join(sorted(sources))}, {what}{hidden}"


def _stripped(value: object) -> object:
    return value.strip() if isinstance(value, str) else value


def _mappings(value: object) -> Iterator[Mapping[str, object]]:
    if isinstance(value, list):
        yield from (item for item in value if isinstance(item, dict))


_QUOTE = "[`'\"]"
_CALL = re.compile(rf"\{{\{{-?\s*(user|env)\s+{_QUOTE}([\w.-]+){_QUOTE}\s*-?\}}\}}")
_VAR = re.compile(r"\bvar\.([\w-]+)")
_OTHER = re.compile(r"\{\{.*?\}\}|\$\{.*?\}", re.DOTALL)
_DEEPEST = 20


class UserVariables:
    """The variables of a template by name; None: declared without a value.

    `environment`: by a variable's name, the environment variables from which its value comes.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.environment: dict[str, set[str]] = {}

    def value(self, name: str) -> object:
        """A variable's value; None where it has none, or where it is made of itself."""
        return self._of(name, 0, name)

    def resolved(self, value: object) -> object:
        """A document with the variables' values in place of their names; None where a variable alone has no value."""
        return self._resolved(value, 0, "")

    def _of(self, name: str, depth: int, asked_by: str) -> object:
        return self._resolved(self._values.get(name), depth + 1, asked_by) if depth < _DEEPEST else None

    def _resolved(self, value: object, depth: int, asked_by: str) -> object:
        if isinstance(value, Mapping):
            return {key: self._resolved(item, depth, asked_by) for key, item in value.items()}
        if isinstance(value, list):
            return [self._resolved(item, depth, asked_by) for item in value]
        if not isinstance(value, str):
            return value
        alone = _CALL.fullmatch(value.strip())
        if alone:
            return self._call(alone, depth, asked_by)
        return _CALL.sub(lambda call: _plain_text(self._call(call, depth, asked_by)), value)

    def _call(self, call: re.Match[str], depth: int, asked_by: str) -> object:
        if call[1] == "user":
            return self._of(call[2], depth, asked_by)
        self.environment.setdefault(asked_by, set()).add(call[2])
        return os.environ.get(call[2])


def is_resolved(value: object) -> bool:
    """Whether no call is left in a text: `{{timestamp}}`, `${uuidv4()}`."""
    return not (isinstance(value, str) and _OTHER.search(value))


def refers_to_variable(value: object) -> bool:
    """Whether a raw value is a variable and nothing else, which has a line of its own."""
    if isinstance(value, list):
        return bool(value) and all(refers_to_variable(item) for item in value)
    return isinstance(value, str) and bool(
        re.fullmatch(rf"\{{\{{-?\s*user\s+{_QUOTE}[\w.-]+{_QUOTE}\s*-?\}}\}}|\$\{{var\.[\w-]+\}}", value.strip())
    )


def variables_in(raw: object) -> set[str]:
    """The variables that a raw value names, at any depth."""
    if isinstance(raw, Mapping):
        return {name for item in raw.values() for name in variables_in(item)}
    if isinstance(raw, list):
        return {name for item in raw for name in variables_in(item)}
    text = raw if isinstance(raw, str) else ""
    return {call[2] for call in _CALL.finditer(text) if call[1] == "user"} | set(_VAR.findall(text))


def _plain_text(value: object) -> str:
    return "" if value is None else str(value)


_VARIABLE = re.compile(r"\$\{var\.([\w-]+)\}")
_OPTION = re.compile(r"(?:-e|--extra-vars)(?:=(?P<value>.*))?", re.DOTALL)


def step_values(
    provisioners: Sequence[Mapping[str, object]], variables: Mapping[str, object]
) -> Iterator[tuple[str, str, object]]:
    """Of each value: the key path of its step, its name, and the value; a variable's value in place of its name."""
    for index, step in enumerate(provisioners):
        for key in ("environment_vars", "ansible_env_vars", "env", "extra_arguments"):
            pairs = _extra_vars(step[key]) if key == "extra_arguments" and key in step else _pairs(step.get(key))
            for name, value in pairs:
                yield f"provisioners[{index}].{key}", name, _resolved(value, variables)


def _pairs(value: object) -> Iterator[tuple[str, object]]:
    """A mapping's items, or those of a list of `NAME=value`."""
    if isinstance(value, Mapping):
        yield from ((str(key), item) for key, item in value.items())
    elif isinstance(value, list):
        for item in value:
            name, is_assigned, text = str(item).partition("=")
            if is_assigned:
                yield name.strip(), text.strip().strip("'\"")


def _extra_vars(arguments: object) -> Iterator[tuple[str, object]]:
    """The variables of `-e` and `--extra-vars`, as JSON or `name=value …`; `@FILE` is not read."""
    words = [str(word) for word in arguments] if isinstance(arguments, list) else []
    for position, word in enumerate(words):
        option = _OPTION.fullmatch(word)
        if option is None:
            continue
        text = option["value"] if option["value"] is not None else "".join(words[position + 1 : position + 2])
        if text.lstrip().startswith("{"):
            try:
                document = json.loads(text)
            except ValueError:
                continue
            yield from _pairs(document)
        else:
            try:
                yield from _pairs(shlex.split(text))
            except ValueError:  # a quotation mark without its partner
                continue


def _resolved(value: object, variables: Mapping[str, object]) -> object:
    if not isinstance(value, str):
        return value
    return _VARIABLE.sub(lambda call: "" if (found := variables.get(call[1])) is None else str(found), value)
