# ruff: noqa: F811  (fixtures of another file)
"""NVIDIA's own container toolkit, built from its Go module: the checks read it, and the replica is compared with it.

`nvidia-ctk cdi generate` asks libnvidia-ml, which is the driver replica's here, since NVIDIA's own answers with a
driver alone. `make real` (root for device nodes, network; the build is kept by version).
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from localregion.mirror.table import REPLICAS
from tests.originals import fetch
from tests.replicas import module_minors
from tests.replicas.conftest import machine, show_boards  # noqa: F401
from tests.replicas.test_container_toolkit import options, toolkit, written  # noqa: F401
from tests.replicas.test_libraries import staged
from tests.validator.checks.conftest import PLAN, Judge
from validator.checks import container_toolkit as checks
from validator.plan import as_plan
from validator.probes import containers

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("root_user")]

RELEASE = "1.20.1"  # which variables/locks/ecs-al2023-gpu.json plans
VERSION = (1, 20, 1)
DRIVER = "580.95.05"
LIBRARIES = "usr/lib/x86_64-linux-gnu"
REPLICA = REPLICAS / "container_toolkit/base/usr"
UUIDS = [f"GPU-{number:08x}-0000-0000-0000-000000000000" for number in range(2)]
FAULTS = REPLICAS.parents[1] / "gpu_ami/faults/definitions"
DRIVERS = ("535.309.01", DRIVER, "595.91.07")
# Device nodes that can be opened without a driver: minor numbers of the kernel's own (null, zero, full, random, kmsg).
NODES = {"nvidiactl": 3, "nvidia-modeset": 11, "nvidia-uvm": 7, "nvidia-uvm-tools": 8, "nvidia0": 3, "nvidia1": 5}


@dataclass(frozen=True)
class Toolkit:
    """The programs, and the root with a driver's libraries and device nodes."""

    folder: Path
    root: Path

    def run(
        self, program: str, *words: str, path: str = "", settings: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """settings: the folder that stands for /etc."""
        environment = {"GPU_AMI_ROOT": str(self.root), "PATH": f"{path}{self.folder}:{os.environ['PATH']}"}
        environment |= {"XDG_CONFIG_HOME": str(settings)} if settings else {}
        words = (str(self.folder / program), *words)
        return subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, check=False)

    def generate(self, output: Path) -> subprocess.CompletedProcess[str]:
        places = [f"--driver-root={self.root}", f"--dev-root={self.root}"]
        hook = "--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook"
        return self.run("nvidia-ctk", "cdi", "generate", *places, hook, f"--output={output}")


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Toolkit:
    return with_driver(tmp_path_factory.mktemp("driver"), DRIVER)


def with_driver(root: Path, driver: str, gpus: int = 2, release: str = RELEASE) -> Toolkit:
    """The original, and in root a driver's libraries, its device nodes, and what its module shows of boards."""
    branch = driver.partition(".")[0]
    root.mkdir(exist_ok=True)
    staged(f"libnvidia-compute-{branch}", f"{driver}-0ubuntu1", root)
    show_boards(root / "proc/driver/nvidia", driver, gpus)
    (root / "dev").mkdir()
    for name, minor in NODES.items():
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(1, minor))
    return Toolkit(fetch.toolkit(release), root)


def replica(*words: str, program: str = "nvidia-ctk", path: str = "") -> subprocess.CompletedProcess[str]:
    text = (REPLICA / "bin" / program).read_text(encoding="utf-8").replace("@VERSION@", RELEASE)
    text = text.replace("/usr/lib/nvidia-ctk", str(REPLICA / "lib/nvidia-ctk"))
    environment = {"PATH": f"{path}{os.environ['PATH']}"}
    words = (sys.executable, "-c", text, *words)
    return subprocess.run(words, capture_output=True, text=True, timeout=60, env=environment, check=False)


def anonymous(text: str) -> str:
    """Without commit and time."""
    return re.sub(r"commit: \S+", "commit: #", re.sub(r'time="[^"]*"', "time=#", text))


