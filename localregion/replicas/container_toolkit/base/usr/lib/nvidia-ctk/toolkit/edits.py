"""Applies CDI's edits to an OCI configuration, as runtimes that know CDI do (its SPEC.md)."""

import os
import stat

from .log import Failure
from .specification import Table


def apply(spec: Table, edits: list[Table]) -> None:
    process = spec.setdefault("process", {})
    for edit in edits:
        for text in edit.get("env") or []:
            name = text.partition("=")[0] + "="
            process["env"] = [row for row in process.get("env") or [] if not row.startswith(name)] + [text]
        for node in edit.get("deviceNodes") or []:
            _device(spec, node)
        for mount in edit.get("mounts") or []:
            _mount(spec, mount)
        for hook in edit.get("hooks") or []:
            row = {key: hook[key] for key in ("path", "args", "env", "timeout") if key in hook}
            spec.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(row)
        if edit.get("additionalGids"):
            user = process.setdefault("user", {})
            user["additionalGids"] = list(dict.fromkeys([*(user.get("additionalGids") or []), *edit["additionalGids"]]))
    spec["mounts"] = sorted(spec.get("mounts") or [], key=lambda row: row["destination"].count("/"))


def _device(spec: Table, node: Table) -> None:
    """What the specification says of the node has precedence over the node itself."""
    path = node.get("hostPath") or node["path"]
    try:
        status = os.stat(path)
    except OSError as error:
        raise Failure("failed to stat CDI host device %r: %s" % (path, error.strerror)) from error
    kind = "b" if stat.S_ISBLK(status.st_mode) else "c"
    major, minor = os.major(status.st_rdev), os.minor(status.st_rdev)
    if node.get("major"):
        major, minor = node["major"], node.get("minor", 0)
    linux = spec.setdefault("linux", {})
    rows = [row for row in linux.get("devices") or [] if row["path"] != node["path"]]
    mode = node.get("fileMode", stat.S_IMODE(status.st_mode))
    device: Table = {"path": node["path"], "type": kind, "major": major, "minor": minor, "fileMode": mode}
    user = spec.get("process", {}).get("user", {})
    device.update((key, user[key]) for key in ("uid", "gid") if user.get(key))
    if node.get("gid"):
        device["gid"] = node["gid"]
    linux["devices"] = [*rows, device]
    rule = {"allow": True, "type": kind, "major": major, "minor": minor, "access": node.get("permissions") or "rwm"}
    resources = linux.setdefault("resources", {})
    resources["devices"] = [*(resources.get("devices") or []), rule]


def _mount(spec: Table, mount: Table) -> None:
    row = {"source": mount["hostPath"], "destination": mount["containerPath"], "type": mount.get("type") or "bind"}
    row["options"] = mount.get("options") or []
    kept = [other for other in spec.get("mounts") or [] if other["destination"] != row["destination"]]
    spec["mounts"] = [*kept, row]
