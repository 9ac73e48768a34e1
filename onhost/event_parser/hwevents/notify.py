"""systemd's notification protocol, sd_notify(3): READY, WATCHDOG, STATUS, STOPPING."""

from __future__ import annotations

import _socket  # only the C module: `socket` needs a megabyte more memory
import os
from typing import Optional


class Notifier:
    """Sends nothing where systemd did not ask for it (no $NOTIFY_SOCKET)."""

    def __init__(self, address: Optional[str] = None) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "") if address is None else address
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = None  # type: Optional[_socket.socket]
        if self._address:
            self._socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM | _socket.SOCK_CLOEXEC)

    def send(self, *fields: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto("\n".join(fields).encode("utf-8"), self._address)
        except OSError:
            pass  # events must be written whether systemd listens or not


def watchdog_seconds() -> Optional[float]:
    """Half of the watchdog's interval in seconds; None without a watchdog."""
    raw = os.environ.get("WATCHDOG_USEC", "")
    return int(raw) / 2e6 if raw.isdigit() and int(raw) > 0 else None
