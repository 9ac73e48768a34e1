"""`gpu-ami events`: the GPU events of a log, a host, or standard input."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome

if TYPE_CHECKING:
    from gpu_ami.events import reader
    from gpu_ami.progress import Progress

_EPILOG = """\
Reads dmesg, journalctl (every -o format), syslog, /dev/kmsg, container logs, JSON of log shippers, exports of
CloudWatch Logs and gpuevent.jsonl; compressed (gzip, bzip2, xz, zstd), and archives (tar, zip), nested ones too:
NVIDIA's bug report, the bundle of gpu-ami-diagnose. An event in several logs is listed once. A line in which a program
quotes an Xid is not an event; a line that a process wrote to /dev/kmsg is marked as a drill. Skipped lines are listed.
fabricmanager.log, the Neuron runtime's log and the Fabric Manager's journal are read, too. Events with the same text
are one row with their count and the time of the last; --all prints a row for each, as it arrives.
What to do after an event: docs/tasks/xid-fired.md

examples:
  gpu-ami events messages.gz                      a log file
  gpu-ami events nvidia-bug-report.log.gz         all logs in an archive, each event once
  journalctl -k | gpu-ami events -                this machine
  aws logs tail GROUP | gpu-ami events -          a CloudWatch log group
  gpu-ami events --host ssh://admin@203.0.113.7   an instance: its event log, else its kernel log
  gpu-ami events --host ssh://… --follow          new events of an instance
  gpu-ami events kern.log --json | jq .code       one JSON object for each event, and one for skipped lines

exit codes: 0 log read, with or without events · 2 file or policy cannot be read · 4 the host cannot be reached
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "events", help="list GPU events (Xid, SXid, lost GPUs) in a log or on a host", epilog=_EPILOG
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="log or archive, or - for standard input")
    parser.add_argument("--host", metavar="URL", help="ssh://user@address[:port]")
    text = "private key for --host (default: agent, ~/.ssh)"
    parser.add_argument("-i", "--identity", "--identity-file", type=Path, metavar="KEY", help=text)
    parser.add_argument("--follow", action="store_true", help="with --host: print new events until interrupted")
    text = "print the line numbers of skipped lines"
    parser.add_argument("-v", "--verbose", action="store_true", help=text)
    text = "a row for each event, as it arrives; default: one for each text, with its number"
    parser.add_argument("--all", action="store_true", help=text)
    parser.add_argument("--policy", type=Path, metavar="FILE", help="your own severities and actions (xid-policy.json)")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.errors import UsageError

    if bool(args.file) == bool(args.host):
        raise UsageError("name a log FILE (or -), or a host with --host, one of them", hint="gpu-ami events --help")
    if args.follow and not args.host:
        raise UsageError("--follow needs --host", hint="for a file: tail -F FILE | gpu-ami events --all -")
    return Outcome(text=_lines(args))


def _lines(args: argparse.Namespace) -> Iterator[str]:
    import json
    import os
    import sys

    from gpu_ami.events import output, reader

    lines = reader.LeftOut()
    gpu_events = _of_host(args, lines) if args.host else _of_file(args, lines)
    if args.json:
        yield from (json.dumps(event, ensure_ascii=False) for event in gpu_events)
        document = lines.document()
        if document:
            yield json.dumps(document, ensure_ascii=False)
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        yield from output.table(
            gpu_events, colour=colour, left_out=lines, verbose=args.verbose, every_row=args.all or args.follow
        )


def _of_file(args: argparse.Namespace, lines: reader.LeftOut) -> Iterator[reader.Event]:
    from gpu_ami.events import reader

    return reader.read_log(args.file, args.policy, lines)


def _of_host(args: argparse.Namespace, lines: reader.LeftOut) -> Iterator[reader.Event]:
    from gpu_ami.events import reader
    from gpu_ami.validate import hosts

    with reader.open_host(hosts.host_url(args.host), follow=args.follow, key_file=args.identity) as stream:
        yield from reader.read_events(stream, args.policy, left_out=lines)
