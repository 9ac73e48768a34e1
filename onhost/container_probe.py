"""Starts containers with GPUs on the machine's own Docker or containerd, and runs the compute probe in them.

Reads nothing from a registry: the root file system is made of this machine's Python, with the shared libraries that it
loads, and has no library of the driver. Containers get their GPUs in each way of WAYS. They run side by side, compute,
stay through one `systemctl daemon-reload`, and compute again. Everything is removed at the end.

Python 3.6 or newer, standard library alone, as root. Prints one JSON document; exit status 0 if there is one.
"""

import argparse
import contextlib
import glob
import hashlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from typing import Any, Dict, Iterator, List, Optional, Tuple

SCHEMA = "gpu-ami/containers/1"
COMPUTE_PROBE = globals().get("COMPUTE_PROBE", "")  # its text, which onhost/__init__.py puts before this one
_RUNTIME = "/usr/bin/nvidia-container-runtime"
_KIND = "nvidia.com/gpu"
# Prints the files of modules that are imported; their names are its arguments.
_LIST = """
import importlib, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
for module in list(sys.modules.values()):
    print(getattr(module, "__file__", None) or "")
"""
# Which are imported late: codecs, and what argparse uses.
_FURTHER = ["encodings.ascii", "encodings.latin_1", "encodings.utf_8", "shutil"]
# Runs in the container: each line on its standard input is a request to compute.
_INSIDE_IMPORTS = """
import glob
import json
import subprocess
import sys
"""
_INSIDE = (
    _INSIDE_IMPORTS
    + """
for line in sys.stdin:
    words = [sys.executable, "-IS", "/probe/compute_probe.py", *line.split()]
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
    nodes = sorted(glob.glob("/dev/nvidia*"))
    answer = {"nodes": nodes, "status": done.returncode, "printed": done.stdout, "errors": done.stderr[-600:]}
    sys.stdout.write(json.dumps(answer) + "\\n")
    sys.stdout.flush()
"""
)

# The program of an image that somebody else starts (--image): its result is read from a folder of the host.
_TASK = """
import json
import subprocess
import sys

words = [sys.executable, "-IS", "/probe/compute_probe.py", *sys.argv[1:]]
done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
with open("/result/result.json", "w") as file:
    json.dump({"printed": done.stdout, "errors": done.stderr[-600:]}, file)
sys.exit(done.returncode)
"""
# Runs in a pod, which has no standard input: what it prints is its termination message, of at most 4096 bytes.
_POD_SCRIPT = """
import json
import subprocess
import sys
words = [sys.executable, "-IS", "/probe/compute_probe.py", *sys.argv[1:]]
done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, universal_newlines=True)
rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
machine, gpus = (rows or [{}])[0], rows[1:]
wrong = [[gpu.get("index"), gpu[key]] for gpu in gpus for key in ("error", "wrong", "pattern_wrong") if gpu.get(key)]
keys = ("count", "error", "unfinished", "replica")
answer = {key: machine.get(key) for key in keys}
answer.update(uuids=[gpu.get("uuid") for gpu in gpus], wrong=wrong[:4], errors=done.stderr[-600:])
text = json.dumps(answer)
with open("/dev/termination-log", "w") as file:
    file.write(text[:4096])
good = done.returncode == 0 and not (wrong or answer["error"] or answer["unfinished"]) and len(gpus) == answer["count"]
sys.exit(0 if good else 1)
"""
_POD_NAMESPACE = "k8s.io"  # of containerd, in which kubelet looks for images

Record = Dict[str, Any]


class Failed(Exception):
    """A step failed; the message says which and why."""


def run(words: List[str], seconds: float = 60.0) -> str:
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=seconds
        )
    except OSError as error:
        raise Failed("%s: %s" % (words[0], error.strerror)) from error
    except subprocess.TimeoutExpired as error:
        raise Failed("%s did not end within %g s" % (" ".join(words[:3]), seconds)) from error
    if done.returncode != 0:
        text = (done.stderr or done.stdout).decode(errors="replace").strip()
        raise Failed("%s: %s" % (" ".join(words[:3]), text[-600:] or "exit status %d" % done.returncode))
    return done.stdout.decode(errors="replace")


def linked(path: str) -> List[str]:
    """Paths of the shared libraries that a program or library loads, and the loader itself."""
    return re.findall(r"(?m)(?:=> |^\s+)(/\S+) \(0x", run(["ldd", path]))