@contextlib.contextmanager
def monkeypatched_input(text: str) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdin", io.StringIO(text))
        yield


@pytest.fixture
def runc(tmp_path: Path) -> str:
    """The beginning of a PATH with a runc that says its version."""
    folder = tmp_path / "runc-bin"
    folder.mkdir()
    (folder / "runc").write_text("#!/bin/sh\necho runc version 1.1.5+ds1\n", encoding="utf-8")
    (folder / "runc").chmod(0o755)
    return f"{folder}:"


@pytest.mark.parametrize("program", ["nvidia-ctk", "nvidia-cdi-hook", "nvidia-container-runtime"])
def test_programs_say_their_version(original: Toolkit, runc: str, program: str) -> None:
    real, ours = original.run(program, "--version", path=runc), replica("--version", program=program, path=runc)
    print(f"\n{real.stdout}")
    assert (anonymous(ours.stdout), ours.returncode) == (anonymous(real.stdout), real.returncode)


def test_runtime_without_runc_fails(original: Toolkit) -> None:
    real, ours = (
        original.run("nvidia-container-runtime", "--version"),
        replica("--version", program="nvidia-container-runtime"),
    )
    print(f"\n{real.returncode} {real.stderr}")
    assert (anonymous(ours.stdout), ours.returncode) == (anonymous(real.stdout), real.returncode)


@pytest.mark.parametrize(
    "words", [(), ("cdi",), ("cdi", "generate", "--no-such"), ("runtime", "configure", "--runtime=x")]
)
def test_mistakes_end_with_the_same_status(original: Toolkit, words: tuple[str, ...]) -> None:
    real, ours = original.run("nvidia-ctk", *words), replica(*words)
    assert ours.returncode == real.returncode
    assert bool(ours.stdout) == bool(real.stdout) or words[:2] == ("cdi", "generate"), "the original adds its help"


def without_root(text: str, root: Path) -> dict[str, Any]:
    """A specification of the driver below root. Under a root of its own each node also has its path there."""
    document: dict[str, Any] = yaml.safe_load(text.replace(f"{root}/", "/").replace(str(root), "/"))
    for edits in (document["containerEdits"], *(device["containerEdits"] for device in document["devices"])):
        for node in edits.get("deviceNodes", ()):
            assert node.pop("hostPath", node["path"]) == node["path"]
    return document


@pytest.mark.parametrize("release", ["1.18.2", "1.19.1", RELEASE])
@pytest.mark.parametrize("driver", DRIVERS)
def test_specification_is_the_original_s(
    toolkit: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, driver: str, release: str
) -> None:
    """All of it: devices with their nodes' numbers, modes and groups, hooks, mounts, variables."""
    made = with_driver(tmp_path / "driver", driver, release=release)
    (made.root / "dev/nvidia-modeset").chmod(0o660)
    os.chown(made.root / "dev/nvidia-modeset", 0, 27)
    os.chown(made.root / "dev/nvidia-uvm", 0, 44)
    output = tmp_path / "original" / "nvidia.yaml"
    done = made.generate(output)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(toolkit("specification"), "DEV", str(made.root / "dev"))
    monkeypatch.setattr(toolkit("specification"), "LIBRARIES", (str(made.root / LIBRARIES),))
    monkeypatch.setattr(toolkit("specification"), "driver_version", lambda: driver)
    ours = written(toolkit, tmp_path, toolkit("specification").release(release)) / "nvidia.yaml"
    real, own = (without_root(path.read_text(encoding="utf-8"), made.root) for path in (output, ours))
    assert own == real
    texts = [path.read_text(encoding="utf-8").replace(f"{made.root}/", "/") for path in (ours, output)]
    assert texts[0] == re.sub(r"\n *hostPath: /dev/\S+", "", texts[1].replace(str(made.root), "/"))
    assert [row["name"] for row in real["devices"]].count("all") == 1
    mounts = {Path(mount["containerPath"]).name for mount in real["containerEdits"]["mounts"]}
    assert f"libcuda.so.{driver}" in mounts and f"libnvidia-ml.so.{driver}" in mounts
    assert toolkit("registry").specifications([str(ours.parent)])[0][1] == yaml.safe_load(ours.read_text("utf-8"))


