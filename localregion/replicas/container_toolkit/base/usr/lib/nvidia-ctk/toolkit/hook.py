"""nvidia-cdi-hook: what is done in a container's root before it starts. It reads the container's state from stdin."""

import argparse
import contextlib
import json
import os
import subprocess
import sys


def container_root(text: str) -> str:
    bundle = json.loads(text)["bundle"]
    with open(os.path.join(bundle, "config.json"), encoding="utf-8") as file:
        root = json.load(file)["root"]["path"]
    return str(os.path.join(bundle, root))


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


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="nvidia-cdi-hook")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("create-symlinks").add_argument("--link", action="append", default=[])
    commands.add_parser("update-ldcache").add_argument("--folder", action="append", default=[])
    options = parser.parse_args(words)
    root = container_root(sys.stdin.read())
    if options.command == "create-symlinks":
        create_symlinks(root, options.link)
    else:
        update_ldcache(root, options.folder)
    return 0
