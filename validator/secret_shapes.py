"""What looks like a secret in a text: tokens by their shape, values by the name before them. In linear time.

A file's kind is known by its name: JSON stays JSON, a compressed file is unpacked, read and packed again.

Shapes: AWS's "Understanding unique ID prefixes" (IAM user guide), GitHub's, GitLab's, Slack's and npm's documentation
of their token formats, RFC 7468 (PEM), RFC 7519 (JWT), crypt(5); read 2026-11-25.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import re
import zlib
from typing import Any

HIDDEN = "[not shown]"
SHAPES = (
    r"(?<![\w-])(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{12,}\b",
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:.*?-----END [A-Z0-9 ]{0,60}-----|.*)",
    r"(?<![\w-])eyJ[\w-]{6,}\.[\w-]{4,}(?:\.[\w-]*)?",
    r"(?<![\w-])(?:gh[pousr]_\w{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}|npm_\w{16,}|pypi-[\w-]{16,})",
    r"(?<![\w-])(?:xox[a-z]-[\w-]{8,}|xapp-[\w-]{8,})|hooks\.slack\.com/\S+|discord(?:app)?\.com/api/webhooks/\S+",
    r"(?<![\w-])(?:(?:sk|rk|pk)[_-](?:live|test|proj|ant)[\w-]{8,}|sk-[\w-]{16,}|AIza[\w-]{20,}|hf_\w{16,})",
    r"(?<![\w-])(?:nvapi-[\w-]{16,}|dckr_pat_[\w-]{8,}|hv[sb]\.[\w-]{16,}|dop_v1_\w{16,}|SG\.[\w-]{16,})",
    r"\$(?:1|2[abxy]|5|6|y|gy|apr1)\$[^\s'\"]{8,}",
    r"(?<![a-zA-Z0-9+.-])[a-zA-Z][a-zA-Z0-9+.-]{0,30}://[^\s/@'\"]{0,200}:[^\s/@'\"]{1,200}@[^\s'\"]*",
    r"(?i:[?&][\w-]{0,60}(?:token|sig|signature|credential|password|key|code)=[^&\s'\"]+)",
)
# In logs: what follows a name; the name stays. Begins at a word, and names are bounded, so that each is read once.
_NAME = (
    r"[\w-]{0,40}?(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|auth[_-]?key)"
    r"[\w.-]{0,40}"
)
_NAMED = re.compile(
    r"(?i)((?<![\w-])" + _NAME + r"[\"'\\]{0,4}\s{0,8}[=:]\s{0,8}[\"'\\]{0,4}"
    r"|(?<![\w-])authorization[\"']?\s{0,8}[:=]\s{0,8}(?:basic |bearer )?"
    r"|(?<![\w-])bearer\s{1,8}(?=[\w+/=.~-]{16}))([^\s\"'\\,;]+)"
)
_KEY = re.compile(_NAME, re.IGNORECASE)
_SHAPES = re.compile("|".join(SHAPES), re.DOTALL)
# Of each line and pattern: some word without which nothing of the line matches.
_WORDS = re.compile(
    rb"(?i)passw|passphrase|secret|token|key|authoriz|bearer|eyJ|gh[pousr]_|_pat_|glpat|npm_|pypi-|xox|xapp|slack|discord|"
    rb"[srp]k[_-]|hf_|nvapi|hv[sb]\.|dop_|SG\.|\$[1256ag]|\$y\$|@|AKIA|ASIA|ABIA|ACCA|AIza|sig|credential|code="
)


def hidden(text: str) -> str:
    """A text of a log with `[not shown]` in place of what looks like a secret."""
    return _NAMED.sub(rf"\1{HIDDEN}", _SHAPES.sub(HIDDEN, text))


def hidden_bytes(data: bytes) -> bytes:
    """As `hidden`, of a file of lines in any encoding."""
    if not _WORDS.search(data):
        return data
    text = data.decode("utf-8", "surrogateescape")
    return hidden(text).encode("utf-8", "surrogateescape")


UNPACKED_BYTES = 64 << 20  # of a compressed file


def hidden_file(name: str, data: bytes) -> tuple[bytes, str]:
    """A file's content as it may be kept, and a note on what of it is not there, "" for none."""
    if name.endswith(".gz"):
        return _hidden_gzip(data)
    if name.endswith(".json"):
        return _hidden_json(data), ""
    if name.endswith(".jsonl"):
        return b"".join(_hidden_json(line) for line in data.splitlines(keepends=True)), ""
    return hidden_bytes(data), ""


def _hidden_json(data: bytes) -> bytes:
    """JSON with the same structure; the same bytes where nothing is hidden. What is no JSON is read as lines."""
    if not _WORDS.search(data):
        return data
    try:
        document = json.loads(data)
        changed = _hidden_value(document, named=False)
        return data if changed == document else json.dumps(changed, indent=1).encode() + b"\n"
    except (ValueError, RecursionError):
        return hidden_bytes(data)


def _hidden_value(value: Any, named: bool) -> Any:
    """named: whether the key before it is that of a secret."""
    if isinstance(value, str):
        return HIDDEN if named and value else hidden(value)
    if isinstance(value, list):
        return [_hidden_value(item, named) for item in value]
    if isinstance(value, dict):
        return {hidden(key): _hidden_value(item, bool(_KEY.fullmatch(key))) for key, item in value.items()}
    return value


def _hidden_gzip(data: bytes) -> tuple[bytes, str]:
    text, note = _unpacked(data)
    if not text:
        return b"", f"{note}: not kept; sha256:{hashlib.sha256(data).hexdigest()}, {len(data):,} bytes" if data else ""
    kept = hidden_bytes(text)
    return (data if kept == text and not note else gzip.compress(kept, mtime=0)), note


def _unpacked(data: bytes) -> tuple[bytes, str]:
    """What a gzip file has, up to its first error, its end, or the limit; a note where that is not all of it."""
    reader, parts, room = zlib.decompressobj(zlib.MAX_WBITS | 16), [], UNPACKED_BYTES
    try:
        while data and room > 0:
            parts.append(reader.decompress(data[: 1 << 16], room))
            room -= len(parts[-1])
            data = reader.unconsumed_tail + data[1 << 16 :]
            if reader.eof:  # another member may follow
                data = reader.unused_data + data
                reader = zlib.decompressobj(zlib.MAX_WBITS | 16)
    except zlib.error as error:
        return b"".join(parts), f"not gzip from byte {sum(map(len, parts)):,} of its content on ({error})"
    if room <= 0:
        return b"".join(parts), f"the first {UNPACKED_BYTES >> 20} MiB of its content"
    return b"".join(parts), ""
