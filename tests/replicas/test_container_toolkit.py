"""The container toolkit's replica: specifications, what containers get, and the runtimes' configuration."""

from __future__ import annotations

import importlib
import json
import os
import re
import stat
import subprocess
import sys
import tomllib
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami import process
from localregion.mirror.table import REPLICAS
from tests.replicas.conftest import A10G, VERSION
from validator.checks import container_toolkit
from validator.probes import containers

SOURCES = REPLICAS / "container_toolkit/base"
UUID = "GPU-{0:08x}-0000-0000-0000-000000000000"
INFORMATION = f"Model: \t\t NVIDIA A10G\nGPU UUID: \t {UUID}\nDevice Minor: \t {{0}}\n"
# `containerd config dump` of Debian's containerd 1.6, shortened.
DUMP = """version = 2
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
    [plugins."io.containerd.grpc.v1.cri".containerd]
      default_runtime_name = "runc"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
        runtime_type = "io.containerd.runc.v2"
        [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
          BinaryName = ""
          SystemdCgroup = false
"""


@pytest.fixture
def toolkit(
    machine: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Any]]:
    """The toolkit's modules on a machine with two GPUs, whose device nodes are links to others."""
    monkeypatch.syspath_prepend(str(SOURCES / "usr/lib/nvidia-ctk"))
    names = ["log", "settings", "specification", "registry", "edits", "toml", "engines", "runtime", "hook", "control"]
    modules = {name: importlib.import_module(f"toolkit.{name}") for name in names}
    root = Path(machine(A10G, 2))
    for number, folder in enumerate(sorted((root / "proc/driver/nvidia/gpus").iterdir())):
        (folder / "information").write_text(INFORMATION.format(number), encoding="utf-8")
    (tmp_path / "dev").mkdir()
    for name, node in {"nvidia0": "null", "nvidia1": "zero", "nvidiactl": "full", "nvidia-uvm": "random"}.items():
        (tmp_path / "dev" / name).symlink_to(f"/dev/{node}")
    (tmp_path / "lib").mkdir()
    (tmp_path / f"lib/libcuda.so.{VERSION}").touch()
    monkeypatch.setattr(modules["specification"], "PROC", str(root / "proc/driver/nvidia"))
    monkeypatch.setattr(modules["specification"], "DEV", str(tmp_path / "dev"))
    monkeypatch.setattr(modules["specification"], "LIBRARIES", (str(tmp_path / "lib"),))
    monkeypatch.setattr(modules["specification"], "PROGRAMS", ())
    monkeypatch.setattr(modules["engines"], "DROP_IN", str(tmp_path / "conf.d/99-nvidia.toml"))
    monkeypatch.setattr(modules["engines"], "CONTAINERD", str(tmp_path / "config.toml"))
    yield modules.__getitem__
    for name in [name for name in sys.modules if name.partition(".")[0] == "toolkit"]:
        del sys.modules[name]


def written(toolkit: Callable[[str], Any], tmp_path: Path, version: tuple[int, ...] = (1, 20, 1)) -> Path:
    """The folder with the specification of the machine."""
    assert toolkit("control").generate(Namespace(output=str(tmp_path / "cdi/nvidia.yaml"), version=version)) == 0
    return tmp_path / "cdi"


def spec(*environment: str, **more: Any) -> dict[str, Any]:
    return {"process": {"env": ["PATH=/bin", *environment]}, "mounts": [], "linux": {}} | more


def devices(spec: dict[str, Any]) -> list[str]:
    return sorted(Path(row["path"]).name for row in spec["linux"].get("devices", []))


def test_specification_is_as_the_original_writes_it(toolkit: Callable[[str], Any], tmp_path: Path) -> None:
    document = yaml.safe_load((written(toolkit, tmp_path) / "nvidia.yaml").read_text(encoding="utf-8"))
    nodes = {
        device["name"]: [Path(node["path"]).name for node in device["containerEdits"]["deviceNodes"]]
        for device in document["devices"]
    }
    assert document["kind"] == "nvidia.com/gpu"
    assert nodes == {
        "0": ["nvidia0"],
        UUID.format(0): ["nvidia0"],
        "1": ["nvidia1"],
        UUID.format(1): ["nvidia1"],
        "all": ["nvidia0", "nvidia1"],
    }
    common = document["containerEdits"]
    assert [Path(node["path"]).name for node in common["deviceNodes"]] == ["nvidia-uvm", "nvidiactl"]
    assert [mount["containerPath"] for mount in common["mounts"]] == [str(tmp_path / f"lib/libcuda.so.{VERSION}")]
    (links, _, cache, *_) = [hook["args"] for hook in common["hooks"]]
    assert links[2:] == ["--link", f"libcuda.so.1::{tmp_path}/lib/libcuda.so"]
    assert cache[2:] == ["--folder", f"{tmp_path}/lib"]
    # What it reads is what a YAML parser reads.
    assert toolkit("registry").specifications([str(tmp_path / "cdi")])[0][1] == document


