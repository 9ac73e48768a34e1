"""A port that answers nothing: connections to it time out, as to one that no rule of a security group opens.

A listening socket whose queue is full: Linux drops the SYN of every further connection (net/ipv4/tcp_input.c,
tcp_conn_request: sk_acceptq_is_full), with net.ipv4.tcp_abort_on_overflow at its default of 0. Needs no privileges.
"""

from __future__ import annotations

import socket


class DroppedPort:
    """Drops connections to `address`:`port` until `close`. OSError: the port is in use."""

    def __init__(self, address: str, port: int) -> None:
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind((address, port))
            self._listener.listen(0)  # a queue of one connection: this one
            self._only = socket.create_connection((address, port), timeout=5)
        except OSError:
            self._listener.close()
            raise

    def close(self) -> None:
        self._only.close()
        self._listener.close()
