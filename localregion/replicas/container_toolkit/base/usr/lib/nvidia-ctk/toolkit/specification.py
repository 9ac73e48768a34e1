"""A CDI specification of the GPUs that the driver shows, in the form of `nvidia-ctk cdi generate`."""

import glob
import json
import os
import re
import stat
from typing import Any, Optional

Table = dict[str, Any]
PROC = "/proc/driver/nvidia"
DEV = "/dev"
RUN = "/run/nvidia-smi"
KIND = "nvidia.com/gpu"
VERSION, WITH_GROUPS = "0.5.0", "0.7.0"  # of CDI: groups of the process came with the second
HOOK = "/usr/bin/nvidia-cdi-hook"
CONTROL = ("nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")
# Releases of nvidia-ctk that begin to write it: the Go modules of 1.17.8, 1.18.2, 1.19.1 and 1.20.1. The hook
# create-soname-symlinks was in 1.18.0-rc.1 alone.
COMPAT, PARAMS, SONAMES, NUMBERS, PROFILE, LIMITS = (1, 17), (1, 18), (1, 18), (1, 19), (1, 20), (1, 20, 1)
LIBRARIES = ("/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu")
# Of the replica alone: its nvidia-smi is a program in Python with a folder of its own.
PROGRAMS = ("/usr/bin/nvidia-smi", "/usr/bin/nvidia-debugdump", "/usr/lib/nvidia-smi")
_READ_ONLY = ["ro", "nosuid", "nodev", "rbind", "rprivate"]


def read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def gpus() -> list[tuple[str, str, str]]:
    """(index, UUID, device node) of each GPU, in the order of its addresses."""
    found: list[tuple[str, str, str]] = []
    for address in sorted(os.listdir(PROC + "/gpus")) if os.path.isdir(PROC + "/gpus") else []:
        text = read("%s/gpus/%s/information" % (PROC, address)) or ""
        values = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        uuid, minor = values.get("GPU UUID", "").strip(), values.get("Device Minor", "").strip()
        if uuid and minor:
            found.append((str(len(found)), uuid, "%s/nvidia%s" % (DEV, minor)))
    return found


def mig_devices(uuid: str) -> list[str] | None:
    """UUIDs of a GPU's MIG devices; None: the GPU is not in MIG mode. nvidia-smi keeps them in RUN."""
    state = json.loads(read("%s/%s" % (RUN, uuid)) or "{}")
    if not state.get("mig"):
        return None
    first = int(uuid[4], 16) ^ 8  # as in nvidia-smi
    return ["MIG-%x%s%x" % (first, uuid[5:-1], number) for number in range(len(state.get("instances") or ()))]


def driver_version() -> str:
    match = re.search(r"^NVRM version: .*?\s(\d{3}\.\d+(?:\.\d+)?)\s", read(PROC + "/version") or "", re.MULTILINE)
    return match[1] if match else ""


def release(text: str) -> tuple[int, ...]:
    """(1, 20, 1) of `1.20.1`."""
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def specify(found: list[tuple[str, str, str]], version: tuple[int, ...], kind: str = KIND) -> Table:
    """found: what `gpus` gives. version: the release of the toolkit."""
    devices = []
    for index, uuid, node in found:
        migs = mig_devices(uuid)
        # As nvidia-ctk: a GPU in MIG mode is no device, each of its MIG devices is one (pkg/nvcdi/lib-nvml.go).
        names = [index, uuid] if migs is None else []
        for number, mig in enumerate(migs or ()):
            names += ["%s:%d" % (index, number), mig]
        devices += [_device(name, [node], [uuid] if migs is None else [], version) for name in names]
    uuids = [uuid for _, uuid, _ in found if mig_devices(uuid) is None]
    devices.append(_device("all", [node for _, _, node in found], uuids, version))
    devices.sort(key=lambda device: device["name"])
    edits = common(version)
    with_groups = any("additionalGids" in row for row in (edits, *(device["containerEdits"] for device in devices)))
    cdi = WITH_GROUPS if with_groups else VERSION
    return {"cdiVersion": cdi, "kind": kind, "devices": devices, "containerEdits": edits}


def _device(name: str, nodes: list[str], uuids: list[str], version: tuple[int, ...]) -> Table:
    edits = _nodes(nodes, version)
    if version >= LIMITS and uuids:
        words = ("apply-cuda-memory-limits", "--driver-root", "/", "--gpu-id")
        edits["hooks"] = [_hook(version, *words, uuid, stage="createRuntime") for uuid in uuids]
    return {"name": name, "containerEdits": _ordered(edits)}


def _ordered(edits: Table) -> Table:
    """In the original's order."""
    keys = ("env", "deviceNodes", "hooks", "mounts", "additionalGids")
    return {key: edits[key] for key in keys if key in edits}


