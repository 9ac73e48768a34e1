"""Rules of logrotate under which a log loses lines that the CloudWatch agent has not read yet.

Source: logrotate(8).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any

from validator.observe import Observe, output

# Directive → the option that it sets and its value. Of two directives for an option the later applies.
_SWITCHES = {
    "copytruncate": ("copytruncate", True), "nocopytruncate": ("copytruncate", False),
    "compress": ("compress", True), "nocompress": ("compress", False),
    "delaycompress": ("delaycompress", True), "nodelaycompress": ("delaycompress", False),
}  # fmt: skip
_SCRIPTS = ("postrotate", "prerotate", "firstaction", "lastaction", "preremove")


def check_rotated(host: Any, logs: Sequence[str], observe: Observe) -> None:
    """Fails unless each of these logs is rotated, by a rule under which it loses no line."""
    __tracebackhide__ = True
    done = host.run("logrotate -d /etc/logrotate.conf 2>&1")
    considered = set(re.findall(r"considering log (\S+)", done.stdout))
    observe(sorted(considered & set(logs)), list(logs))
    missing = [log for log in logs if log not in considered]
    if missing:
        reason = f"; logrotate exited with status {done.rc}: {done.stdout[-200:]!r}" if done.rc else ""
        observe.fail(f"no logrotate rule for {', '.join(missing)}{reason}")
    rules = output(host, "cat /etc/logrotate.conf /etc/logrotate.d/*")
    for log in logs:
        if options := losses(rules, log):
            observe.fail(f"{log} is rotated with {'; and with '.join(options)}")


def losses(rules: str, log: str) -> list[str]:
    """How the first rule that matches `log` loses lines of it. rules: the text of logrotate.conf and logrotate.d.

    Empty if it loses none, or if no rule matches.
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
    rotations = "0"
    for word, *values in (line.split() for line in directives):
        if word in _SWITCHES:
            name, value = _SWITCHES[word]
            on[name] = value
        elif word == "rotate" and values:
            rotations = values[0]
    reasons = []
    if rotations == "0":
        reasons.append("rotate 0: a rotated file is deleted at once")
    if on["copytruncate"]:
        reasons.append("copytruncate: lines written between copy and truncation are lost")
    if on["compress"] and not on["delaycompress"]:
        reasons.append("compress without delaycompress: a rotated file is compressed before its last lines are read")
    return reasons


def _blocks(rules: str) -> list[tuple[list[str], list[str]]]:
    """(patterns, directives) in order. Directives outside a rule have no patterns and apply to all later rules."""
    blocks: list[tuple[list[str], list[str]]] = []
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
                blocks.append((patterns, inside))
                patterns, inside = [], None
            else:
                inside.append(line)
        elif line[0] in "/\"'" or line == "{":
            patterns += [word.strip("\"'") for word in line.rstrip("{").split()]
            inside = [] if line.endswith("{") else None
        else:
            blocks.append(([], [line]))
    return blocks
