"""The relays between a guest and the host's services.

QEMU's user network starts one program per connection of the guest (`guestfwd=…-cmd:PROGRAM`; the form with a host and a
port keeps a single connection for the machine's whole life). The program connects its stdin, a socket, to a service.
"""

from __future__ import annotations

import sys
from pathlib import Path

# -I -S: no site packages, no environment; starts in about 15 ms. A half-closed connection stays open the other way.
_PROGRAM = """\
#!/bin/sh
exec "{python}" -I -S -c '
import select, socket, sys
here = socket.socket(fileno=0)
there = socket.socket(socket.{family})
there.connect({address})
other = {{here: there, there: here}}
while other:
    for end in select.select(list(other), [], [])[0]:
        try:
            data = end.recv(65536)
        except OSError:
            data = b""
        if data:
            other[end].sendall(data)
            continue
        try:
            other[end].shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if end is there:
            sys.exit()
        del other[end]
'
"""


def write_unix_relay(program: Path, socket_name: str) -> None:
    """A relay to the unix socket `socket_name` in the program's own folder (QEMU's working directory)."""
    _write(program, "AF_UNIX", f'"{socket_name}"')


def write_tcp_relay(program: Path, port: int) -> None:
    """A relay to a port of the host's loopback."""
    _write(program, "AF_INET", f'("127.0.0.1", {port})')


def write_port_file_relay(program: Path, port_file: Path) -> None:
    """A relay to the port of the host's loopback that a file names now; without the file, connections end at once."""
    _write(program, "AF_INET", f'("127.0.0.1", int(open({str(port_file)!r}).read()))'.replace("'", '"'))


def _write(program: Path, family: str, address: str) -> None:
    python = str(Path(sys.executable).resolve())
    program.write_text(_PROGRAM.format(python=python, family=family, address=address))
    program.chmod(0o700)
