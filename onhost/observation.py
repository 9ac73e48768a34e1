"""What is in a system: each component's version by every source that names one, and what its agent sends.

    observation.py [--root /] [--running] < REQUEST

REQUEST is JSON: component → list of sources [kind, target, pattern, text] (gpu_ami/recipes/rules/component.py). With
--root it reads the files of a tree and runs nothing of it; on the running system (--running) it also asks the kernel,
programs and libraries. Prints one JSON document. Python 3.6 or newer, standard library alone; changes nothing.
"""

import argparse
import glob
import gzip
import json
import lzma
import os
import re
import shutil
import struct
import subprocess
import sys
from typing import Any, Dict, Iterator, List, Optional, Sequence, Tuple

try:
    # remote.program() sends them along.
    from hwevents import materials, shippers  # type: ignore[import-not-found, unused-ignore]
    from hwevents.materials import Tree  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    from onhost import materials, shippers
    from onhost.materials import Tree

Reading = Dict[str, Any]

SCHEMA = "gpu-ami/observation/1"
SECONDS = 30.0
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/aws/neuron/bin"
LIBRARY_FOLDERS = (
    "/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/local/lib",
    "/usr/local/lib64", "/usr/lib/x86_64-linux-gnu/nvidia/current", "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64", "/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu",  # of a system whose /usr is not merged
    "/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/*/lib", "/opt/amazon/efa/lib*", "/opt/amazon/ofi-nccl/lib*",
    "/opt/amazon/ofi-nccl/lib/*-linux-gnu", "/opt/nvidia/*/lib*", "/opt/intel/oneapi/mkl/*/lib", "/opt/aws/neuron/lib",
)  # fmt: skip
# Packages of container runtimes (runtimes.names in variables/facts/advisories.yml).
RUNTIMES = ("containerd", "containerd.io", "docker", "docker-ce", "docker.io", "moby-engine", "runc")
NVIDIA_SMI = ("/usr/bin/nvidia-smi", "/usr/local/bin/nvidia-smi", "/usr/libexec/nvidia/tesla/bin/nvidia-smi")


