"""Which values of a template are secrets: by the name of their key, by their shape, or because the template says so.

A recipe is committed, and what a command prints is kept in logs: a secret's value stands in neither. When unsure, a
value is a secret: the person who imports the template has it before them.

The shapes of tokens are those of validator.secret_shapes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from validator import secret_shapes

NOT_SHOWN = "(value not shown)"
_REPLACEMENT = "[not shown]"
# Shorter ones are words of their own (`ubuntu`, `admin`), which stand elsewhere without being the secret.
_SHORTEST_KNOWN = 6

_SECRET_NAME = re.compile(
    r"passw|passphrase|pwd|secret|token|credential|apikey|accesskey|privatekey|accountkey|authkey|webhook|bearer|"
    r"authorization|license"
)
_SECRET_WORDS = {"pass", "pwd", "pw", "auth", "creds", "cookie", "dsn", "otp", "pin", "salt", "key", "keys", "pat"}
_NOT_SECRET_WORDS = {"kms", "public", "pub", "pair", "keypair", "fingerprint", "name", "tag", "tags"}
_NOT_SECRET = {"http_tokens", "user_data_file"}
_DIGEST_WORDS = {"sha", "sha1", "sha256", "sha512", "md5", "checksum", "digest", "commit", "revision", "fingerprint"}

_ASSIGNED = r"passw(?:or)?d|passphrase|pwd|secret|token|(?:api|access|private|account|auth)[_-]?key|credentials?"
_SHAPES = re.compile("|".join(secret_shapes.SHAPES), re.DOTALL)
# A name with its value, and options of commands: within a value alone, since a remark says `password: …` itself.
_ASSIGNMENTS = re.compile(
    "|".join(
        (
            r"(?i:\bauthorization[\"']?\s*[:=]\s*\S+(?:\s+\S+)?|\b(?:bearer|basic)\s+[\w+/=.~-]{8,})",
            rf"(?i:(?:{_ASSIGNED})[\w.-]*[\"'\\]*\s*[=:]\s*[\"'\\]*[^\s\"'\\]+)",
            rf"(?i:--?[\w-]*(?:{_ASSIGNED})[\w-]*[\s=]+[\"']?[^\s\"']+)",
            r"(?:^|\s)(?:-u|--user)[\s=]*[\"']?[^\s:\"']+:[^\s\"']+",
            r"\b(?:sshpass|mysql|mysqldump|psql|login)\b[^|;&]*\s-p\s*\S+",
            r"\b\S+:\S+[\"']?\s*\|\s*(?:sudo\s+)?chpasswd",
        )
    )
)
_AWS_SECRET_KEY = re.compile(r"(?<![A-Za-z0-9/+=])[A-Za-z0-9/+]{40}(?![A-Za-z0-9/+=])")
_RANDOM = re.compile(r"(?<![A-Za-z0-9+=])[A-Za-z0-9+=]{20,}(?![A-Za-z0-9+=])")
_HEX = re.compile(r"(?<![0-9A-Za-z-])[0-9a-fA-F]{32,}(?![0-9A-Za-z])")
# What stands for a value that the template does not contain.
_REFERENCE = re.compile(
    r"\{\{-?\s*(?:(?:user|env)\s+[`'\"][\w.-]+[`'\"]|\.?[A-Za-z_]+)\s*-?\}\}|"
    r"\$\{(?:var|local|data|build|source|path)\.[\w.-]+\}"
)


class Secrets:
    """The secrets of one template, and whether a text has one."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def learn(self, value: object, name: str = "", *, sensitive: bool = False) -> None:
        """Remembers the secrets among the values of a document: those of secret names, or all (`sensitive`)."""
        for key, text in _scalars(value, name):
            if (sensitive or is_secret_name(key)) and not _is_reference(text):
                self._known.add(text.strip())

    def hides(self, name: str, value: object) -> bool:
        """Whether a value is not to be shown: it is, or contains, a secret; or its key says that it is one."""
        return any(
            bool(text.strip()) and not _is_reference(text) and (is_secret_name(key) or self._is_in(text, key))
            for key, text in _scalars(value, name)
        )

    def censored(self, text: str) -> str:
        """A text with `[not shown]` in place of each secret in it."""
        for known in sorted(self._known, key=len, reverse=True):
            text = _as_word(known).sub(_REPLACEMENT, text) if len(known) >= _SHORTEST_KNOWN else text
        text = _SHAPES.sub(_REPLACEMENT, text)
        for pattern in (_AWS_SECRET_KEY, _RANDOM, _HEX):
            text = pattern.sub(lambda match: _REPLACEMENT if _looks_random(match[0]) else match[0], text)
        return text

    def _is_in(self, text: str, key: str) -> bool:
        if text.strip() in self._known or _SHAPES.search(text):
            return True
        text = _REFERENCE.sub(" ", text)
        if _ASSIGNMENTS.search(text):
            return True
        if any(len(known) >= _SHORTEST_KNOWN and _as_word(known).search(text) for known in self._known):
            return True
        if _DIGEST_WORDS & set(_words(key)) and re.fullmatch(r"(\w+:)?[0-9a-f]{32,128}", text.strip()):
            return False
        patterns = (_AWS_SECRET_KEY, _RANDOM, _HEX)
        return any(_looks_random(match[0]) for pattern in patterns for match in pattern.finditer(text))


def is_secret_name(name: str) -> bool:
    """Whether the values of a key of this name are secrets (`aws_secret_key`, `DbPassword`, `http.auth`)."""
    last = name.rpartition(".")[2]
    words = set(_words(last))
    if last.lower() in _NOT_SECRET:
        return False
    if _SECRET_NAME.search("".join(_words(last))):
        return True
    return bool(words & _SECRET_WORDS) and not words & _NOT_SECRET_WORDS


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def _looks_random(text: str) -> bool:
    """A key rather than a name: hexadecimal digits alone, or upper and lower case and digits in one word."""
    if len(text) >= 32 and re.fullmatch(r"[0-9a-fA-F]+", text):
        return True
    return all(re.search(pattern, text) for pattern in ("[a-z]", "[A-Z]", "[0-9]"))


def _is_reference(text: str) -> bool:
    """Whether a text only refers to values that stand elsewhere: `{{user `x`}}`, `${var.x}`."""
    return bool(text.strip()) and not _REFERENCE.sub("", text).strip()


def _as_word(known: str) -> re.Pattern[str]:
    return re.compile(rf"(?<![A-Za-z0-9]){re.escape(known)}(?![A-Za-z0-9])")


def _scalars(value: object, name: str) -> Iterator[tuple[str, str]]:
    """The scalar values of a document as text, each with its key; a mapping's names count for what is below them."""
    if isinstance(value, Mapping):
        if isinstance(tag := value.get("key"), str) and "value" in value:  # a tag as EC2's API and HCL2 blocks write it
            value = {tag: value["value"], **{key: item for key, item in value.items() if key not in ("key", "value")}}
        for key, below in value.items():
            inner = str(key)
            yield from _scalars(below, name if is_secret_name(name) and not is_secret_name(inner) else inner)
            if _SHAPES.search(inner):
                yield "", inner
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _scalars(item, name)
    elif value is not None and not isinstance(value, bool):
        yield name, str(value)