def python_files() -> List[str]:
    """Of the interpreter, the modules that the compute probe needs, and their libraries; nothing of site-packages."""
    program = os.path.realpath(sys.executable)
    names = re.findall(r"(?m)^(?:import|from) (\w+)", COMPUTE_PROBE + _INSIDE_IMPORTS)
    modules = run([program, "-IS", "-c", _LIST, *sorted(set(names)), *_FURTHER]).split("\n")
    files = [program, *(name for name in modules if name.startswith("/"))]
    native = [name for name in files if ".so" in os.path.basename(name) or name == program]
    return sorted({*files, *(library for name in native for library in linked(name))})


def make_root(folder: str) -> str:
    """A root file system; returns the path of Python in it.

    Every user of the container has to reach the libraries, whose mount points runc creates: the mask stays for both.
    """
    os.umask(0o022)
    root = os.path.join(folder, "root")
    for name in ("dev", "proc", "sys", "tmp", "etc", "run", "probe", "var"):
        os.makedirs(os.path.join(root, name))
    os.chmod(os.path.join(root, "tmp"), 0o1777)
    for path in python_files():
        target = root + path
        os.makedirs(os.path.dirname(target), exist_ok=True)
        shutil.copy2(path, target)
    texts = {
        "etc/passwd": "root:x:0:0:root:/:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n",
        "etc/group": "root:x:0:\nnogroup:x:65534:\n",
        "probe/compute_probe.py": COMPUTE_PROBE,
        "probe/inside.py": _INSIDE,
        "probe/task.py": _TASK,
        "probe/pod.py": _POD_SCRIPT,
    }
    for name, text in texts.items():
        with open(os.path.join(root, name), "w") as file:
            file.write(text)
    return os.path.realpath(sys.executable)


class Docker:
    """Containers of the machine's Docker."""

    name = "docker"

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.version = run(["docker", "version", "--format", "{{.Server.Version}}"]).strip()
        self.cgroups = run(["docker", "info", "--format", "{{.CgroupDriver}}"]).strip()
        self.has_cdi = _major(self.version) >= 25
        # Without it Docker itself adds the toolkit's hook for --gpus (moby, daemon/nvidia_linux.go).
        self.has_runtime = '"nvidia"' in run(["docker", "info", "--format", "{{json .Runtimes}}"])

    def prepare(self, folder: str, root: str) -> None:
        archive = os.path.join(folder, "root.tar")
        with tarfile.open(archive, "w") as tar:
            tar.add(root, ".")
        run(["docker", "import", archive, self.tag], 180)

    def command(self, name: str, way: "Way", inside: List[str]) -> List[str]:
        by_runtime = ["--gpus", way.gpus] if way.gpus else ["--runtime", "nvidia", "--env", way.environment]
        chosen = ["--device", way.device] if way.native else by_runtime
        words = ["docker", "run", "--interactive", "--rm", "--network", "none", "--name", name]
        return [*words, *chosen, self.tag, *inside]

    def remove(self, names: List[str]) -> None:
        for words in (["docker", "rm", "--force", *names], ["docker", "image", "rm", "--force", self.tag]):
            with contextlib.suppress(Failed):
                run(words)


class Containerd:
    """Containers of the machine's containerd, with the programs and the cgroup manager of its own configuration."""

    name = "containerd"

    def __init__(self, tag: str) -> None:
        self.tag, self.root = tag, ""
        match = re.search(r"containerd\S* v?(\d\S*)", run(["containerd", "--version"]))
        self.version = match.group(1) if match else ""
        dump = run(["containerd", "config", "dump"])
        section = re.search(r"(?ms)runtimes\.nvidia\.options\]$(.*?)(?:^\s*\[|\Z)", dump)
        settings = dict(re.findall(r"(?m)^\s*(\w+) = (.*?)\s*$", section.group(1) if section else ""))
        self.cgroups = "systemd" if settings.get("SystemdCgroup") == "true" else "cgroupfs"
        folders = dict(re.findall(r"(?m)^(root|state) = [\"'](.*?)[\"']", dump))
        self.folders = [folders.get("root", "/var/lib/containerd"), folders.get("state", "/run/containerd")]
        self.program = settings.get("BinaryName", "").strip("'\"")
        numbers = re.findall(r"\d+", self.version)[:2]
        self.has_runtime = bool(self.program)
        self.has_cdi = [int(number) for number in numbers] >= [1, 7]

    def prepare(self, folder: str, root: str) -> None:
        self.root = root
        if not self.program:
            raise Failed("containerd config dump: no runtime nvidia")

    def command(self, name: str, way: "Way", inside: List[str]) -> List[str]:
        words = ["ctr", "--namespace", self.tag, "run", "--rm", "--rootfs"]
        if self.cgroups == "systemd":
            words += ["--runc-systemd-cgroup", "--cgroup", "system.slice:gpu-ami:%s" % name]
        words += ["--device", way.device] if way.native else ["--runc-binary", self.program, "--env", way.environment]
        return [*words, self.root, name, *inside]

    def remove(self, names: List[str]) -> None:
        for name in names:
            for words in (["task", "rm", "--force", name], ["container", "rm", name]):
                with contextlib.suppress(Failed):
                    run(["ctr", "--namespace", self.tag, *words])
        with contextlib.suppress(Failed):
            run(["ctr", "namespace", "rm", self.tag])
        for folder in self.folders:  # which containerd leaves behind
            with contextlib.suppress(OSError):
                os.rmdir(os.path.join(folder, "io.containerd.runtime.v2.task", self.tag))


