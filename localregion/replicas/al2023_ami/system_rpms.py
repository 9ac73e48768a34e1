"""Runs in the image's file tree: fills its rpm database with the packages of rpms.txt (standard input), by building and
installing empty rpms."""

from __future__ import annotations

import glob
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator

RELEASE = "0.debian12"
# rpm's %{_isa} by the machine's name.
ISAS = {"x86_64": "x86-64", "aarch64": "aarch-64"}


def debian_version(package: str) -> str:
    """Upstream version of an installed Debian package, with only the characters that rpm allows."""
    query = ["dpkg-query", "-W", "-f", "${Version}", package]
    full = subprocess.run(query, check=True, capture_output=True, text=True).stdout
    upstream = full.split(":", 1)[-1].rsplit("-", 1)[0]
    return "".join(letter if letter.isalnum() or letter in "._+~" else "." for letter in upstream)


def rows(lines: Iterable[str], release: str) -> Iterator[tuple[str, str, list[str]]]:
    special = {"KERNEL-IMAGE": f"linux-image-{release}", "KERNEL-HEADERS": f"linux-headers-{release}"}
    for line in lines:
        words = line.partition("#")[0].replace("(ISA)", f"({ISAS[platform.machine()]})").split()
        if words:
            name = words[0].replace("-release", f"-{release}") if words[0].startswith("kernel") else words[0]
            provides = [word.replace("=", " = ") for word in words[2:]]
            literal = words[1].startswith("=")
            version = words[1][1:] if literal else f"{debian_version(special.get(words[1], words[1]))}-{RELEASE}"
            yield name, version, provides


def spec(packages: Iterable[tuple[str, str, list[str]]]) -> str:
    """One source package without a main package, with one subpackage for each row."""
    head = {
        "Name": "system",
        "Version": "1",
        "Release": "1",
        "Summary": "x",
        "License": "Apache-2.0",
        "AutoReqProv": "no",
    }
    parts = ["".join(f"{key}: {value}\n" for key, value in head.items()) + "%description\n"]
    for name, version, provides in packages:
        version, _, revision = version.rpartition("-")
        parts.append(
            f"%package -n {name}\nSummary: {name} of the base image\nVersion: {version}\nRelease: {revision}\n"
            "Vendor: gpu-ami base image\nAutoReqProv: no\n"
            + "".join(f"Provides: {item}\n" for item in provides)
            + f"%description -n {name}\nStands for the package of the base image.\n%files -n {name}\n"
        )
    return "\n".join(parts)


def main() -> None:
    release = sys.argv[1]
    with tempfile.TemporaryDirectory() as work:
        path = os.path.join(work, "system.spec")
        with open(path, "w") as file:
            file.write(spec(rows(sys.stdin, release)))
        build = ["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {work}", path]
        subprocess.run(build, stdout=subprocess.DEVNULL, check=True)
        for command in (["rpm", "--initdb"], ["rpm", "-i", *sorted(glob.glob(f"{work}/RPMS/*/*.rpm"))]):
            subprocess.run(command, stdout=subprocess.DEVNULL, check=True)


if __name__ == "__main__":
    main()
