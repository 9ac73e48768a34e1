"""Messages in the toolkit's form."""

import sys

quiet = False


def log(level: str, message: str) -> None:
    if not quiet or level == "error":
        sys.stderr.write('time="-" level=%s msg="%s"\n' % (level, message.replace('"', '\\"')))


class Failure(Exception):
    """The program ends with 1; the message says why."""
