"""Which of logrotate's rules lose lines: the role's own does not, its neighbours' switches do."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.probes.logrotate import losses

LOG = "/var/log/gpuevent.log"
OURS = (Path(__file__).parents[3] / "roles/event_parser/files/gpu-ami-events.logrotate").read_text()
# Debian 12's logrotate.conf and rsyslog's rule, in short.
DEBIAN = """\
weekly
rotate 4
create
#dateext
include /etc/logrotate.d
/var/log/syslog
/var/log/mail.log
{
    rotate 4
    compress
    postrotate
        if true; then { /usr/lib/rsyslog/rsyslog-rotate; }
        fi
    endscript
}
"""


def test_the_role_s_own_rule_loses_nothing() -> None:
    assert losses(DEBIAN + OURS, LOG) == []
    assert losses(DEBIAN + OURS, "/var/log/gpuevent.jsonl") == []


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ("    missingok", "    copytruncate", ["copytruncate: lines written between copy and truncation are lost"]),
        ("    delaycompress\n", "", ["compress without delaycompress: a rotated file is compressed before"]),
        ("    delaycompress", "    nodelaycompress", ["compress without delaycompress"]),
        ("    rotate 8", "    rotate 0", ["rotate 0: a rotated file is deleted at once"]),
        ("    rotate 8\n", "", []),  # four, as logrotate.conf says
        ("    compress\n", "    nocompress\n    nodelaycompress\n", []),
        (
            "/var/log/gpuevent.log /var/log/gpuevent.jsonl {",
            '"/var/log/gpuevent.*"\n{\n copytruncate',
            ["copytruncate"],
        ),
    ],
)
def test_directive_that_loses_lines_is_named(old: str, new: str, lost: list[str]) -> None:
    assert old in OURS
    found = losses(DEBIAN + OURS.replace(old, new), LOG)
    assert len(found) == len(lost)
    assert all(one.startswith(start) for one, start in zip(found, lost, strict=True))


def test_first_matching_rule_applies_with_defaults() -> None:
    assert losses(f"{LOG} {{\n}}\n", LOG) == ["rotate 0: a rotated file is deleted at once"]  # logrotate(8): default 0
    assert losses(OURS + f"{LOG} {{\ncopytruncate\n}}\n", LOG) == []
    assert losses("copytruncate\n" + OURS, LOG) == ["copytruncate: lines written between copy and truncation are lost"]
    assert losses(DEBIAN, LOG) == []