@pytest.mark.parametrize(
    ("version", "hooks", "of_a_device", "variables"),
    [
        ((1, 16, 2), ["create-symlinks", "update-ldcache"], [], 1),
        ((1, 17, 8), ["create-symlinks", "enable-cuda-compat", "update-ldcache"], [], 1),
        (
            (1, 19, 1),
            ["create-symlinks", "enable-cuda-compat", "update-ldcache", "disable-device-node-modification"],
            [],
            2,
        ),
        (
            (1, 20, 1),
            [
                "create-symlinks", "enable-cuda-compat", "update-ldcache", "disable-device-node-modification",
                "update-application-profile",
            ],
            ["apply-cuda-memory-limits"],
            2,
        ),
    ],
)  # fmt: skip
def test_hooks_are_those_of_the_release(
    toolkit: Callable[[str], Any],
    tmp_path: Path,
    version: tuple[int, ...],
    hooks: list[str],
    of_a_device: list[str],
    variables: int,
) -> None:
    document = yaml.safe_load((written(toolkit, tmp_path, version) / "nvidia.yaml").read_text(encoding="utf-8"))
    first, common = document["devices"][0]["containerEdits"], document["containerEdits"]
    assert [hook["args"][1] for hook in common["hooks"]] == hooks
    assert [hook["args"][1] for hook in first.get("hooks", ())] == of_a_device
    assert len(common["env"]) == variables
    assert toolkit("registry").specifications([str(tmp_path / "cdi")])[0][1] == document


def test_links_of_the_machine_are_made_in_the_container(toolkit: Callable[[str], Any], tmp_path: Path) -> None:
    folder = tmp_path / "lib"
    (folder / "libcuda.so.1").symlink_to(f"libcuda.so.{VERSION}")
    (folder / "libcuda.so").symlink_to("libcuda.so.1")
    (folder / f"libnvidia-ml.so.{VERSION}").touch()
    (folder / "libnvidia-ml.so.1").symlink_to(f"libnvidia-ml.so.{VERSION}")

    def links(version: tuple[int, ...]) -> list[str]:
        document = yaml.safe_load((written(toolkit, tmp_path, version) / "nvidia.yaml").read_text(encoding="utf-8"))
        return [word for word in document["containerEdits"]["hooks"][0]["args"][2:] if word != "--link"]

    assert links((1, 17, 8)) == [f"libcuda.so.1::{folder}/libcuda.so"]
    assert links((1, 18, 1)) == [
        f"libcuda.so.1::{folder}/libcuda.so",
        f"libcuda.so.{VERSION}::{folder}/libcuda.so.1",
        f"libnvidia-ml.so.{VERSION}::{folder}/libnvidia-ml.so.1",
    ]


