"""nvidia-cdi-hook: what is done in a container's root before it starts. It reads the container's state from stdin."""

import argparse
import contextlib
import glob
import json
import os
import re
import stat
import subprocess
import sys

from .log import Failure

PARAMS = "/proc/driver/nvidia/params"
COMPAT = "/usr/local/cuda/compat"
PROFILES = "/etc/nvidia/nvidia-application-profiles-rc.d"
SCRATCH = "/run/nvidia-ctk-hook/gpu-ami"
_LIMITS = ("NVIDIA_GPU_MEMORY_REQUEST=", "NVIDIA_GPU_MEMORY_LIMIT=")


def container_config(text: str) -> tuple[str, dict[str, object]]:
    """(the bundle, its OCI configuration) of a container's state."""
    bundle = str(json.loads(text)["bundle"])
    with open(os.path.join(bundle, "config.json"), encoding="utf-8") as file:
        return bundle, dict(json.load(file))


def container_root(text: str) -> str:
    bundle, config = container_config(text)
    return str(os.path.join(bundle, config["root"]["path"]))  # type: ignore[index]


def inside(root: str, path: str) -> str:
    """The file that a path is in the container: its links begin at the container's root."""
    done, rest = "", [part for part in path.split("/") if part]
    for _ in range(200):
        if not rest:
            break
        part = rest.pop(0)
        if part == "..":
            done = os.path.dirname(done)
        elif os.path.islink(root + done + "/" + part):
            target = os.readlink(root + done + "/" + part)
            done = "" if target.startswith("/") else done
            rest = [piece for piece in target.split("/") if piece not in ("", ".")] + rest
        else:
            done += "/" + part
    return root + done


def create_symlinks(root: str, links: list[str]) -> None:
    for link in links:
        target, _, path = link.partition("::")
        place = root + "/" + path.lstrip("/")
        os.makedirs(os.path.dirname(place), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(place)
        os.symlink(target, place)


def update_ldcache(root: str, folders: list[str]) -> None:
    """As the original: the folders of the driver's libraries come into the container's cache."""
    os.makedirs(root + "/etc/ld.so.conf.d", exist_ok=True)
    with open(root + "/etc/ld.so.conf.d/00-nvcr-gpu-ami.conf", "w", encoding="utf-8") as file:
        file.write("".join(folder + "\n" for folder in folders))
    present = [folder for folder in folders if os.path.isdir(root + folder)]
    subprocess.run(["/sbin/ldconfig", "-r", root, "-C", "/etc/ld.so.cache", *present], check=True)


def enable_cuda_compat(root: str, driver: str) -> None:
    """Forward compatibility: CUDA's libcuda in the container, where it is of a newer branch than the machine's driver.

    The original also reads the header of that library, from 1.20 on; the replica compares the branches alone.
    """
    folder = inside(root, COMPAT)
    found = [re.search(r"/libcuda\.so\.(\d+)\.", path) for path in glob.glob(folder + "/libcuda.so.*.*")]
    if len(found) == 1 and found[0] and int(found[0][1]) > int(driver.partition(".")[0] or 0):
        os.makedirs(root + "/etc/ld.so.conf.d", exist_ok=True)
        with open(root + "/etc/ld.so.conf.d/00-compat-gpu-ami.conf", "w", encoding="utf-8") as file:
            file.write(folder[len(root) :] + "\n")


def without_modification(text: str) -> str:
    """The driver's params with `ModifyDeviceFiles: 0`; "" where they have not 1."""
    changed = re.sub(r"(?m)^ModifyDeviceFiles: 1$", "ModifyDeviceFiles: 0", text)
    return changed if changed != text else ""


def disable_device_node_modification(root: str) -> None:
    """Programs in the container make no device nodes: its /proc/driver/nvidia/params says so."""
    with contextlib.suppress(FileNotFoundError):
        with open(PARAMS, encoding="utf-8") as file:
            text = without_modification(file.read())
        if text:
            scratch = root + SCRATCH
            os.makedirs(scratch, exist_ok=True)
            size = "size=%d" % len(text)
            subprocess.run(["/usr/bin/mount", "-t", "tmpfs", "-o", size, "tmpfs", scratch], check=True)
            with open(scratch + "/nvct-params", "w", encoding="utf-8") as file:
                file.write(text)
            os.chmod(scratch + "/nvct-params", 0o444)
            subprocess.run(["/usr/bin/mount", "--bind", scratch + "/nvct-params", root + PARAMS], check=True)


def update_application_profile(root: str) -> None:
    """EGL and Vulkan show the GPUs whose device nodes the container has."""
    mask = 0
    for path in glob.glob(root + "/dev/nvidia*"):
        status = os.lstat(path)
        if re.search(r"/nvidia\d+$", path) and stat.S_ISCHR(status.st_mode) and os.minor(status.st_rdev) < 64:
            mask |= 1 << os.minor(status.st_rdev)
    if mask:
        profile = {"name": "_container_", "settings": ["EGLVisibleDGPUDevices", "MASK"]}
        rules = [{"pattern": [], "profile": "_container_"}]
        text = json.dumps({"profiles": [profile], "rules": rules}, separators=(",", ":"))
        os.makedirs(root + PROFILES, exist_ok=True)
        with open(root + PROFILES + "/10-container.conf", "w", encoding="utf-8") as file:
            file.write(text.replace('"MASK"', hex(mask)))


def apply_cuda_memory_limits(config: dict[str, object]) -> None:
    variables = config.get("process", {}).get("env") or []  # type: ignore[attr-defined]
    if any(row.startswith(_LIMITS) for row in variables):
        raise Failure("this replica sets no limits of CUDA memory")


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="nvidia-cdi-hook")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("create-symlinks").add_argument("--link", action="append", default=[])
    commands.add_parser("update-ldcache").add_argument("--folder", action="append", default=[])
    commands.add_parser("enable-cuda-compat").add_argument("--host-driver-version", default="")
    commands.add_parser("disable-device-node-modification")
    commands.add_parser("update-application-profile")
    limits = commands.add_parser("apply-cuda-memory-limits")
    limits.add_argument("--driver-root")
    limits.add_argument("--gpu-id", action="append", required=True)
    options = parser.parse_args(words)
    state = sys.stdin.read()
    root = container_root(state)
    if options.command == "create-symlinks":
        create_symlinks(root, options.link)
    elif options.command == "update-ldcache":
        update_ldcache(root, options.folder)
    elif options.command == "enable-cuda-compat":
        enable_cuda_compat(root, options.host_driver_version)
    elif options.command == "disable-device-node-modification":
        disable_device_node_modification(root)
    elif options.command == "update-application-profile":
        update_application_profile(root)
    else:
        apply_cuda_memory_limits(container_config(state)[1])
    return 0
