"""`gpu-ami events`: the GPU events of a log, a host, or standard input."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome

if TYPE_CHECKING:
    from gpu_ami.log import Progress

_EPILOG = """\
Understands dmesg, journalctl, syslog, raw /dev/kmsg, container JSON and our own gpuevent.jsonl, gzipped or not.
A line that merely quotes an Xid is no event; one that a process wrote to /dev/kmsg is marked as a drill.

  gpu-ami events messages.gz                      the log that a colleague mailed
  journalctl -k | gpu-ami events -                this machine
  gpu-ami events --host ssh://admin@203.0.113.7   an instance: its event log, else its kernel log
  gpu-ami events --host ssh://… --follow          as they happen
  gpu-ami events kern.log --json | jq .code       one JSON object a line

exit codes: 0 read to its end, events or not · 2 no such file, or a wrong policy · 4 the host did not answer
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "events", help="GPU events (Xid, SXid, lost GPUs) of a log or a host", epilog=_EPILOG
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="a log, or - for standard input")
    parser.add_argument("--host", metavar="URL", help="ssh://user@address[:port]")
    parser.add_argument(
        "--identity-file", type=Path, metavar="KEY", help="private key for --host (default: agent, ~/.ssh)"
    )
    parser.add_argument("--follow", action="store_true", help="with --host: go on as events happen")
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="severities and actions of your own (xid-policy.json)"
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.errors import UsageError

    if bool(args.file) == bool(args.host):
        raise UsageError("name a log FILE (or -), or a host with --host, one of them", hint="gpu-ami events --help")
    if args.follow and not args.host:
        raise UsageError("--follow needs --host", hint="for a file: tail -F FILE | gpu-ami events -")
    return Outcome(text=_lines(args))


def _lines(args: argparse.Namespace) -> Iterator[str]:
    import json
    import os
    import sys

    from gpu_ami import events

    if args.host:
        source = events.open_host(args.host, follow=args.follow, key_file=args.identity_file)
    else:
        source = events.open_log(args.file)
    with source as stream:
        found = events.read_events(stream, args.policy)
        if args.json:
            yield from (json.dumps(event, ensure_ascii=False) for event in found)
        else:
            yield from events.table(found, colour=sys.stdout.isatty() and not os.environ.get("NO_COLOR"))