# The original reads the file of minor numbers of this machine, whatever the driver's root is.
_WITH_MINORS = """\
mount -t tmpfs none /proc/driver
mkdir /proc/driver/nvidia-caps
cp "$1" /proc/driver/nvidia-caps/mig-minors
shift
exec "$@"
"""


def test_mig_devices_are_the_original_s(
    toolkit: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that nvidia-smi has divided: go-nvlib asks for instances and their profiles. The original adds the nodes of
    the capabilities by the module's list of minor numbers; the driver's replica makes no such nodes."""
    made = with_driver(tmp_path / "driver", DRIVER)
    for file in (made.root / "proc/driver/nvidia/gpus").glob("*/board"):
        file.write_text(file.read_text().replace("NVIDIA A10G", "NVIDIA A100-SXM4-40GB").replace("8.6", "8.0"))
    state = made.root / "run/nvidia-smi" / UUIDS[1]
    state.parent.mkdir(parents=True)
    state.write_text('{"mig": true, "pending_mig": true, "instances": ["3g.20gb", "1g.5gb"]}', encoding="utf-8")
    (made.root / "dev/nvidia-caps").mkdir()
    for number in (147, 148, 156, 157):
        os.mknod(made.root / f"dev/nvidia-caps/nvidia-cap{number}", 0o444 | stat.S_IFCHR, os.makedev(1, 3))
    (tmp_path / "module").mkdir()
    listed = module_minors.listed(tmp_path / "module", "mig-minors")
    (tmp_path / "minors").write_text(listed, encoding="utf-8")
    output = tmp_path / "nvidia.yaml"
    words = ["unshare", "--mount", "sh", "-ec", _WITH_MINORS, "enter", str(tmp_path / "minors")]
    words += [str(made.folder / "nvidia-ctk"), "cdi", "generate", f"--driver-root={made.root}"]
    words += [f"--dev-root={made.root}", f"--output={output}"]
    environment = {"GPU_AMI_ROOT": str(made.root), "PATH": os.environ["PATH"]}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    for name, value in {"DEV": made.root / "dev", "RUN": state.parent}.items():
        monkeypatch.setattr(toolkit("specification"), name, str(value))
    ours = (written(toolkit, tmp_path) / "nvidia.yaml").read_text(encoding="utf-8")

    def nodes(text: str) -> dict[str, list[str]]:
        rows = without_root(text, made.root)["devices"]
        return {row["name"]: [node["path"] for node in row["containerEdits"]["deviceNodes"]] for row in rows}

    real = nodes(output.read_text(encoding="utf-8"))
    assert real["1:1"] == ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap156", "/dev/nvidia-caps/nvidia-cap157"]
    without = {name: [path for path in paths if "caps" not in path] for name, paths in real.items()}
    assert nodes(ours) == without and "1:0" in without and "1" not in without


def injected(fault: str, specification: Path) -> dict[str, list[str]]:
    """Device → its nodes, after the fault's commands changed the specification."""
    rows = yaml.safe_load((FAULTS / "container_toolkit.yml").read_text(encoding="utf-8"))
    (commands,) = [row["inject"] for row in rows if row["id"] == fault]
    commands = commands.replace("/var/run/cdi/nvidia.yaml", str(specification))
    commands = commands.replace("/run/cdi.kept", str(specification.with_suffix(".kept")))
    subprocess.run(["sh", "-ec", commands], check=True, timeout=60)
    document = yaml.safe_load(specification.read_text(encoding="utf-8"))
    return {
        row["name"]: [Path(node["path"]).name for node in row["containerEdits"]["deviceNodes"]]
        for row in document["devices"]
    }


@pytest.mark.parametrize(
    ("fault", "left"),
    [
        ("cdi-lacks-a-gpu", {"1": ["nvidia1"], UUIDS[0]: ["nvidia0"], "all": ["nvidia0", "nvidia1"]}),
        ("cdi-names-what-is-not-there", {"0": ["nvidia99"], "1": ["nvidia1"], UUIDS[0]: ["nvidia99"]}),
        ("cdi-of-other-devices", {"0": ["nvidia0"], "1": ["nvidia1"], UUIDS[1]: ["nvidia1"], "all": ["nvidia0"]}),
    ],
)
def test_faults_change_the_original_s_specification(
    original: Toolkit, tmp_path: Path, fault: str, left: dict[str, list[str]]
) -> None:
    """As they change the replica's."""
    output = tmp_path / "nvidia.yaml"
    assert original.generate(output).returncode == 0
    output.write_text(output.read_text(encoding="utf-8").replace(f"{original.root}/", "/"), encoding="utf-8")
    found = injected(fault, output)
    assert found | left == found and ("0" in found) == (fault != "cdi-lacks-a-gpu")


def test_a_container_s_files_are_the_original_s(toolkit: Callable[[str], Any], tmp_path: Path) -> None:
    """What the hooks of files leave in a container with CUDA of a newer branch, and the node of one GPU."""
    folder, left = fetch.toolkit(RELEASE), []
    commands = [("enable-cuda-compat", f"--host-driver-version={DRIVER}"), ("update-application-profile",)]
    for name in ("original", "ours"):
        bundle = tmp_path / name
        root = bundle / "rootfs"
        for path in ("dev", "usr/local", "opt/cuda/compat"):
            (root / path).mkdir(parents=True)
        (root / "usr/local/cuda").symlink_to("/opt/cuda")
        (root / "opt/cuda/compat/libcuda.so.595.91.07").write_bytes(b"")
        os.mknod(root / "dev/nvidia3", 0o666 | stat.S_IFCHR, os.makedev(195, 3))
        (bundle / "config.json").write_text('{"root": {"path": "rootfs"}, "process": {}}', encoding="utf-8")
        for command in commands:
            state = json.dumps({"ociVersion": "1.0.2", "id": "a", "status": "created", "bundle": str(bundle)})
            if name == "original":
                program = [str(folder / "nvidia-cdi-hook"), *command]
                done = subprocess.run(program, input=state, capture_output=True, text=True, timeout=60, check=False)
                assert done.returncode == 0, done.stderr
            else:
                with monkeypatched_input(state):
                    assert toolkit("hook").main(list(command)) == 0
        files = {str(path.relative_to(root)): path for path in root.glob("etc/**/*") if path.is_file()}
        left.append({re.sub(r"-[\w-]+\.conf$", "-#.conf", name): path.read_text() for name, path in files.items()})
    assert left[0] == left[1] and len(left[0]) == 2


def test_without_a_gpu_nothing_is_written(
    toolkit: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = with_driver(tmp_path / "empty", DRIVER, gpus=0).generate(tmp_path / "none.yaml")
    message = re.findall(r'level=error msg="(.*)"$', done.stderr, re.MULTILINE)[-1].replace('\\"', '"')
    assert done.returncode == 1 and not (tmp_path / "none.yaml").exists()
    monkeypatch.setattr(toolkit("specification"), "gpus", list)
    with pytest.raises(toolkit("log").Failure) as failure:
        toolkit("control").generate(Namespace(output=str(tmp_path / "ours.yaml"), version=VERSION))
    assert str(failure.value) == message


def test_without_a_driver_the_error_is_nvml_s(original: Toolkit, tmp_path: Path) -> None:
    places = [f"--driver-root={tmp_path}", f"--output={tmp_path}/none.yaml"]
    real, ours = original.run("nvidia-ctk", "cdi", "generate", *places), replica("cdi", "generate")
    pattern = r'level=error msg="(.*failed to initialize NVML: )ERROR_\w+"'
    assert (ours.returncode, re.findall(pattern, ours.stderr)) == (1, re.findall(pattern, real.stderr))
    assert real.returncode == 1


def test_defaults_are_the_original_s(original: Toolkit, tmp_path: Path) -> None:
    real = tomllib.loads(original.run("nvidia-ctk", "config", f"--config-file={tmp_path}/none.toml").stdout)
    assert tomllib.loads((REPLICA / "lib/nvidia-ctk/config.toml").read_text(encoding="utf-8")) == real


def test_an_empty_file_stops_both(original: Toolkit, toolkit: Callable[[str], Any], tmp_path: Path) -> None:
    """dockerd takes it for no configuration; role container_toolkit writes an object before."""
    empty = tmp_path / "daemon.json"
    empty.touch()
    done = original.run("nvidia-ctk", "runtime", "configure", "--runtime=docker", f"--config={empty}")
    with pytest.raises(toolkit("log").Failure) as failure:
        toolkit("engines").configure_docker(options(config=str(empty)))
    assert done.returncode == 1 and f'msg="{failure.value}"' in done.stderr


@pytest.mark.parametrize("before", ["{}", '{"log-driver": "journald", "runtimes": {"crun": {"path": "crun"}}}'])
def test_docker_s_settings_are_the_original_s(
    original: Toolkit,
    toolkit: Callable[[str], Any],
    tmp_path: Path,
    before: str,
) -> None:
    files = [tmp_path / name for name in ("original.json", "ours.json")]
    for file in files:
        file.write_text(before, encoding="utf-8")
    words = ["runtime", "configure", "--runtime=docker", "--cdi.enabled", f"--config={files[0]}"]
    assert original.run("nvidia-ctk", *words).returncode == 0
    toolkit("engines").configure_docker(options(config=str(files[1])))
    real = files[0].read_text(encoding="utf-8")
    assert json.loads(files[1].read_text(encoding="utf-8")) == json.loads(real)
    assert checks.docker_runtime(real) == "nvidia-container-runtime"


@pytest.mark.parametrize("before", ["version = 2\n", 'version = 2\nroot = "/var/lib/containerd"\n', "version = 3\n"])
def test_containerd_s_settings_are_the_original_s(
    original: Toolkit,
    toolkit: Callable[[str], Any],
    tmp_path: Path,
    before: str,
) -> None:
    folders = [tmp_path / name for name in ("original", "ours")]
    for folder in folders:
        folder.mkdir()
        (folder / "config.toml").write_text(before, encoding="utf-8")
    places = [[f"{folder}/config.toml", f"{folder}/conf.d/99-nvidia.toml"] for folder in folders]
    words = ["runtime", "configure", "--runtime=containerd", "--cdi.enabled", "--config-source=file"]
    done = original.run("nvidia-ctk", *words, f"--config={places[0][0]}", f"--drop-in-config={places[0][1]}")
    assert done.returncode == 0, done.stderr
    toolkit("engines").configure_containerd(options(config=places[1][0], drop_in_config=places[1][1]))
    real, ours = ([tomllib.loads(Path(name).read_text(encoding="utf-8")) for name in names] for names in places)
    assert ours[1] == real[1]
    assert ours[0] | {"imports": []} == real[0] | {"imports": []}
    assert containers.read_config(Path(places[0][1]).read_text(encoding="utf-8")).cdi is True


def bundle(folder: Path, requested: str) -> Path:
    """A container's folder, as containerd makes it."""
    (folder / "rootfs").mkdir(parents=True)
    process_of = {"user": {"uid": 0, "gid": 0}, "args": ["sh"], "cwd": "/"}
    process_of["env"] = ["PATH=/bin", f"NVIDIA_VISIBLE_DEVICES={requested}"]
    document = {"ociVersion": "1.0.2", "process": process_of, "root": {"path": "rootfs"}, "mounts": [], "linux": {}}
    (folder / "config.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


def given(folder: Path) -> dict[str, Any]:
    """What a container has got: nodes that both drivers have, rights, its variable, libraries."""
    document = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    nodes = {Path(node["path"]).name for node in document["linux"].get("devices", ())}
    rules = document["linux"].get("resources", {}).get("devices", ())
    variables = [row for row in document["process"]["env"] if row.startswith("NVIDIA_VISIBLE_DEVICES=")]
    libraries = {Path(mount["source"]).name.partition(".")[0] for mount in document.get("mounts", ())}
    only_there = {"nvidia-modeset", "nvidia-uvm-tools"}
    return {
        "nodes": nodes - only_there,
        "rules": len(rules) == len(document["linux"].get("devices", ())),
        "variables": variables,
        "libcuda": "libcuda" in libraries,
    }


REQUESTS = ["all", "1", "0,1", "none", "void", "", "7", "nvidia.com/gpu=0", "nvidia.com/gpu=0,1"]


@pytest.mark.parametrize("requested", REQUESTS)
def test_a_container_gets_what_the_original_gives_it(
    original: Toolkit, toolkit: Callable[[str], Any], tmp_path: Path, runc: str, requested: str
) -> None:
    """Mode `auto`: jit-cdi for indices, cdi for full names, of which no specification exists here."""
    settings = tmp_path / "nvidia-container-runtime" / "config.toml"
    settings.parent.mkdir()
    rows = ["[nvidia-container-cli]", f'root = "{original.root}"']
    rows += ["[nvidia-container-runtime.modes.cdi]", f'spec-dirs = ["{tmp_path}/cdi"]']
    settings.write_text("\n".join(rows), encoding="utf-8")
    real, ours = bundle(tmp_path / "real", requested), bundle(tmp_path / "ours", requested)
    words = ["create", "--bundle", str(real), "id"]
    done = original.run("nvidia-container-runtime", *words, path=runc, settings=tmp_path)
    own = toolkit("settings").Settings(str(settings))
    try:
        toolkit("runtime").modify(str(ours), VERSION, own)
        message = ""
    except toolkit("log").Failure as failure:
        message = str(failure)
    said = re.findall(r'level=error msg="(.*)"$', done.stderr, re.MULTILINE)
    assert message == (said[-1].replace('\\"', '"') if done.returncode else "")
    assert given(ours) == given(real)


def test_checks_accept_the_original(original: Toolkit, judge: Judge, tmp_path: Path, runc: str) -> None:
    folder = tmp_path / "cdi"
    assert original.generate(folder / "nvidia.yaml").returncode == 0
    listed = original.run("nvidia-ctk", "cdi", "list", f"--spec-dir={folder}")
    version = original.run("nvidia-ctk", "--version")
    daemon = tmp_path / "daemon.json"
    daemon.write_text("{}", encoding="utf-8")
    original.run("nvidia-ctk", "runtime", "configure", "--cdi.enabled", f"--config={daemon}")
    script = {
        "nvidia-ctk --version": (version.returncode, version.stdout, version.stderr),
        "nvidia-ctk cdi list": (listed.returncode, listed.stdout, listed.stderr),
        "cat /etc/docker/daemon.json": daemon.read_text(encoding="utf-8"),
        "test -x *": "",
        "for f in *": f"{(folder / 'nvidia.yaml').read_text(encoding='utf-8')}\n---\n",
        "stat -c *": lambda command: subprocess.run(command, shell=True, capture_output=True, text=True).stdout,
        "ls -d -- *": lambda command: "\n".join(word for word in command.split()[3:] if Path(word).exists()),
    }
    section = {"version": RELEASE, "runtime": "docker", "cdi": True}
    plan = as_plan(PLAN | {"container_toolkit": section})
    for check in (
        checks.test_toolkit_is_the_planned_version, checks.test_runtime_knows_the_toolkit,
        checks.test_default_runtime_is_the_planned_one, checks.test_runtime_reads_cdi,
        checks.test_cdi_lists_every_gpu, checks.test_device_nodes_are_there,
    ):  # fmt: skip
        judged = judge(check, script, plan=plan)
        print(f"\n{check.__name__}: {judged.verdict} {judged.message} {judged.check.observed}")
        assert (judged.verdict, judged.message) == ("PASS", "")
    shown = original.run("nvidia-container-runtime", "--version", path=runc).stdout
    defaults = original.run("nvidia-ctk", "config", f"--config-file={tmp_path}/none.toml").stdout
    runtime = containers.read_runtime(shown, defaults)
    assert runtime == containers.Runtime((1, 20), "auto", is_replica=False)
    assert runtime.mode_of(qualified=False) == "jit-cdi"
