"""A CDI specification of the GPUs that the driver shows, in the form of `nvidia-ctk cdi generate`."""

import glob
import json
import os
import re
from typing import Any

Table = dict[str, Any]
PROC = "/proc/driver/nvidia"
DEV = "/dev"
RUN = "/run/nvidia-smi"
KIND = "nvidia.com/gpu"
VERSION = "0.5.0"
HOOK = "/usr/bin/nvidia-cdi-hook"
CONTROL = ("nvidia-modeset", "nvidia-uvm", "nvidia-uvm-tools", "nvidiactl")
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


def specify(found: list[tuple[str, str, str]], kind: str = KIND) -> Table:
    """found: what `gpus` gives."""
    devices = []
    for index, uuid, node in found:
        migs = mig_devices(uuid)
        # As nvidia-ctk: a GPU in MIG mode is no device, each of its MIG devices is one (pkg/nvcdi/lib-nvml.go).
        names = [index, uuid] if migs is None else []
        for number, mig in enumerate(migs or ()):
            names += ["%s:%d" % (index, number), mig]
        devices += [_device(name, [node]) for name in names]
    devices.append(_device("all", [node for _, _, node in found]))
    return {"cdiVersion": VERSION, "kind": kind, "devices": devices, "containerEdits": common()}


def _device(name: str, nodes: list[str]) -> Table:
    return {"name": name, "containerEdits": {"deviceNodes": [{"path": node} for node in nodes]}}


def common() -> Table:
    """What every container with a GPU gets."""
    nodes = [node for node in ("%s/%s" % (DEV, name) for name in CONTROL) if os.path.exists(node)]
    version = driver_version()
    libraries = [path for folder in LIBRARIES for path in sorted(glob.glob("%s/lib*.so.%s" % (folder, version or "-")))]
    programs = [path for path in PROGRAMS if os.path.exists(path)]
    folders = sorted({os.path.dirname(path) for path in libraries})
    links = ["libcuda.so.1::%s/libcuda.so" % folder for folder in folders]
    hooks = [_hook("create-symlinks", "--link", link) for link in links]
    hooks += (
        [_hook("update-ldcache", *(word for folder in folders for word in ("--folder", folder)))] if folders else []
    )
    edits: Table = {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    if nodes:
        edits["deviceNodes"] = [{"path": node} for node in nodes]
    if libraries or programs:
        edits["mounts"] = [
            {"hostPath": path, "containerPath": path, "options": _READ_ONLY} for path in libraries + programs
        ]
    return edits | ({"hooks": hooks} if hooks else {})


def _hook(*words: str) -> Table:
    return {"hookName": "createContainer", "path": HOOK, "args": ["nvidia-cdi-hook", *words]}


def text_of(document: Table) -> str:
    """YAML in the toolkit's style: sorted keys, lists not indented."""
    return "\n".join(["---", *_rows(document, 0), ""])


def _rows(value: Table, depth: int) -> list[str]:
    pad = "  " * depth
    rows: list[str] = []
    for key in sorted(value):
        item = value[key]
        if isinstance(item, dict):
            rows += [pad + key + ":", *_rows(item, depth + 1)]
        elif isinstance(item, list):
            rows.append(pad + key + ":")
            for element in item:
                inner = _rows(element, depth + 1) if isinstance(element, dict) else [pad + "  " + _scalar(element)]
                rows += [pad + "- " + inner[0].strip(), *inner[1:]]
        else:
            rows.append("%s%s: %s" % (pad, key, _scalar(item)))
    return rows


def _scalar(text: str) -> str:
    plain = re.fullmatch(r"[A-Za-z/_.-][\w./:=@+-]*", text) and not text.endswith(":")
    return text if plain else json.dumps(text)