def test_list_names_what_the_specification_has(
    toolkit: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = written(toolkit, tmp_path)
    monkeypatch.setattr(toolkit("control"), "Settings", lambda: Namespace(folders=[str(folder)]))
    toolkit("control").list_devices(None)
    shown = capsys.readouterr()
    names = ["0", "1", UUID.format(0), UUID.format(1), "all"]
    assert shown.out.split() == [f"nvidia.com/gpu={name}" for name in names]
    assert "Found 5 CDI devices" in shown.err


def test_without_gpus_nothing_is_written(
    toolkit: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toolkit("specification"), "PROC", str(tmp_path / "nothing"))
    with pytest.raises(toolkit("log").Failure, match="failed to initialize NVML: ERROR_DRIVER_NOT_LOADED"):
        toolkit("control").generate(Namespace(output=str(tmp_path / "run/nvidia.yaml"), version=(1, 20, 1)))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("all", ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]),
        ("1", ["nvidia-uvm", "nvidia1", "nvidiactl"]),
        (UUID.format(0), ["nvidia-uvm", "nvidia0", "nvidiactl"]),
        ("none", ["nvidia-uvm", "nvidiactl"]),
        ("nvidia.com/gpu=0", ["nvidia-uvm", "nvidia0", "nvidiactl"]),
        ("nvidia.com/gpu=0,nvidia.com/gpu=1", ["nvidia-uvm", "nvidia0", "nvidia1", "nvidiactl"]),
        ("void", []),
        ("", []),
    ],
)
def test_a_container_gets_what_it_requests(
    toolkit: Callable[[str], Any], tmp_path: Path, value: str, expected: list[str]
) -> None:
    settings = toolkit("settings").Settings(str(tmp_path / "none"))
    settings.folders = [str(written(toolkit, tmp_path))]
    (tmp_path / "config.json").write_text(json.dumps(spec(f"NVIDIA_VISIBLE_DEVICES={value}")), encoding="utf-8")
    toolkit("runtime").modify(str(tmp_path), (1, 20, 1), settings)
    changed = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert devices(changed) == expected
    rules = changed["linux"].get("resources", {}).get("devices", [])
    assert len(rules) == len(expected) and all(rule["allow"] and rule["access"] == "rwm" for rule in rules)
    if expected:
        assert "NVIDIA_VISIBLE_DEVICES=void" in changed["process"]["env"]
        assert [mount["source"] for mount in changed["mounts"]] == [str(tmp_path / f"lib/libcuda.so.{VERSION}")]
        assert len(changed["hooks"]["createContainer"]) == 5


def test_an_annotation_requests_devices_as_kubelets_does(toolkit: Callable[[str], Any], tmp_path: Path) -> None:
    settings = toolkit("settings").Settings(str(tmp_path / "none"))
    requested = toolkit("runtime").visible_devices(
        spec(annotations={"cdi.k8s.io/plugin": "nvidia.com/gpu=1", "other": "nvidia.com/gpu=0"}), settings.prefixes
    )
    assert requested == ["nvidia.com/gpu=1"]


@pytest.mark.parametrize(
    ("value", "version", "message"),
    [
        ("nvidia.com/gpu=7", (1, 18), "unresolvable CDI devices nvidia.com/gpu=7"),
        ("7", (1, 18), "failed to get device handle from index: Invalid Argument"),
        ("all", (1, 17), "no mode 'legacy'"),
        ("nvidia.com/gpu=0,1", (1, 18), "not supported when requesting other CDI devices"),
    ],
)
def test_what_cannot_be_given_stops_the_container(
    toolkit: Callable[[str], Any], tmp_path: Path, value: str, version: tuple[int, int], message: str
) -> None:
    settings = toolkit("settings").Settings(str(tmp_path / "none"))
    settings.folders = [str(written(toolkit, tmp_path))]
    names = toolkit("runtime").visible_devices(spec(f"NVIDIA_VISIBLE_DEVICES={value}"), settings.prefixes)
    with pytest.raises(toolkit("log").Failure, match=re.escape(message)):
        toolkit("runtime").requested_edits(settings, names, version)


def test_a_missing_device_node_stops_the_container(toolkit: Callable[[str], Any]) -> None:
    with pytest.raises(toolkit("log").Failure, match="failed to stat CDI host device '/dev/nvidia99'"):
        toolkit("edits").apply(spec(), [{"deviceNodes": [{"path": "/dev/nvidia99"}]}])


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (["--root", "/run/x", "create", "--bundle", "/b", "id"], "/b"),
        (["create", "--bundle=/b", "id"], "/b"),
        (["delete", "--force", "id"], None),
    ],
)
def test_only_a_container_that_is_created_is_changed(
    toolkit: Callable[[str], Any], words: list[str], folder: str | None
) -> None:
    assert toolkit("runtime").bundle_of(words) == folder


