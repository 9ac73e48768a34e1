"""Connections between nodes on ports that the kernel chooses, as Open MPI and NCCL make them. Python 3.6 or newer.

    tcp_exchange.py listen ADDRESS          prints the port, then answers every connection; ends with its standard input
    tcp_exchange.py send ADDRESS PORT SECONDS   sends 1 MiB of random bytes and compares their digest with the answer

send: exit 0: the same digest; 1: another one, or no connection; the reason is on standard output.
"""

import hashlib
import os
import socket
import sys
import threading

_BYTES = 1 << 20
_SECONDS = 60.0  # for one connection to send all it has


def listen(address: str) -> None:
    server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    server.bind((address, 0))
    server.listen(64)
    _say(server.getsockname()[1])
    while True:
        connection, _ = server.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _say(text: object) -> None:
    print(text, file=sys.stdout, flush=True)


def _answer(connection: socket.socket) -> None:
    digest = hashlib.sha256()
    with connection:
        connection.settimeout(_SECONDS)
        try:
            while True:
                data = connection.recv(1 << 16)
                if not data:
                    break
                digest.update(data)
            connection.sendall(digest.hexdigest().encode())
        except OSError:
            pass  # whoever sends sees the missing answer


def send(address: str, port: int, seconds: float) -> int:
    data = os.urandom(_BYTES)
    try:
        with socket.create_connection((address, port), timeout=seconds) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            answer = b""
            while True:
                part = connection.recv(128)
                if not part:
                    break
                answer += part
    except OSError as error:
        _say(error.strerror or error or type(error).__name__)
        return 1
    if answer.decode(errors="replace") != hashlib.sha256(data).hexdigest():
        _say("another digest came back: {!r}".format(answer))
        return 1
    _say("{} bytes".format(_BYTES))
    return 0


if __name__ == "__main__":
    if sys.argv[1] == "listen":
        listen(sys.argv[2])
    else:
        raise SystemExit(send(sys.argv[2], int(sys.argv[3]), float(sys.argv[4])))