class Way:
    """How a container requests GPUs. native: by the runtime's own support of CDI, else by the runtime nvidia.
    has_runtime: whether the engine has that runtime; without it, Docker's --gpus is asked for all or one."""

    def __init__(self, name: str, devices: str, native: bool, has_runtime: bool = True) -> None:
        self.name, self.native = name, native
        by_gpus = not native and not has_runtime and name != "cdi"
        self.gpus = ("all" if devices == "all" else "device=%s" % devices) if by_gpus else ""
        self.device = "%s=%s" % (_KIND, devices)
        self.environment = "NVIDIA_VISIBLE_DEVICES=%s" % (self.device if name == "cdi" else devices)

    def text(self) -> str:
        by_runtime = "--gpus %s" % self.gpus if self.gpus else "runtime nvidia, %s" % self.environment
        return "--device %s" % self.device if self.native else by_runtime


def _major(version: str) -> int:
    match = re.match(r"\d+", version)
    return int(match.group()) if match else 0


class Container:
    """One container, whose program answers requests on its standard input."""

    def __init__(self, engine: Any, name: str, way: Way, inside: List[str], folder: str) -> None:
        self.name = name
        self.errors = tempfile.TemporaryFile(dir=folder)
        self.process = subprocess.Popen(
            engine.command(name, way, inside), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors
        )

    def ask(self, words: str) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.write(words.encode() + b"\n")
            self.process.stdin.flush()

    def answer(self, deadline: float) -> Record:
        """Failed: the container has ended, or says nothing until the deadline."""
        assert self.process.stdout is not None
        data = b""
        poller = select.poll()  # select takes no descriptor from 1024 on
        poller.register(self.process.stdout, select.POLLIN)
        while not data.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not poller.poll(left * 1000):
                raise Failed("the container did not answer in time%s" % self._errors())
            part = os.read(self.process.stdout.fileno(), 1 << 16)
            if not part:
                self.process.wait()
                raise Failed("the container did not run: exit status %d%s" % (self.process.returncode, self._errors()))
            data += part
        return dict(json.loads(data.decode()))

    def _errors(self) -> str:
        self.errors.seek(0)
        text = self.errors.read().decode(errors="replace").strip()
        return ": %s" % text[-600:] if text else ""

    def end(self) -> None:
        if self.process.stdin:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def probe(engine: Any, mib: int, seconds: float) -> Record:
    """The result of all ways."""
    record = {"engine": engine.name, "version": engine.version, "cgroups": engine.cgroups, "ways": []}  # type: Record
    native = bool(engine.has_cdi)
    has_runtime = bool(engine.has_runtime)
    ways = [
        Way("runtime", "all", False, has_runtime), Way("cdi", "all", native), Way("one", "0", False, has_runtime),
    ]  # fmt: skip
    names = ["%s-%s" % (engine.tag, way.name) for way in ways]
    deadline = time.monotonic() + seconds
    with _folder() as folder, _removed(engine, names):
        python = make_root(folder)
        engine.prepare(folder, os.path.join(folder, "root"))
        inside = [python, "-IS", "/probe/inside.py"]
        containers = []  # type: List[Tuple[Container, Record]]
        try:
            for way, name in zip(ways, names):
                row = {"way": way.name, "how": way.text(), "error": "", "before": None, "after": None}  # type: Record
                record["ways"].append(row)
                containers.append((Container(engine, name, way, inside, folder), row))
                # Before the next one starts: they have one root, in which a hook of each start runs ldconfig, and of
                # two at the same time one fails (EKS node on a busy machine, 2026-11-26).
                _compute(containers[-1:], "before", "--mib %d --seconds %g" % (mib, seconds / 4), deadline)
            run(["systemctl", "daemon-reload"], 120)
            _compute(containers, "after", "--mib 1 --seconds %g" % (seconds / 4), deadline)
        finally:
            for container, _ in containers:
                container.end()
    return record


