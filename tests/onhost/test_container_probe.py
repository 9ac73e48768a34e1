"""The container probe: its root file system, what it asks Docker and containerd for, and what it says of failures."""

from __future__ import annotations

import hashlib
import io
import json
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from validator import remote
from validator.probes import containers

SOURCE = remote.PROGRAMS / "container_probe.py"
ANSWER = "import sys\nprint(sys.argv[1:])\n"
DUMP = """version = 2
root = "/data/containerd"
state = "/run/containerd"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
  BinaryName = "/usr/bin/nvidia-container-runtime"
  SystemdCgroup = true

[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  BinaryName = ""
  SystemdCgroup = false
"""


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The program's names; the commands that it runs are in `calls`, and answered by `answers`."""
    names = SimpleNamespace(**runpy.run_path(str(SOURCE), run_name="container_probe"))
    names.calls, names.answers = [], {}
    names.globals = names.probe.__globals__

    def run(words: list[str], seconds: float = 60.0) -> str:
        names.calls.append(words)
        answer = next((text for start, text in names.answers.items() if " ".join(words).startswith(start)), "")
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    names.globals["run"] = run
    yield names


class Local:
    """An engine whose containers are processes of this machine."""

    name, version, cgroups, has_cdi, has_runtime, tag = "docker", "25.0.13", "systemd", True, True, "t"

    def __init__(self, program: str) -> None:
        self.program, self.ways, self.removed = program, {}, list[str]()  # type: ignore[var-annotated]

    def prepare(self, folder: str, root: str) -> None:
        pass

    def command(self, name: str, way: Any, inside: list[str]) -> list[str]:
        self.ways[way.name] = way.text()
        return [sys.executable, "-c", self.program]

    def remove(self, names: list[str]) -> None:
        self.removed += names


def test_containers_compute_before_and_after_daemon_reload(probe: SimpleNamespace) -> None:
    echo = "import sys, json\nfor line in sys.stdin: print(json.dumps({'nodes': [], 'printed': line}), flush=True)"
    engine = Local(echo)
    probe.globals["make_root"] = lambda folder: "/usr/bin/python3"
    record = probe.probe(engine, 16, 60.0)
    assert engine.ways == {
        "runtime": "runtime nvidia, NVIDIA_VISIBLE_DEVICES=all",
        "cdi": "--device nvidia.com/gpu=all",
        "one": "runtime nvidia, NVIDIA_VISIBLE_DEVICES=0",
    }
    assert [(row["way"], row["error"]) for row in record["ways"]] == [("runtime", ""), ("cdi", ""), ("one", "")]
    assert {row["before"]["printed"] for row in record["ways"]} == {"--mib 16 --seconds 15\n"}
    assert {row["after"]["printed"] for row in record["ways"]} == {"--mib 1 --seconds 15\n"}
    assert probe.calls == [["systemctl", "daemon-reload"]]
    assert engine.removed == ["t-runtime", "t-cdi", "t-one"]


def test_docker_without_the_runtime_is_asked_by_gpus(probe: SimpleNamespace) -> None:
    probe.answers |= {"docker version": "28.5.1\n", "docker info --format {{json .Runtimes}}": '{"runc":{}}\n'}
    engine = probe.Docker("t")
    ways = [probe.Way("runtime", "all", False, engine.has_runtime), probe.Way("one", "0", False, engine.has_runtime)]
    words = [" ".join(engine.command("n", way, ["python3"])) for way in ways]
    assert "--gpus all t python3" in words[0] and "--gpus device=0 t python3" in words[1]
    assert [way.text() for way in ways] == ["--gpus all", "--gpus device=0"]

    probe.answers["docker info --format {{json .Runtimes}}"] = '{"nvidia":{"path":"x"},"runc":{}}\n'
    assert probe.Docker("t").has_runtime


def test_containers_do_not_start_at_the_same_time(probe: SimpleNamespace, tmp_path: Path) -> None:
    """containerd's have one root, in which a hook of each start rewrites the linker's cache."""
    program = (
        "import json, os, sys, time\n"
        f"cache = {str(tmp_path / 'ld.so.cache~')!r}\n"
        "os.close(os.open(cache, os.O_CREAT | os.O_EXCL))\n"
        "time.sleep(0.2)\n"
        "os.unlink(cache)\n"
        "for line in sys.stdin: print(json.dumps({'nodes': [], 'printed': line}), flush=True)"
    )
    probe.globals["make_root"] = lambda folder: "/usr/bin/python3"
    record = probe.probe(Local(program), 16, 60.0)
    assert [row["error"] for row in record["ways"]] == ["", "", ""]
    assert all(row["after"] for row in record["ways"])


