"""What logrotate's rules do to one log: those under which lines are lost that nobody has read yet.

Source: logrotate(8).
"""

from __future__ import annotations

from fnmatch import fnmatchcase

# The later of two wins; each line is (what the directive is called, what it switches, to what).
_SWITCHES = {
    "copytruncate": ("copytruncate", True), "nocopytruncate": ("copytruncate", False),
    "compress": ("compress", True), "nocompress": ("compress", False),
    "delaycompress": ("delaycompress", True), "nodelaycompress": ("delaycompress", False),
}  # fmt: skip
_SCRIPTS = ("postrotate", "prerotate", "firstaction", "lastaction", "preremove")


def losses(rules: str, log: str) -> list[str]:
    """How the first rule that covers `log` loses lines of it; `rules`: logrotate.conf, then logrotate.d.

    Empty if it loses none, or if no rule covers it.
    """
    everywhere: list[str] = []
    for patterns, directives in _blocks(rules):
        if not patterns:
            everywhere += directives
        elif any(fnmatchcase(log, pattern) for pattern in patterns):
            return _lost(everywhere + directives)
    return []


def _lost(directives: list[str]) -> list[str]:
    on = {"copytruncate": False, "compress": False, "delaycompress": False}
    kept = "0"
    for word, *values in (line.split() for line in directives):
        if word in _SWITCHES:
            name, to = _SWITCHES[word]
            on[name] = to
        elif word == "rotate" and values:
            kept = values[0]
    found = []
    if kept == "0":
        found.append("rotate 0: a rotated file is deleted at once")
    if on["copytruncate"]:
        found.append("copytruncate: what is written between copy and cut is lost")
    if on["compress"] and not on["delaycompress"]:
        found.append("compress without delaycompress: the end of a rotated file is packed before it is read")
    return found


def _blocks(rules: str) -> list[tuple[list[str], list[str]]]:
    """(patterns, directives) in their order; no patterns: directives outside any rule, which hold for what follows."""
    found: list[tuple[list[str], list[str]]] = []
    patterns: list[str] = []
    inside: list[str] | None = None
    script = False
    for line in (raw.strip() for raw in rules.splitlines()):
        if script or line in _SCRIPTS:
            script = line != "endscript"
        elif not line or line.startswith("#"):
            continue
        elif inside is not None:
            if line.startswith("}"):
                found.append((patterns, inside))
                patterns, inside = [], None
            else:
                inside.append(line)
        elif line[0] in "/\"'" or line == "{":
            patterns += [word.strip("\"'") for word in line.rstrip("{").split()]
            inside = [] if line.endswith("{") else None
        else:
            found.append(([], [line]))
    return found