def _compute(containers: List[Tuple[Container, Record]], when: str, words: str, deadline: float) -> None:
    for container, row in containers:
        if row["error"]:
            continue
        container.ask(words)  # one at a time: GPUs and this machine's processors are the same
        try:
            row[when] = container.answer(deadline)
        except Failed as error:
            row["error"] = str(error)


@contextlib.contextmanager
def _folder() -> Iterator[str]:
    folder = tempfile.mkdtemp(prefix="gpu-ami-containers-", dir="/var/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _removed(engine: Any, names: List[str]) -> Iterator[None]:
    try:
        yield
    finally:
        engine.remove(names)


def import_image(name: str) -> str:
    """Gives kubelet an image with the root file system; returns the path of Python in it."""
    with _folder() as folder:
        python = make_root(folder)
        layer = os.path.join(folder, "layer.tar")
        with tarfile.open(layer, "w") as tar:
            tar.add(os.path.join(folder, "root"), ".")
        with open(layer, "rb") as file:
            digest = hashlib.sha256(file.read()).hexdigest()
        layers = {"type": "layers", "diff_ids": ["sha256:" + digest]}
        config = {"architecture": _architecture(), "os": "linux", "config": {}, "rootfs": layers}
        manifest = [{"Config": "config.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
        for path, content in (("config.json", config), ("manifest.json", manifest)):
            with open(os.path.join(folder, path), "w") as file:
                json.dump(content, file)
        archive = os.path.join(folder, "image.tar")
        with tarfile.open(archive, "w") as tar:
            for path in ("config.json", "layer.tar", "manifest.json"):
                tar.add(os.path.join(folder, path), path)
        run(["ctr", "--namespace", _POD_NAMESPACE, "images", "import", archive], 180)
    return python


def _architecture() -> str:
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def _images(import_name: str, remove_name: str) -> Record:
    record = {"schema": SCHEMA, "error": "", "python": ""}  # type: Record
    try:
        if import_name:
            record["python"] = import_image(import_name)
        else:
            run(["ctr", "--namespace", _POD_NAMESPACE, "images", "rm", "--sync", remove_name])
    except Failed as error:
        record["error"] = str(error)
    return record


def _terminated(*_signal: object) -> None:
    raise SystemExit(128 + signal.SIGTERM)


def main(words: Optional[List[str]] = None, out: Any = sys.stdout) -> int:
    options = argparse.ArgumentParser(prog="container_probe", description=(__doc__ or "").partition("\n")[0])
    options.add_argument("--engine", choices=["docker", "containerd"], default="containerd")
    text = "make an image of this name on Docker, start nothing, and tell the path of Python in it"
    options.add_argument("--image", metavar="NAME", help=text)
    options.add_argument(
        "--import-image", default="", metavar="NAME", help="give kubelet an image of the probe, and end"
    )
    options.add_argument("--remove-image", default="", metavar="NAME", help="take it back, and end")
    options.add_argument("--mib", type=int, default=16, help="MiB that each GPU computes on (default: %(default)s)")
    options.add_argument("--seconds", type=float, default=240.0, help="limit of all containers (default: %(default)s)")
    args = options.parse_args(words)
    signal.signal(signal.SIGTERM, _terminated)
    if args.import_image or args.remove_image:
        out.write(json.dumps(_images(args.import_image, args.remove_image)) + "\n")
        return 0
    record = {"schema": SCHEMA, "engine": args.engine, "error": ""}  # type: Record
    if args.image:
        return _make_image(args.image, record, out)
    record.update(version="", cgroups="", ways=[])
    started = time.monotonic()
    try:
        tag = "gpu-ami-probe-%d" % os.getpid()
        record.update(probe((Docker if args.engine == "docker" else Containerd)(tag), args.mib, args.seconds))
    except Failed as error:
        record["error"] = str(error)
    record["seconds"] = round(time.monotonic() - started, 1)
    record["host_nodes"] = sorted(glob.glob("/dev/nvidia[0-9]*"))
    out.write(json.dumps(record) + "\n")
    return 0


def _make_image(name: str, record: Record, out: Any) -> int:
    try:
        with _folder() as folder:
            record["python"] = make_root(folder)
            Docker(name).prepare(folder, os.path.join(folder, "root"))
    except Failed as error:
        record["error"] = str(error)
    out.write(json.dumps(record) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
