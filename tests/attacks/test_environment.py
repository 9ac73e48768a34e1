"""Variables of the caller: none changes a verdict, a build or a certificate unseen."""

from __future__ import annotations

import getpass
import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from tests.attacks.conftest import GpuAmi
from tests.validator.conftest import Sshd

pytestmark = pytest.mark.slow
# Every variable that would take part in a child; the values lead into the attacker's folder.
LEFT_OUT = [
    "ANSIBLE_CONFIG", "ANSIBLE_LIBRARY", "ANSIBLE_CALLBACK_PLUGINS", "ANSIBLE_ROLES_PATH", "ANSIBLE_SSH_ARGS",
    "PACKER_CONFIG", "PACKER_CONFIG_DIR", "PACKER_LOG_PATH", "PKR_VAR_ansible_env_vars", "PKR_VAR_roles",
    "HCP_PACKER_BUCKET_NAME", "HCP_PACKER_BUILD_FINGERPRINT",
    "GIT_DIR", "GIT_EXTERNAL_DIFF", "GIT_CONFIG_GLOBAL", "GIT_SSH_COMMAND", "BASH_ENV", "PERL5OPT", "SHELLOPTS",
    "LD_PRELOAD", "LD_AUDIT", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONWARNINGS", "OPENSSL_CONF",
]  # fmt: skip
_EVIL = "import os, pathlib\npathlib.Path(os.environ['MARK']).open('a').write(f'{__name__} {os.getpid()}\\n')\n"


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_no_program_gets_what_leads_into_a_folder_of_others(gpu_ami: GpuAmi, tmp_path: Path) -> None:
    """Packer stands for all: `doctor` asks it for its version, with the environment that every child has."""
    packer = program(tmp_path / "packer", f"env > {tmp_path}/seen; echo Packer v1.6.6")
    hostile = {name: str(tmp_path / "x") for name in LEFT_OUT if name != "PYTHONHOME"}
    kept = {
        "AWS_PROFILE": "mine",
        "PACKER_PLUGIN_PATH": "/plugins",
        "HTTPS_PROXY": "http://proxy:1",
        "SSH_AUTH_SOCK": "x",
    }
    done = gpu_ami("doctor", env=hostile | kept | {"PACKER": str(packer)})
    seen = dict(line.partition("=")[::2] for line in (tmp_path / "seen").read_text().splitlines())
    assert not set(seen) & set(LEFT_OUT) and kept.items() <= seen.items()
    named = done.stderr.decode().partition("left out of the caller's environment: ")[2]
    assert "ANSIBLE_CONFIG, " in named and "LD_PRELOAD" in named and "PKR_VAR_roles" in named


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_code_of_variables_ends_before_a_verdict(gpu_ami: GpuAmi, sshd: Sshd, tmp_path: Path) -> None:
    """A preloaded library and modules of PYTHONPATH are in the process that was started, and in none after it."""
    folder, checks = tmp_path / "evil", tmp_path / "checks"
    folder.mkdir()
    checks.mkdir()
    for name in ("sitecustomize", "yaml", "paramiko", "_pytest", "boto3"):
        (folder / f"{name}.py").write_text(_EVIL)
    (checks / "test_mine.py").write_text("def test_fails(host):\n    assert host.run('echo seen').stdout == 'other'\n")
    source = tmp_path / "evil.c"
    source.write_text(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n"
        '__attribute__((constructor)) void in(void) { FILE *file = fopen(getenv("MARK"), "a");'
        ' if (file) { fprintf(file, "library %d\\n", getpid()); fclose(file); } }\n'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "evil.so", source], check=True)
    address = f"{getpass.getuser()}@127.0.0.1:{sshd.port}"
    words = ("validate", "--host", address, "-i", sshd.key, "--checks", "checks", "-k", "test_fails", "-q")
    mark = tmp_path / "mark"
    env = {"MARK": str(mark), "PYTHONPATH": str(folder), "LD_PRELOAD": str(folder / "evil.so")}
    done = gpu_ami(*words, env=env)
    assert done.returncode == 1, done.stdout + done.stderr
    (host,) = json.loads((tmp_path / "out/host/report.json").read_text())["hosts"]
    assert [check["verdict"] for check in host["checks"] if check["id"] == "test_mine::test_fails"] == ["FAIL"]
    rows = {tuple(line.split()) for line in mark.read_text().splitlines()}
    assert {name for name, _ in rows} == {"library", "sitecustomize"}
    assert len({pid for _, pid in rows}) == 1, "only the process that the caller started"
    assert b"left out of the caller's environment" not in done.stderr  # -q


