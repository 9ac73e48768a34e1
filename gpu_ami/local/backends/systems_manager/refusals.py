"""The error that an action answers with."""

from __future__ import annotations


class Refused(Exception):
    """A code of the API reference, and the sentence that AWS writes beside it."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message
