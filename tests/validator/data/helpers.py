"""What ordered.py shares with other files of its user."""

import os


def place():
    return os.environ["ORDERED_PLACE"]


def write(host, text):
    host.check_output("echo %s > %s/file", text, place())
