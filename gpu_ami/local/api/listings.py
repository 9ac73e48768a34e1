"""EC2's lists without what is still unknown: a resource that was created a moment ago is in none of them."""

from __future__ import annotations

from collections.abc import Callable
from xml.etree import ElementTree

# Action → the element whose items are the resources, and the element of an item that names it.
_LISTS = {
    "DescribeImages": ("imagesSet", "imageId"),
    "DescribeInstances": ("instancesSet", "instanceId"),
    "DescribeKeyPairs": ("keySet", "keyName"),
    "DescribeSecurityGroups": ("securityGroupInfo", "groupId"),
}


def without(body: bytes, action: str, is_unknown: Callable[[str], bool]) -> bytes:
    """The answer without the resources that are unknown; a reservation goes with its last instance."""
    if action not in _LISTS:
        return body
    container, name = _LISTS[action]
    root = ElementTree.fromstring(body)
    removed = [_drop(parent, lambda item: is_unknown(_text(item, name))) for parent in _named(root, container)]
    if not any(removed):
        return body
    for reservations in _named(root, "reservationSet"):
        _drop(reservations, lambda item: not any(len(each) for each in _named(item, "instancesSet")))
    ElementTree.register_namespace("", root.tag.partition("}")[0].removeprefix("{"))
    return bytes(ElementTree.tostring(root, encoding="UTF-8", xml_declaration=True))


def _drop(parent: ElementTree.Element, is_dropped: Callable[[ElementTree.Element], bool]) -> int:
    dropped = [item for item in parent if is_dropped(item)]
    for item in dropped:
        parent.remove(item)
    return len(dropped)


def _named(root: ElementTree.Element, name: str) -> list[ElementTree.Element]:
    return [element for element in root.iter() if element.tag.rpartition("}")[2] == name]


def _text(item: ElementTree.Element, name: str) -> str:
    return next((child.text or "" for child in item if child.tag.rpartition("}")[2] == name), "")