def output(*command: str) -> str:
    """What a program prints; "" where it is missing, fails or takes too long."""
    try:
        done = subprocess.run(
            list(command), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            timeout=SECONDS, check=False,
            env={"LC_ALL": "C.UTF-8", "PATH": PATH},
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode("utf-8", "replace")


_MODINFO = re.compile(rb"(version|license|vermagic|signer|srcversion)=([^\0]{1,200})(?=\0)")
MODULE_BYTES = 256 << 20  # nvidia.ko has about 100 MiB; what unpacks to more is no module


# --- kernel modules -------------------------------------------------------------------------------------------------


def kernels(tree: Tree) -> List[str]:
    """Releases of the installed kernels. Folders without a list of modules are what a removed kernel left."""
    return [os.path.basename(path) for path in tree.glob("/lib/modules/*") if tree.glob(path + "/modules.dep")]


def modinfo(path: str) -> Dict[str, str]:
    """The fields of section .modinfo of a module's file. zstd is asked of the zstd program; {} where it is missing.

    ValueError: it unpacks to more than MODULE_BYTES.
    """
    is_larger = os.path.getsize(path) > MODULE_BYTES  # gzip and xz read zeros behind their end, to the end
    content = b"" if is_larger else _module(path)
    if is_larger or len(content) > MODULE_BYTES:
        raise ValueError("more than %d MiB: not read" % (MODULE_BYTES >> 20))
    fields: Dict[str, str] = {}
    for match in _MODINFO.finditer(content):
        if match.start() == 0 or content[match.start() - 1] == 0:
            fields.setdefault(match.group(1).decode(), match.group(2).decode("utf-8", "replace"))
    return fields


def nothing_in(path: str) -> str:
    """Why a module's file shows no field: each module that kbuild made has some."""
    if path.endswith(".zst") and not shutil.which("zstd"):
        return "the program zstd is needed to read it"
    return "no module information in it"


def _module(path: str) -> bytes:
    """A module's unpacked file, or its beginning of MODULE_BYTES and one."""
    if path.endswith(".gz"):
        with gzip.open(path) as unpacked:
            return unpacked.read(MODULE_BYTES + 1)
    if path.endswith(".xz"):
        with lzma.open(path) as unpacked:
            return unpacked.read(MODULE_BYTES + 1)
    if path.endswith(".zst"):
        return _unzstd(path)
    with open(path, "rb") as file:
        return file.read(MODULE_BYTES + 1)


def _unzstd(path: str) -> bytes:
    try:
        program = subprocess.Popen(["zstd", "-dcq", path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    except FileNotFoundError:
        return b""
    with program:
        assert program.stdout is not None
        content = program.stdout.read(MODULE_BYTES + 1)
        program.kill()
    return content


class Modules:
    """Module files of all kernels, listed once."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self.files: Dict[str, List[Tuple[str, str]]] = {}  # module → kernel, and path with the root before it
        for kernel in kernels(tree):
            top = tree.resolve("/lib/modules/" + kernel)
            for folder, below, names in os.walk(top):
                for path in [os.path.join(folder, name) for name in below]:
                    if not os.path.islink(path):  # which no walk follows
                        tree.is_open(tree.shown(path))
                for name in names:
                    plain = re.sub(r"\.ko(\.(gz|xz|zst))?$", "", name).replace("-", "_")
                    path = os.path.join(folder, name)
                    if plain != name and os.path.exists(self.real(path)):  # of a broken link depmod takes nothing
                        self.files.setdefault(plain, []).append((kernel, path))

    def real(self, path: str) -> str:
        """The file behind a path. RHEL's weak-updates are absolute links to the module of another kernel."""
        return self.tree.resolve(self.tree.shown(path)) if os.path.islink(path) else path

    def kernels_with(self, *names: str) -> List[str]:
        return sorted({kernel for name in names for kernel, _ in self.files.get(name, ())})


# --- readings -------------------------------------------------------------------------------------------------------


class Observer:
    """Reads the sources of components."""

    def __init__(self, root: str, running: bool) -> None:
        self.tree, self.running = Tree(root), running
        self.database, self.packages = materials.database(self.tree)
        self.errors = [row["error"] for row in self.packages if "error" in row]
        self.packages = [row for row in self.packages if "error" not in row]
        self.modules = Modules(self.tree)
        self.library_folders = self._library_folders()

    def _library_folders(self) -> List[str]:
        """Folders with shared libraries: the usual ones, and those of ld.so.conf. Each once, by its real path."""
        patterns = list(LIBRARY_FOLDERS)
        for path in ["/etc/ld.so.conf"] + self.tree.glob("/etc/ld.so.conf.d/*.conf"):
            lines = [line.strip() for line in (self.tree.text(path) or "").splitlines()]
            patterns += [line for line in lines if line.startswith("/")]
        by_real: Dict[str, str] = {}
        for pattern in patterns:
            for folder in self.tree.glob(pattern):
                by_real.setdefault(self.tree.resolve(folder), folder)
        return sorted(by_real.values())

    def read(self, source: Sequence[str]) -> Iterator[Reading]:
        kind, target, pattern, text = source
        for reading in getattr(self, "_" + kind)(target, pattern, text):
            yield dict(reading, source=text or kind)

    def _package(self, target: str, pattern: str, _text: str) -> Iterator[Reading]:
        for row in self.packages:
            version = re.search(pattern, row["version"])
            if re.fullmatch(target, row["name"]) and version:
                yield {
                    "version": ".".join(filter(None, version.groups())), "where": row["name"] + " " + row["version"],
                    "package": row["name"], "full": row["version"], "held": bool(row["held"]),
                }  # fmt: skip

    def _file(self, target: str, pattern: str, _text: str) -> Iterator[Reading]:
        """The version in a file's name, behind its links."""
        patterns = [target] if target.startswith("/") else [folder + "/" + target for folder in self.library_folders]
        seen = set()
        for path in [path for one in patterns for path in self.tree.glob(one)]:
            real = self.tree.shown(self.tree.resolve(path))
            match = re.search(pattern, real)
            if match and real not in seen and os.path.exists(self.tree.resolve(path)):
                seen.add(real)
                yield {"version": ".".join(filter(None, match.groups())), "where": real}

    def _content(self, target: str, pattern: str, _text: str) -> Iterator[Reading]:
        for path in self.tree.glob(target):
            match = re.search(pattern, self.tree.text(path) or "")
            if match:
                yield {"version": ".".join(filter(None, match.groups())), "where": path}

    def _module(self, target: str, pattern: str, _text: str) -> Iterator[Reading]:
        for kernel, path in self.modules.files.get(target, ()):
            try:
                fields = modinfo(self.modules.real(path))
                if not fields:
                    raise ValueError(nothing_in(path))
            except (OSError, EOFError, ValueError, lzma.LZMAError) as error:
                yield {"version": "", "where": self.tree.shown(path), "kernel": kernel, "error": str(error)}
                continue
            match = re.search(pattern, fields.get("version", ""))
            version = ".".join(filter(None, match.groups())) if match else ""
            yield {
                "version": version, "where": self.tree.shown(path), "kernel": kernel,
                "license": fields.get("license", ""), "built_for": fields.get("vermagic", "").split(" ")[0],
            }  # fmt: skip

    def _loaded(self, target: str, pattern: str, _text: str) -> Iterator[Reading]:
        folder = "/sys/module/" + target
        if self.running and os.path.isdir(self.tree.resolve(folder)):
            match = re.search(pattern, self.tree.text(folder + "/version") or "")
            says = (self.tree.text("/proc/driver/" + target + "/version") or "").split("\n")[0]  # as NVIDIA's has
            yield {"version": ".".join(filter(None, match.groups())) if match else "", "where": folder, "says": says}

    def _program(self, target: str, pattern: str, _text: str) -> Iterator[Reading]:
        """What a program prints of itself. Only on the running system: an image's programs are not run."""
        if self.running:
            match = re.search(pattern, output(*target.split(" ")))
            if match:
                yield {"version": ".".join(filter(None, match.groups())), "where": "`" + target + "`"}

    def _library(self, target: str, pattern: str, _text: str) -> Iterator[Reading]:
        """What a shared library says of itself, as the loader finds it. target: soname and function."""
        soname, _, function = target.partition(" ")
        if self.running:
            number = library_version(soname, function)
            if number is not None:
                yield {"version": decoded(number, pattern), "where": soname + " " + function + "()"}


def library_version(soname: str, function: str) -> Optional[int]:
    """The number that `function(int *)` gives, or `function()` where its name ends in (). In a process of its own."""
    program = (
        "import ctypes,sys\n"
        "f=getattr(ctypes.CDLL(sys.argv[1]),sys.argv[2])\n"
        "n=ctypes.c_int(0)\n"
        "f.restype=ctypes.c_size_t\n"
        "print(n.value if sys.argv[3]=='pointer' and f(ctypes.byref(n)) is not None else f())\n"
    )
    how = "result" if function.endswith("()") else "pointer"
    text = output(sys.executable or "python3", "-IS", "-c", program, soname, function.replace("()", ""), how).strip()
    return int(text) if text.isdigit() and text != "0" else None


def decoded(number: int, pattern: str) -> str:
    """A version of a number, by the vendor's rule: cuda 12090 → 12.9, nccl 22105 → 2.21.5, cudnn 90100 → 9.1.0."""
    if pattern == "cuda":
        return "%d.%d" % (number // 1000, number % 1000 // 10)
    if pattern == "nccl":
        major = 10000 if number >= 10000 else 1000
        return "%d.%d.%d" % (number // major, number % major // 100, number % 100)
    major = 10000 if number >= 90000 else 1000
    return "%d.%d.%d" % (number // major, number % major // 100, number % 100)


# --- the rest -------------------------------------------------------------------------------------------------------


# Linux's own drivers that may bind a GPU before NVIDIA's; nova_core is of Linux 6.15 and later (Launchpad 2150845).
OF_LINUX = ("nouveau", "nova_core")


def settings(tree: Tree, units: Any) -> Dict[str, Any]:
    """What rules ask beside versions: blacklists, kernel options, runtimes, units that start at boot, firmware."""
    blacklists = {
        module: [
            path
            for folder in ("/etc/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
            for path in tree.glob(folder + "/*.conf")
            if re.search(
                r"(?m)^\s*(blacklist %s\b|install %s /bin/(false|true))" % (module, module), tree.text(path) or ""
            )
        ]
        for module in OF_LINUX
    }
    options = sorted(
        line.strip()
        for folder in ("/etc/modprobe.d", "/usr/lib/modprobe.d")
        for path in tree.glob(folder + "/*.conf")
        for line in (tree.text(path) or "").splitlines()
        if re.match(r"\s*options\s+nvidia", line)
    )
    toolkit = tree.text("/etc/nvidia-container-runtime/config.toml") or ""
    # ECS's Docker starts with runtimes of a folder; nvidia-ctk 1.18 and newer write a part for containerd.
    docker = joined(tree, "/etc/docker/daemon.json", "/etc/docker-runtimes.d/*")
    containerd = joined(tree, "/etc/containerd/config.toml", "/etc/containerd/conf.d/*.toml")
    return {
        "blacklisted_in": blacklists, "nvidia_options": options, "enabled": sorted(units.enabled),
        "masked": units.masked, "loader_stubs": loader_stubs(tree),
        "nvidia_smi": [path for path in NVIDIA_SMI if tree.glob(path) and os.path.exists(tree.resolve(path))],
        "firmware": sorted({os.path.basename(path) for path in tree.glob("/lib/firmware/nvidia/[1-9]*")}),
        "login_user": login_user(tree), "runtime_mode": first(r'(?m)^\s*mode\s*=\s*"([\w-]+)"', toolkit),
        "no_cgroups": bool(re.search(r"(?m)^\s*no-cgroups\s*=\s*true", toolkit)),
        "runtimes": [
            name
            for name, text in (("docker", docker), ("containerd", containerd))
            if "nvidia-container-runtime" in text or "nvidia-cdi" in text
        ],
        "has_runtime": [
            name
            for name, pattern in (("docker", "/usr/bin/dockerd"), ("containerd", "/usr/bin/containerd"))
            if tree.glob(pattern)
        ],
        "environments": environments(tree),
    }  # fmt: skip


def joined(tree: Tree, *patterns: str) -> str:
    """The text of all files that match."""
    return "\n".join(tree.text(path) or "" for pattern in patterns for path in tree.glob(pattern))


# Where conda and virtual environments are made by hand, and the records of their packages.
ENVIRONMENTS = ("/opt/*", "/opt/*/envs/*", "/home/*/*", "/home/*/*/envs/*", "/root/*", "/root/*/envs/*", "/usr/local/*")
CONDA = re.compile(r"^(cuda-version|cudatoolkit|cudnn|nccl|pytorch)-(\d[\w.]*)-[^-]+\.json$")
WHEEL = re.compile(r"^nvidia_(cudnn|nccl|cuda_runtime)_cu\d+-(\d[\w.]*)\.dist-info$|^(torch)-(\d[\w.+]*)\.dist-info$")


def environments(tree: Tree) -> List[Dict[str, str]]:
    """Conda and virtual environments with GPU libraries of their own, which the system's package database lacks."""
    found: Dict[str, List[str]] = {}
    for folder in ENVIRONMENTS:
        for path in tree.glob(folder + "/conda-meta/*.json"):
            match = CONDA.match(os.path.basename(path))
            if match:
                found.setdefault(path.rpartition("/conda-meta/")[0], []).append(match.group(1) + " " + match.group(2))
        for path in tree.glob(folder + "/lib/python3*/site-packages/*.dist-info"):
            match = WHEEL.match(os.path.basename(path))
            if match:
                name, version = match.group(1) or match.group(3), match.group(2) or match.group(4)
                found.setdefault(path.rpartition("/lib/")[0], []).append(name + " " + version)
    return [{"path": path, "packages": ", ".join(sorted(set(found[path])))} for path in sorted(found)]


def loader_stubs(tree: Tree) -> List[str]:
    """Folders of CUDA's stub libraries in the loader's path: their libcuda.so.1 computes nothing."""
    found = []
    for path in ["/etc/ld.so.conf"] + tree.glob("/etc/ld.so.conf.d/*.conf"):
        named = re.findall(r"(?m)^\s*(/\S*/stubs)\s*$", tree.text(path) or "")
        found += [folder for folder in named if tree.glob(folder)]
    return found


def first(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else ""


def login_user(tree: Tree) -> str:
    """The default user of cloud-init's settings, or the one that the build's distribution names; "" where unknown."""
    for path in reversed(["/etc/cloud/cloud.cfg"] + tree.glob("/etc/cloud/cloud.cfg.d/*.cfg")):
        match = re.search(r"(?m)^\s*default_user:\s*\n(?:\s+\w+:.*\n)*?\s+name:\s*([\w.-]+)", tree.text(path) or "")
        if match:
            return match.group(1)
    known = {"debian": "admin", "ubuntu": "ubuntu", "amzn": "ec2-user", "rhel": "ec2-user", "rocky": "rocky"}
    return known.get(materials.release(tree).get("ID", ""), "")


def architecture(tree: Tree, running: bool) -> str:
    """Of the system's own programs (ELF header, e_machine), x86_64 or arm64."""
    names = {0x3E: "x86_64", 0xB7: "arm64"}
    for path in ("/bin/sh", "/usr/bin/env", "/sbin/init"):
        real = tree.resolve(path)
        if os.path.isfile(real):
            try:
                with open(real, "rb") as file:
                    head = file.read(20)
            except OSError:  # programs may be executable alone
                continue
            if head[:4] == b"\x7fELF":
                return names.get(struct.unpack_from("<H", head, 18)[0], "")
    return {"x86_64": "x86_64", "aarch64": "arm64"}.get(os.uname().machine, "") if running else ""


def gpu_files(tree: Tree, running: bool) -> List[Dict[str, str]]:
    """NVIDIA's and Neuron's devices on the PCI bus of the running system: address, vendor, device."""
    devices = []
    for folder in sorted(glob.glob("/sys/bus/pci/devices/*")) if running else ():
        try:
            row = {name: open(folder + "/" + name).read().strip() for name in ("vendor", "device", "class")}
        except OSError:
            continue
        if (row["vendor"] == "0x10de" and row["class"][:4] in ("0x03", "0x06")) or row["vendor"] == "0x1d0f":
            devices.append(dict(row, address=os.path.basename(folder)))
    return devices


def observe(root: str, running: bool, request: Dict[str, List[List[str]]]) -> Dict[str, Any]:
    """The document that is printed. root: "" for the running system."""
    observer = Observer(root, running)
    tree, units = observer.tree, shippers.Units(observer.tree)
    release = materials.release(tree)
    readings = {
        name: [reading for source in sources for reading in observer.read(source)] for name, sources in request.items()
    }
    document = {
        "schema": SCHEMA,
        "running": running,
        "os": {
            "id": release.get("ID", ""), "version": release.get("VERSION_ID", ""),
            "name": release.get("PRETTY_NAME", ""), "codename": release.get("VERSION_CODENAME", ""),
        },
        "architecture": architecture(tree, running),
        "kernels": kernels(tree),
        "running_kernel": os.uname().release if running else "",
        "package_database": observer.database,
        "packages": len(observer.packages),
        "errors": observer.errors,
        "readings": readings,
        "unfinished": [row["name"] + " (" + row["state"] + ")" for row in observer.packages if "state" in row],
        "agent": shippers.agent(tree, units),
        "captures": {
            "scripts": shippers.scripts(tree, units), "syslog": shippers.syslog_files(tree, units),
            "shippers": shippers.shippers(tree, units),
        },
        "settings": dict(
            settings(tree, units), of_linux_for={name: observer.modules.kernels_with(name) for name in OF_LINUX},
            uvm_for=observer.modules.kernels_with("nvidia_uvm", "nvidia_current_uvm"),
            runtime_packages={row["name"]: row["version"] for row in observer.packages if row["name"] in RUNTIMES},
        ),
        "devices": gpu_files(tree, running),
    }  # fmt: skip
    return dict(document, unread=sorted(tree.unread))  # of all that was read


def main() -> None:
    parser = argparse.ArgumentParser(description="what is in a system")
    parser.add_argument("--root", default="/", help="the tree to read [%(default)s]")
    parser.add_argument("--running", action="store_true", help="it is this running system: ask kernel and programs")
    parser.add_argument("--request", default="", help="the request as JSON; default: standard input")
    given = parser.parse_args()
    request = json.loads(given.request or sys.stdin.read())
    json.dump(observe(given.root.rstrip("/"), given.running, request), sys.stdout, ensure_ascii=True)
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
