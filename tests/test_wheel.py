"""The wheel, installed into an empty environment, works outside a checkout: it lists, plans and validates the template.

The dependencies come from this environment's site-packages, so that nothing is downloaded.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.commands.test_docs import PAGE, without_digests, write_if_shown
from tests.validator.conftest import Sshd, sshd  # noqa: F401  (a fixture)

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[1]
# A change here, and a wheel is another one.
_DATA = ("packer", "playbooks", "roles", "variables", "iam")


def run(command: list[str | Path], cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")} | env
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)


def done(command: list[str | Path], cwd: Path, **env: str) -> str:
    result = run(command, cwd, **env)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with sdist and wheel; the wheel is built from the sdist, as installers do."""
    folder = tmp_path_factory.mktemp("dist")
    done([sys.executable, "-m", "hatchling", "build", "-d", folder, "-t", "sdist"], ROOT)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    source = next(path for path in folder.iterdir() if path.is_dir())
    done([sys.executable, "-m", "hatchling", "build", "-d", folder, "-t", "wheel"], source)
    return folder


@pytest.fixture(scope="module")
def program(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """gpu-ami of the wheel, in a virtual environment that knows nothing of the checkout."""
    folder = tmp_path_factory.mktemp("venv")
    venv.create(folder, with_pip=False)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        wheel.extractall(site)
    (site / "dependencies.pth").write_text(dependencies())
    entries = {"gpu-ami": "from gpu_ami.cli import entry; entry()"}
    entries |= {"ansible-playbook": "from ansible.cli.playbook import main; main()"}
    for name, code in entries.items():
        script = folder / "bin" / name
        script.write_text(f"#!{folder}/bin/python\n{code}\n")
        script.chmod(0o755)
    return folder / "bin" / "gpu-ami"


def dependencies() -> str:
    """Lines of a .pth file: where the imported dependencies lie (an editable gpu-ami's own .pth is not followed)."""
    import boto3
    import yaml

    return "".join(f"{Path(str(one.__file__)).parents[1]}\n" for one in (boto3, yaml))


def test_wheel_holds_all_files_of_the_data(dist: Path) -> None:
    tracked = done(["git", "ls-files", *_DATA, "ansible.cfg"], ROOT).splitlines()
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    assert len(tracked) > 300
    assert [name for name in tracked if f"gpu_ami/_data/{name}" not in names] == []


def test_wheel_holds_all_files_of_the_packages(dist: Path) -> None:
    tracked = done(["git", "ls-files", "gpu_ami", "localregion", "onhost", "validator"], ROOT).splitlines()
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    assert [name for name in tracked if name not in names] == []


def test_installed_program_is_the_wheels(program: Path, tmp_path: Path) -> None:
    code = "import gpu_ami, validator; print(gpu_ami.__file__, validator.__file__)"
    shown = done([program.with_name("python"), "-c", code], tmp_path)
    assert str(ROOT) not in shown and shown.count(str(program.parents[1])) == 2


def test_recipes_are_listed(program: Path, tmp_path: Path) -> None:
    images = [path.stem for path in (ROOT / "variables" / "recipes").glob("*.yml")]
    debian = sum(name.startswith("debian") for name in images)
    assert done([program, "recipes", "debian"], tmp_path).splitlines()[-1] == f"{debian} of {len(images)} images"


def test_folder_of_init_plans_by_image_name_and_template_is_valid(program: Path, tmp_path: Path) -> None:
    done([program, "init", "."], tmp_path)
    home = str(tmp_path / "home")
    done([program, "plan", "my-gpu-image", "--where", "aws.yml"], tmp_path, GPU_AMI_HOME=home)
    out = tmp_path / "out" / "my-gpu-image"
    assert json.loads((out / "plan.json").read_text())["image"] == "my-gpu-image"
    assert json.loads((out / "ansible.json").read_text())["gpu_ami_roles"][-1] == "hygiene"
    variables = json.loads((out / "packer.pkrvars.json").read_text())
    assert variables["ansible_vars_file"] == str(out / "ansible.json")
    code = (
        "from pathlib import Path; from gpu_ami.build import packer; from gpu_ami.cloud import load_place;"
        "from gpu_ami.files import data_dir;"
        f"packer.validate(data_dir('packer'), Path({str(out)!r}), load_place(Path('aws.yml'))); print('valid')"
    )
    assert done([program.with_name("python"), "-c", code], tmp_path, GPU_AMI_HOME=home).strip() == "valid"


def test_playbook_finds_its_roles(program: Path, tmp_path: Path) -> None:
    code = "from gpu_ami.files import data_root; print(data_root())"
    data = Path(done([program.with_name("python"), "-c", code], tmp_path).strip())
    assert data.name == "_data"
    command = [
        program.with_name("ansible-playbook"),
        "--syntax-check",
        "-i",
        "localhost,",
        data / "playbooks" / "image.yml",
    ]
    done(command, tmp_path, ANSIBLE_CONFIG=str(data / "ansible.cfg"))


def test_event_reader_finds_the_parser(program: Path, tmp_path: Path) -> None:
    assert "Xid 79" in done([program, "xid", "79"], tmp_path)


_BLOCK = re.compile(r"^```(?:console|text)\n\$ (.*?)\n(.*?)```$", re.DOTALL | re.MULTILINE)
_HOST = "root@127.0.0.1:47822"


def test_walk_through_of_the_docs_runs_with_the_installed_program(
    program: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sshd: Sshd,  # noqa: F811
) -> None:
    """All its steps in their order, in an empty folder, the machine being this one. How it booted is its own: of the
    step that looks at that, the last line counts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    steps, own = _BLOCK.findall(PAGE.read_text(encoding="utf-8")), f"{getpass.getuser()}@127.0.0.1:{sshd.port}"
    assert len(steps) > 25 and sum(_HOST in command for command, _ in steps) == 3
    for command, output in steps:
        if write_if_shown(command, output):
            continue
        result = run(["bash", "-c", command.replace(_HOST, own)], Path.cwd())
        printed = without_digests(result.stderr + result.stdout).replace(own, _HOST)
        whole = "-k boot" not in command
        lines = slice(None) if whole else slice(-1, None)
        assert printed.splitlines()[lines] == without_digests(output).splitlines()[lines], f"{command}\n{printed}"
        if command.startswith("gpu-ami init"):
            monkeypatch.chdir(tmp_path / command.split()[2])
            shutil.copy(sshd.key, "key.pem")