def test_a_container_that_does_not_run_is_named_with_its_error(probe: SimpleNamespace) -> None:
    engine = Local("import sys; sys.exit('docker: Error response from daemon: unknown runtime specified nvidia')")
    probe.globals["make_root"] = lambda folder: "/usr/bin/python3"
    record = probe.probe(engine, 16, 60.0)
    text = (
        "the container did not run: exit status 1: docker: Error response from daemon: unknown runtime specified nvidia"
    )
    assert {row["error"] for row in record["ways"]} == {text}
    assert engine.removed == ["t-runtime", "t-cdi", "t-one"]


def test_a_container_that_hangs_ends_at_the_limit(probe: SimpleNamespace) -> None:
    engine = Local("import sys; sys.stdin.read()")
    probe.globals["make_root"] = lambda folder: "/usr/bin/python3"
    record = probe.probe(engine, 16, 0.5)
    assert {row["error"] for row in record["ways"]} == {"the container did not answer in time"}


def test_docker_before_25_is_asked_by_the_runtime(probe: SimpleNamespace) -> None:
    probe.answers["docker version"] = "20.10.24\n"
    probe.answers["docker info"] = "systemd\n"
    engine = probe.Docker("t")
    words = " ".join(engine.command("n", probe.Way("cdi", "all", engine.has_cdi), ["python3"]))
    assert "--runtime nvidia --env NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all t python3" in words
    probe.answers["docker version"] = "25.0.13\n"
    engine = probe.Docker("t")
    words = " ".join(engine.command("n", probe.Way("cdi", "all", engine.has_cdi), ["python3"]))
    assert "--device nvidia.com/gpu=all t python3" in words and "--runtime" not in words


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (
            "containerd github.com/containerd/containerd 1.6.20~ds1 x",
            "--env NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=all",
        ),
        ("containerd containerd.io 1.7.27 05044ec0a", "--device nvidia.com/gpu=all"),
        ("containerd github.com/containerd/containerd/v2 v2.1.4 75cb2b7", "--device nvidia.com/gpu=all"),
    ],
)
def test_containerd_is_used_as_it_is_configured(probe: SimpleNamespace, version: str, expected: str) -> None:
    probe.answers |= {"containerd --version": version, "containerd config dump": DUMP}
    engine = probe.Containerd("t")
    assert (engine.cgroups, engine.program) == ("systemd", "/usr/bin/nvidia-container-runtime")
    assert engine.folders == ["/data/containerd", "/run/containerd"]
    engine.prepare("/f", "/f/root")
    words = " ".join(engine.command("n", probe.Way("cdi", "all", engine.has_cdi), ["python3"]))
    assert expected in words
    assert "--runc-systemd-cgroup --cgroup system.slice:gpu-ami:n" in words and words.endswith("/f/root n python3")


def test_containerd_without_the_runtime_is_named(probe: SimpleNamespace) -> None:
    probe.answers |= {"containerd --version": "containerd x 2.1.4", "containerd config dump": "version = 3\n"}
    with pytest.raises(probe.Failed, match="containerd config dump: no runtime nvidia"):
        probe.Containerd("t").prepare("/f", "/f/root")


def test_an_engine_that_does_not_answer_is_the_result(probe: SimpleNamespace) -> None:
    probe.answers["docker version"] = probe.Failed("docker version: Cannot connect to the Docker daemon")
    out = io.StringIO()
    assert probe.main(["--engine", "docker"], out) == 0
    result = containers.read(out.getvalue())
    assert (result.error, result.ways) == ("docker version: Cannot connect to the Docker daemon", ())
    assert result.way("cdi").error == "docker version: Cannot connect to the Docker daemon"


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="chroot needs root")
def test_root_file_system_runs_the_compute_probe(tmp_path: Path) -> None:
    """Of this machine's Python; no library of the driver is in it."""
    names = SimpleNamespace(**runpy.run_path(str(SOURCE), run_name="container_probe"))
    names.make_root.__globals__["COMPUTE_PROBE"] = remote.source("compute_probe")
    mask = os.umask(0o077)  # of root on hardened images, and of programs that the validator starts
    try:
        python = names.make_root(str(tmp_path))
    finally:
        os.umask(mask)
    root = tmp_path / "root"
    closed = [path for path in root.rglob("*") if path.is_dir() and not path.stat().st_mode & 0o001]
    assert closed == []  # the compute probe gives root's rights away
    assert (root / python.lstrip("/")).is_file() and list(root.rglob("ld-linux*"))
    assert not list(root.rglob("libcuda*"))
    inside = [python, "-IS", "/probe/compute_probe.py", "--seconds", "20"]
    done = subprocess.run(["chroot", str(root), *inside], capture_output=True, text=True, timeout=60)
    assert done.stdout, done.stderr
    machine = json.loads(done.stdout.splitlines()[0])
    assert machine["error"]["call"] == "dlopen", done.stderr
    (root / "result").mkdir()  # of the host, as the task of an orchestrator has it
    task = [python, "-IS", "/probe/task.py", "--seconds", "20"]
    ended = subprocess.run(["chroot", str(root), *task], capture_output=True, text=True, timeout=60)
    written = json.loads((root / "result" / "result.json").read_text())
    assert ended.returncode == done.returncode == 1, ended.stderr
    assert json.loads(written["printed"].splitlines()[0])["error"]["call"] == "dlopen"