def _nodes(paths: list[str], version: tuple[int, ...]) -> Table:
    """The device nodes, from 1.19 on with what they are; and the groups without which a process cannot open them."""
    rows, groups = [], []
    for path in paths:
        row: Table = {"path": path}
        if version >= NUMBERS:
            status = os.stat(path)
            mode = stat.S_IMODE(status.st_mode)
            row.update(major=os.major(status.st_rdev), minor=os.minor(status.st_rdev), fileMode=mode, permissions="rwm")
            if status.st_gid:
                row["gid"] = status.st_gid
                groups += [] if mode & 0o006 == 0o006 else [status.st_gid]
        rows.append(row)
    edits: Table = {"deviceNodes": rows} if rows else {}
    return edits | ({"additionalGids": list(dict.fromkeys(groups))} if groups else {})


def common(version: tuple[int, ...]) -> Table:
    """What every container with a GPU gets."""
    nodes = [node for node in ("%s/%s" % (DEV, name) for name in CONTROL) if os.path.exists(node)]
    driver = driver_version()
    libraries = [path for folder in LIBRARIES for path in sorted(glob.glob("%s/lib*.so.%s" % (folder, driver or "-")))]
    programs = [path for path in PROGRAMS if os.path.exists(path)]
    folders = sorted({os.path.dirname(path) for path in libraries})
    edits: Table = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    if folders and version >= PARAMS:
        edits["env"].insert(0, "NVIDIA_CTK_LIBCUDA_DIR=" + ":".join(folders))
    hooks = _hooks(version, driver, libraries, folders)
    edits.update(_nodes(nodes, version))
    if libraries or programs:
        edits["mounts"] = [
            {"hostPath": path, "containerPath": path, "options": _READ_ONLY} for path in libraries + programs
        ]
    return _ordered(edits | ({"hooks": hooks} if hooks else {}))


def _hooks(version: tuple[int, ...], driver: str, libraries: list[str], folders: list[str]) -> list[Table]:
    """In the order of the original, which writes the others also where a driver has no libraries."""
    links = [link for path in libraries for link in _links(path, version)]
    links = [word for link in dict.fromkeys(links) for word in ("--link", link)]
    hooks = [_hook(version, "create-symlinks", *links)] if links else []
    if version >= COMPAT and driver:
        hooks.append(_hook(version, "enable-cuda-compat", "--host-driver-version=" + driver))
    if folders:
        words = [word for folder in folders for word in ("--folder", folder)]
        hooks.append(_hook(version, "update-ldcache", *words))
    if version >= PARAMS:
        hooks.append(_hook(version, "disable-device-node-modification"))
    if version >= PROFILE:
        hooks.append(_hook(version, "update-application-profile"))
    return hooks


def _links(path: str, version: tuple[int, ...]) -> list[str]:
    """`target::link` of a library: libcuda.so for programs that open it, and the links that the machine has."""
    folder, name = os.path.split(path)
    stem = name.partition(".so.")[0] + ".so"
    links = ["libcuda.so.1::%s/libcuda.so" % folder] if stem == "libcuda.so" else []
    if version >= SONAMES:
        found = sorted(glob.glob("%s/%s*" % (folder, stem)), key=len, reverse=True)
        targets = {os.path.basename(link): os.readlink(link) for link in found if os.path.islink(link)}
        sonames = [link for link, target in targets.items() if target == name]
        links += ["%s::%s/%s" % (name, folder, soname) for soname in sonames]
        links += ["%s::%s/%s" % (soname, folder, stem) for soname in sonames if targets.get(stem) == soname]
    return links


def _hook(version: tuple[int, ...], *words: str, stage: str = "createContainer") -> Table:
    hook: Table = {"hookName": stage, "path": HOOK, "args": ["nvidia-cdi-hook", *words]}
    return hook | ({"env": ["NVIDIA_CTK_DEBUG=false"]} if version >= PARAMS else {})


def text_of(document: Table) -> str:
    """YAML as the original writes it (from 1.18 on): four columns for each level."""
    return "\n".join(["---", *_rows(document, 0), ""])


def _rows(table: Table, depth: int, column: "Optional[int]" = None) -> list[str]:
    """depth: of the table's values; column: of its keys, within an item of a list."""
    pad = " " * (4 * depth if column is None else column)
    rows: list[str] = []
    for key, value in table.items():
        if isinstance(value, dict):
            rows += [pad + key + ":", *_rows(value, depth + 1)]
        elif isinstance(value, list):
            rows.append(pad + key + ":")
            for item in value:
                dash = " " * 4 * (depth + 1) + "- "
                inner = _rows(item, depth + 1, len(dash)) if isinstance(item, dict) else [dash + _scalar(item)]
                rows += [dash + inner[0].strip().removeprefix("- "), *inner[1:]]
        else:
            rows.append("%s%s: %s" % (pad, key, _scalar(value)))
    return rows


def _scalar(text: object) -> str:
    if not isinstance(text, str):
        return json.dumps(text)
    number = re.fullmatch(r"[-+]?[0-9_]+(:[0-9]+)*(\.[0-9]*)?", text)
    plain = re.fullmatch(r"[\w/.-][\w./:=@+-]*", text) and not text.endswith(":")
    return text if plain and not number else json.dumps(text)
