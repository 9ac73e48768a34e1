"""What looks like a secret in a text: tokens by their shape, values by the name before them. In linear time.

Shapes: AWS's "Understanding unique ID prefixes" (IAM user guide), GitHub's, GitLab's, Slack's and npm's documentation
of their token formats, RFC 7468 (PEM), RFC 7519 (JWT), crypt(5); read 2026-11-25.
"""

from __future__ import annotations

import re

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
_NAMED = re.compile(
    r"(?i)((?<![\w-])[\w-]{0,40}?(?:passw(?:or)?d|passphrase|secret|token|api[_-]?key|access[_-]?key|private[_-]?key|"
    r"auth[_-]?key)[\w.-]{0,40}[\"'\\]{0,4}\s{0,8}[=:]\s{0,8}[\"'\\]{0,4}|(?<![\w-])authorization[\"']?\s{0,8}[:=]\s{0,8}"
    r"(?:basic |bearer )?|(?<![\w-])bearer\s{1,8}(?=[\w+/=.~-]{16}))([^\s\"'\\,;]+)"
)
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