def test_an_image_is_made_and_nothing_is_started(probe: SimpleNamespace) -> None:
    def make_root(folder: str) -> str:
        Path(folder, "root").mkdir()
        return "/usr/bin/python3.9"

    probe.globals["make_root"] = make_root
    out = io.StringIO()
    assert probe.main(["--engine", "docker", "--image", "localhost:1/x:1"], out) == 0
    document = json.loads(out.getvalue())
    assert (document["error"], document["python"]) == ("", "/usr/bin/python3.9")
    (imported,) = [words for words in probe.calls if words[1] == "import"]
    assert imported[3] == "localhost:1/x:1" and not any(words[1] in ("run", "image") for words in probe.calls)
    probe.answers["docker import"] = probe.Failed("docker import: no space left on device")
    out = io.StringIO()
    assert probe.main(["--engine", "docker", "--image", "localhost:1/x:1"], out) == 0
    assert json.loads(out.getvalue())["error"] == "docker import: no space left on device"


def test_the_program_has_the_compute_probe_in_it() -> None:
    command = remote.python("container_probe", "--engine", "docker")
    assert "COMPUTE_PROBE = 'r" in command or 'COMPUTE_PROBE = "' in command or "COMPUTE_PROBE = '" in command
    assert "CUDA_ERROR" in command and len(command.encode()) < 120_000


def test_an_image_for_kubelet_has_the_root_file_system_as_its_layer(probe: SimpleNamespace, tmp_path: Path) -> None:
    kept = tmp_path / "kept.tar"

    def make_root(folder: str) -> str:
        root = Path(folder) / "root"
        root.mkdir()
        (root / "file").write_text("x")
        return "/usr/bin/python3"

    def run(words: list[str], _seconds: float = 60.0) -> str:
        probe.calls.append(words[:-1])
        shutil.copy(words[-1], kept)
        return ""

    probe.globals.update(make_root=make_root, run=run)
    out = io.StringIO()
    assert probe.main(["--import-image", "localhost/x:1"], out) == 0
    assert json.loads(out.getvalue()) == {"schema": containers.SCHEMA, "error": "", "python": "/usr/bin/python3"}
    assert probe.calls == [["ctr", "--namespace", "k8s.io", "images", "import"]]
    with tarfile.open(kept) as tar:
        (manifest,) = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        config = json.load(tar.extractfile(manifest["Config"]) or io.BytesIO())
        layer = (tar.extractfile("layer.tar") or io.BytesIO()).read()
    assert manifest["RepoTags"] == ["localhost/x:1"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]


def test_an_image_is_removed_and_an_error_is_named(probe: SimpleNamespace) -> None:
    out = io.StringIO()
    probe.main(["--remove-image", "localhost/x:1"], out)
    assert probe.calls == [["ctr", "--namespace", "k8s.io", "images", "rm", "--sync", "localhost/x:1"]]
    probe.answers["ctr"] = probe.Failed("ctr: no socket")
    out = io.StringIO()
    probe.main(["--remove-image", "localhost/x:1"], out)
    assert json.loads(out.getvalue())["error"] == "ctr: no socket"


@pytest.mark.parametrize(
    ("printed", "status", "code", "uuids"),
    [
        ('{"count": 1, "error": null, "unfinished": null, "replica": ""}\n{"index": 0, "uuid": "u"}\n', 0, 0, ["u"]),
        ('{"count": 2, "error": null, "unfinished": null, "replica": ""}\n{"index": 0, "uuid": "u"}\n', 0, 1, ["u"]),
        (
            '{"count": 1, "error": null, "unfinished": null, "replica": ""}\n{"index": 0, "wrong": {"byte": 1}}\n',
            0,
            1,
            [None],
        ),
        ("", 1, 1, []),
    ],
)
def test_a_pod_s_message_and_exit_code(
    probe: SimpleNamespace, tmp_path: Path, printed: str, status: int, code: int, uuids: list[str]
) -> None:
    fake = tmp_path / "probe.py"
    fake.write_text(f"print({printed!r}, end='')\nraise SystemExit({status})\n")
    message = tmp_path / "message"
    script = probe.globals["_POD_SCRIPT"].replace("/probe/compute_probe.py", str(fake))
    done = subprocess.run([sys.executable, "-c", script.replace("/dev/termination-log", str(message))], check=False)
    assert done.returncode == code and json.loads(message.read_text())["uuids"] == uuids