def test_hook_links_the_library_in_the_container(toolkit: Callable[[str], Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"root": {"path": "rootfs"}}', encoding="utf-8")
    root = toolkit("hook").container_root(json.dumps({"bundle": str(tmp_path)}))
    assert root == str(tmp_path / "rootfs")
    for _ in range(2):
        toolkit("hook").create_symlinks(root, ["libcuda.so.1::/usr/lib/libcuda.so"])
    assert str((tmp_path / "rootfs/usr/lib/libcuda.so").readlink()) == "libcuda.so.1"


def container(folder: Path, **process: Any) -> Path:
    """The root of a container whose bundle is folder."""
    (folder / "rootfs").mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"root": {"path": "rootfs"}, "process": process}), encoding="utf-8")
    return folder / "rootfs"


@pytest.mark.parametrize(("compat", "driver", "used"), [("595.91.07", "580.1.1", True), ("580.2.2", "580.1.1", False)])
def test_cuda_of_a_newer_branch_is_found_in_the_container(
    toolkit: Callable[[str], Any], tmp_path: Path, compat: str, driver: str, used: bool
) -> None:
    root = container(tmp_path)
    (root / "usr/local").mkdir(parents=True)
    (root / "opt/cuda-13/compat").mkdir(parents=True)
    (root / "usr/local/cuda").symlink_to("/opt/cuda-13")
    (root / f"opt/cuda-13/compat/libcuda.so.{compat}").touch()
    toolkit("hook").enable_cuda_compat(str(root), driver)
    written = [path.read_text() for path in root.glob("etc/ld.so.conf.d/*")]
    assert written == (["/opt/cuda-13/compat\n"] if used else [])


@pytest.mark.parametrize(
    ("text", "changed"),
    [("A: 1\nModifyDeviceFiles: 1\n", "A: 1\nModifyDeviceFiles: 0\n"), ("ModifyDeviceFiles: 0\n", ""), ("A: 1\n", "")],
)
def test_params_of_the_container_forbid_device_nodes(toolkit: Callable[[str], Any], text: str, changed: str) -> None:
    assert toolkit("hook").without_modification(text) == changed


def test_params_are_mounted_in_the_container(tmp_path: Path) -> None:
    """In a namespace of its own; needs root, as runc's hooks have."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    root, params = container(tmp_path / "bundle"), tmp_path / "params"
    params.write_text("ModifyDeviceFiles: 1\nDeviceFileMode: 438\n", encoding="utf-8")
    inside = Path(f"{root}{params}")
    inside.parent.mkdir(parents=True)
    inside.touch()
    program = f"""
import sys
sys.path.insert(0, {str(SOURCES / "usr/lib/nvidia-ctk")!r})
from toolkit import hook
hook.PARAMS = {str(params)!r}
hook.disable_device_node_modification({str(root)!r})
print(open({str(inside)!r}).read())
"""
    command = ["unshare", "--mount", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (0, "ModifyDeviceFiles: 0\nDeviceFileMode: 438\n\n"), done.stderr


def test_profile_shows_the_container_s_gpus(toolkit: Callable[[str], Any], tmp_path: Path) -> None:
    root = container(tmp_path)
    toolkit("hook").update_application_profile(str(root))
    assert not (root / "etc").exists(), "no GPU in the container"
    (root / "dev").mkdir()
    if os.geteuid() != 0:
        pytest.skip("needs root for device nodes")
    for name, minor in {"nvidia0": 0, "nvidia5": 5, "nvidiactl": 255}.items():
        os.mknod(root / "dev" / name, 0o666 | stat.S_IFCHR, os.makedev(195, minor))
    toolkit("hook").update_application_profile(str(root))
    (profile,) = root.glob("etc/nvidia/*/10-container.conf")
    assert '"EGLVisibleDGPUDevices",0x21]' in profile.read_text()


def test_limits_of_cuda_memory_stop_the_container(toolkit: Callable[[str], Any]) -> None:
    toolkit("hook").apply_cuda_memory_limits({"process": {"env": ["PATH=/bin"]}})
    with pytest.raises(toolkit("log").Failure, match="sets no limits"):
        toolkit("hook").apply_cuda_memory_limits({"process": {"env": ["NVIDIA_GPU_MEMORY_LIMIT=1024"]}})


def options(**changes: Any) -> Namespace:
    usual = {"config": None, "config_source": "file", "drop_in_config": None}
    return Namespace(**(usual | {"cdi_enabled": True, "set_as_default": False} | changes))


def test_docker_keeps_its_other_settings(toolkit: Callable[[str], Any], tmp_path: Path) -> None:
    path = tmp_path / "daemon.json"
    path.write_text('{"log-driver": "journald", "runtimes": {"crun": {"path": "crun"}}}', encoding="utf-8")
    toolkit("engines").configure_docker(options(config=str(path)))
    text = path.read_text(encoding="utf-8")
    assert container_toolkit.docker_runtime(text) == "nvidia-container-runtime"
    assert json.loads(text)["log-driver"] == "journald"
    assert set(json.loads(text)["runtimes"]) == {"crun", "nvidia"}
    assert json.loads(text)["features"] == {"cdi": True}


def test_containerd_s_drop_in_repeats_the_section(
    toolkit: Callable[[str], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nvidia-ctk 1.20.1 wrote it beside Debian's containerd 1.6.20, of --config-source=command."""
    monkeypatch.setattr(toolkit("engines"), "dumped_config", lambda: tomllib.loads(DUMP))
    (tmp_path / "config.toml").write_text("version = 2\n", encoding="utf-8")
    for _ in range(2):
        toolkit("engines").configure_containerd(options(config_source="command"))
    text = (tmp_path / "conf.d/99-nvidia.toml").read_text(encoding="utf-8")
    config = containers.read_config(text)
    assert config.default_runtime == "runc" and config.cdi is True
    assert config.runtimes["nvidia"] == {"BinaryName": "/usr/bin/nvidia-container-runtime", "SystemdCgroup": False}
    assert config.runtimes["runc"] == {"BinaryName": "", "SystemdCgroup": False}
    assert tomllib.loads(text)["plugins"]["io.containerd.grpc.v1.cri"]["cni"] == {"bin_dir": "/usr/lib/cni"}
    main = (tmp_path / "config.toml").read_text(encoding="utf-8")
    assert main == f'imports = ["{tmp_path}/conf.d/*.toml"]\nversion = 2\n'