def test_programs_of_the_working_folder_are_not_run(gpu_ami: GpuAmi, tmp_path: Path) -> None:
    program(tmp_path / "packer", f"touch {tmp_path}/ran; echo Packer v1.6.6")
    program(tmp_path / "git", f"touch {tmp_path}/ran")
    for first in (".", "", "./"):
        gpu_ami("doctor", env={"PATH": f"{first}:{os.environ['PATH']}"})
        gpu_ami("matrix", "--since", "HEAD", env={"PATH": f"{first}:{os.environ['PATH']}"})
        assert not (tmp_path / "ran").exists()


def test_a_temporary_folder_of_everybody_is_refused(gpu_ami: GpuAmi, tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    done = gpu_ami("checks", env={"TMPDIR": str(tmp_path / "open")})
    assert done.returncode == 2 and b"every user can rename other users' files in it" in done.stderr
    (tmp_path / "open").chmod(0o1777)
    assert gpu_ami("checks", env={"TMPDIR": str(tmp_path / "open")}).returncode == 0


RECIPE = """\
description: a test
flag: one
os: debian12
instance_types: [g5.12xlarge]
nvidia_driver: {version: 580.178.04}
"""
# How a repository that somebody sent could run programs: each says by its argument which way it was.
SETTINGS = """
[core]
	fsmonitor = {evil} fsmonitor
	hooksPath = {folder}/hooks
	pager = {evil} pager
	sshCommand = {evil} ssh
[diff]
	external = {evil} external
[diff "evil"]
	command = {evil} command
	textconv = {evil} textconv
[filter "evil"]
	clean = {evil} clean
[include]
	path = {folder}/more
"""
INCLUDED = '[filter "more"]\n\tprocess = {evil} process\n\trequired = true\n'


def test_a_repository_of_others_runs_nothing(gpu_ami: GpuAmi, tmp_path: Path) -> None:
    root, other, ran = tmp_path / "repository/recipes", tmp_path / "other", tmp_path / "ran"
    root.mkdir(parents=True)
    (other / "hooks").mkdir(parents=True)
    evil = program(other / "evil", f'echo "$0 $1" >> {ran}; cat')
    for hook in ("post-index-change", "post-checkout"):
        shutil.copy(evil, other / "hooks" / hook)
    (other / "more").write_text(INCLUDED.format(evil=evil))
    (root / "one.yml").write_text(RECIPE)
    (root / "other.txt").write_text("x")
    repository(root)
    (root / ".gitattributes").write_text("*.yml filter=evil diff=evil\n*.txt filter=more\n")
    with (root / ".git/config").open("a") as file:
        file.write(SETTINGS.format(evil=evil, folder=other))
    for name in ("one.yml", "other.txt"):
        os.utime(root / name, (0, 0))  # git must look at the content
    done = gpu_ami("matrix", "one.yml", "--since", "HEAD", cwd=root)
    assert done.returncode == 0, done.stderr
    assert not ran.exists(), ran.read_text()


def repository(folder: Path) -> None:
    git = ["git", "-C", folder, "-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)


def test_a_variable_does_not_lead_to_another_repository(gpu_ami: GpuAmi, tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "one.yml").write_text(RECIPE.replace("a test", name))
        repository(tmp_path / name)
    (tmp_path / "mine/one.yml").write_text(RECIPE.replace("580.178.04", "580.159.03"))
    other = {"GIT_DIR": str(tmp_path / "other/.git"), "GIT_WORK_TREE": str(tmp_path / "other")}
    done = gpu_ami("matrix", "one.yml", "--since", "HEAD", "--json", cwd=tmp_path / "mine", env=other)
    assert b'"one"' in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_STS"])
def test_a_variable_does_not_put_another_server_in_the_place_of_aws(
    variable: str, gpu_ami: GpuAmi, tmp_path: Path
) -> None:
    """It would say what an AMI is and that metrics arrived. A place's own `endpoint` is named, and shown."""
    (tmp_path / "aws.yml").write_text("region: us-east-1\n")
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        words = ("observe", "--ami", "ami-0123456789abcdef0", "--where", "aws.yml")
        done = gpu_ami(*words, env={variable: url})
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert done.returncode == 2, done.stderr
    assert f"aws: {url} is not AWS's API of".encode() in done.stderr and b"AWS_ENDPOINT_URL" in done.stderr


@pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_KMS"])
def test_a_variable_does_not_say_which_key_a_certificate_is_verified_with(
    variable: str, gpu_ami: GpuAmi, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    key = "awskms:///arn:aws:kms:us-east-1:111122223333:key/a"
    done = gpu_ami("verify", "out", "--key", key, "--offline", env={variable: "https://kms.amazonaws.com.evil.example"})
    assert done.returncode == 2 and b"kms: https://kms.amazonaws.com.evil.example is not AWS's API" in done.stderr
