"""How a service of the region refuses a call, and who the agent of an instance is."""

from __future__ import annotations

from localregion.backends.instance import instance_of_access_key


class Refused(Exception):
    """A code of the service's API reference, the sentence that AWS writes beside it, and the HTTP status."""

    def __init__(self, code: str, message: str = "", status: int = 400) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.status = code, message, status


def calling_instance(action: str, access_key: str) -> str:
    """The instance whose agent calls. Refused: the key is no instance's, and only agents may call this action."""
    instance_id = instance_of_access_key(access_key)
    if instance_id is None:
        raise Refused("AccessDeniedException", f"{action} is for the agent of an instance")
    return instance_id