def test_the_file_alone_loses_containerd_s_own_runtime(toolkit: Callable[[str], Any], tmp_path: Path) -> None:
    """The original's default: runc is only among containerd's defaults, and the drop-in replaces the section."""
    (tmp_path / "config.toml").write_text("version = 2\n", encoding="utf-8")
    toolkit("engines").configure_containerd(options())
    text = (tmp_path / "conf.d/99-nvidia.toml").read_text(encoding="utf-8")
    assert list(containers.read_config(text).runtimes) == ["nvidia"]


def test_what_bootstrap_sh_configured_stays(toolkit: Callable[[str], Any], tmp_path: Path) -> None:
    """On Canonical's EKS AMI: containerd's unit adds the runtime to the configuration that bootstrap.sh writes."""
    template = (REPLICAS / "eks_ubuntu_ami/rootfs/usr/local/share/eks/containerd-config.toml").read_text()
    engines, config, drop_in = toolkit("engines"), tmp_path / "config.toml", tmp_path / "conf.d/99-nvidia.toml"
    config.write_text(template.replace("SANDBOX_IMAGE", "registry/eks/pause:3.5"))
    options = {"config": str(config), "drop_in_config": str(drop_in), "config_source": "file"}
    engines.configure_containerd(Namespace(cdi_enabled=True, set_as_default=True, **options))
    found = containers.read_config(drop_in.read_text())
    assert (found.default_runtime, found.cdi) == ("nvidia", True)
    assert found.runtimes["nvidia"] == {"BinaryName": "/usr/bin/nvidia-container-runtime", "SystemdCgroup": True}
    cri = tomllib.loads(drop_in.read_text())["plugins"]["io.containerd.grpc.v1.cri"]
    assert (cri["sandbox_image"], cri["cni"]["bin_dir"]) == ("registry/eks/pause:3.5", "/opt/cni/bin")
    assert tomllib.loads(config.read_text())["imports"] == [f"{drop_in.parent}/*.toml"]


@pytest.mark.parametrize(("program", "reader"), [("nvidia-ctk", container_toolkit.version)])
def test_toolkit_says_its_version_as_the_check_reads_it(program: str, reader: Callable[[str], str]) -> None:
    code = (SOURCES / "usr/bin" / program).read_text(encoding="utf-8")
    code = code.replace("/usr/lib/nvidia-ctk", str(SOURCES / "usr/lib/nvidia-ctk"))
    shown = process.run([sys.executable, "-c", code, "--version"], timeout=30).stdout
    assert reader(shown) == "@VERSION@"
