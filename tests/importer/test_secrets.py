"""Secrets of a template, by key name and by shape: they are in nothing that an import writes or prints."""

from __future__ import annotations

import contextlib
import io
import json
import traceback
from pathlib import Path

import pytest

from gpu_ami.cli import main
from gpu_ami.errors import UsageError
from gpu_ami.importer.secrets import Secrets, is_secret_name

# Joined here, so that no scanner takes this file for a leak.
BY_SHAPE = {
    "access key": "AKIA" + "IOSFODNN7EXAMPLE",
    "session key": "ASIA" + "IOSFODNN7EXAMPLE",
    "secret key": "wJalrXUtnFEMI/K7MDENG" + "/bPxRfiCYEXAMPLEKEY",
    "pem": "-----BEGIN RSA PRIVATE" + " KEY-----\nMIIEowIBAAKC\n-----END RSA PRIVATE KEY-----",
    "jwt": "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    "github": "ghp_" + "a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8",
    "slack": "xoxb-" + "1234567890-abcdefghij",
    "slack webhook": "https://hooks.slack.com/services/" + "T000/B000/XXXX",
    "url": "https://deploy:" + "hunter2hunter@git.example.org/x.git",
    "url query": "https://s3.example.org/x?X-Amz-Signature=" + "0a1b2c3d",
    "ngc": "nvapi-" + "abcdefghijklmnop1234",
    "hash": "$6$salt" + "salt$abcdefghijkl",
    "option": "docker login --password " + "hunter2hunter",
    "curl": "curl -u admin:" + "hunter2hunter https://example.org",
    "assignment": "export DB_PASSWORD=" + "hunter2hunter",
    "header": "Authorization: Bearer " + "abcdefghijkl",
    "hex": "0123456789abcdef" * 2,
}
HARMLESS = [
    "NVIDIA-Linux-x86_64-515.86.01.run", "cuda-toolkit-11-8 nvidia-gds-11-8", "ami-0123456789abcdef0",
    "arn:aws:kms:eu-west-1:111122223333:key/0123abcd-0123-0123-0123-0123456789ab", "{{timestamp}}", "",
    "al2023-ami-minimal-2023.*-kernel-6.18-*", "https://efa-installer.amazonaws.com/aws-efa-installer-1.38.0.tar.gz",
    "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-20240101", "IMDSv2 token required", "$HOME", "{{user `x`}}",
]  # fmt: skip


@pytest.mark.parametrize("text", BY_SHAPE.values(), ids=list(BY_SHAPE))
def test_shape_of_a_secret_is_hidden(text: str) -> None:
    assert Secrets().hides("anything", text)
    assert Secrets().hides("anything", ["x", {"below": text}])


@pytest.mark.parametrize("text", HARMLESS)
def test_other_values_are_shown(text: str) -> None:
    assert not Secrets().hides("anything", text)


@pytest.mark.parametrize(
    "name", ["aws_secret_key", "aws_access_key", "DbPassword", "ngcApiKey", "winrm_password", "github-token", "auth",
             "registry_credentials", "ssh_passphrase", "sessionToken", "API_KEY", "slack_webhook", "mysqlpwd"],
)  # fmt: skip
def test_name_of_a_secret(name: str) -> None:
    assert is_secret_name(name)
    assert Secrets().hides(name, "x1")
    assert not Secrets().hides(name, "{{env `X`}}")  # says where it is, not what it is


@pytest.mark.parametrize(
    "name", ["kms_key_id", "temporary_key_pair_type", "http_tokens", "ssh_keypair_name", "nvidia_version", "compass"]
)
def test_name_of_no_secret(name: str) -> None:
    assert not is_secret_name(name)


def test_known_secret_is_found_in_other_values() -> None:
    secrets = Secrets()
    secrets.learn({"db_password": "correct-horse"})
    assert secrets.hides("inline", "login correct-horse")
    assert secrets.censored("x: 'correct-horse'") == "x: '[not shown]'"
    secrets.learn({"ssh_password": "admin"})
    assert secrets.censored("admin") == "admin"  # a word of its own, which says nothing


def test_digest_is_no_secret() -> None:
    assert not Secrets().hides("runfile_sha256", "0123456789abcdef" * 4)
    assert Secrets().hides("other", "0123456789abcdef" * 4)


def _written(folder: Path, template: Path, *more: str) -> str:
    """Everything that an import writes and prints, in each of its forms."""
    texts = []
    for extra in ([], ["-v"], ["--json"], ["--debug"]):
        out, where = folder / "out.yml", folder / "where.yml"
        printed, errors = io.StringIO(), io.StringIO()
        words = ["import", str(template), "-o", str(out), "--where-file", str(where), "--force", *more, *extra]
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(errors):
            for line in (words, ["import", str(template), "-o", "-", *more, *extra]):
                try:
                    main(line)
                except UsageError:  # --debug
                    errors.write(traceback.format_exc())
        files = [path.read_text() for path in (out, where) if path.exists()]
        texts += [printed.getvalue(), errors.getvalue(), *files]
    return "\n".join(texts)


def _parts(text: str) -> list[str]:
    """What must not be found of a secret: it, and each long word of it."""
    return [text, *(word for word in text.replace("@", " ").replace(":", " ").split() if word.startswith("hunter2"))]


@pytest.mark.parametrize("text", BY_SHAPE.values(), ids=list(BY_SHAPE))
def test_secret_is_copied_nowhere(text: str, tmp_path: Path) -> None:
    path = tmp_path / "al2023-x.json"
    builder = {
        "type": "amazon-ebs", "region": "us-east-1", "instance_type": "g5.12xlarge", "access_key": "x" + text[:30],
        "ami_description": f"image {text}", "profile": text, "user_data": f"#!/bin/sh\n{text}\n",
        "tags": {"Comment": text}, "source_ami_filter": {"filters": {"name": text, "tag:x": text}, "owners": ["self"]},
        "launch_block_device_mappings": [{"device_name": "/dev/xvda", "volume_size": 80, "kms_key_id": text}],
    }  # fmt: skip
    document = {
        "description": text,
        "variables": {"flag": text, "nvidia_version": text, "cuda_version": text, "anything": text, "region": text},
        "builders": [builder, {"type": "docker", "name": text}],
        "provisioners": [{"type": "shell", "inline": [text]}, {"type": "shell", "script": text}],
        "post-processors": [{"type": "shell-local", "inline": [text]}],
        "extra": {"of": text},
    }
    path.write_text(json.dumps(document))
    written = _written(tmp_path, path)
    assert [part for part in _parts(text) if part in written] == []
    assert "anything" in written and "builders[0].access_key" in written  # the keys are named


def test_secrets_by_name_alone_are_copied_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "from-the-environment")
    monkeypatch.setenv("BUILD_USER", "someone-private")
    path, values = tmp_path / "ubuntu2204.json", tmp_path / "values.json"
    variables = {
        "aws_secret_key": "plainword", "aws_token": "{{env `AWS_SECRET_ACCESS_KEY`}}", "db_password": "swordfish",
        "who": "{{env `BUILD_USER`}}", "innocent": None, "license_key": None, "marked": "xyzzy-xyzzy",
    }  # fmt: skip
    builder = {"type": "amazon-ebs", "instance_type": "g5.12xlarge", "secret_key": "{{user `aws_secret_key`}}",
               "winrm_password": "letmein", "run_tags": {"note": "swordfish", "token": "abc"}}  # fmt: skip
    path.write_text(
        json.dumps({"variables": variables, "builders": [builder], "sensitive-variables": ["marked"],
                    "provisioners": [{"type": "shell", "environment_vars": ["P=swordfish"], "inline": ["swordfish"]}]})
    )  # fmt: skip
    values.write_text(json.dumps({"innocent": "swordfish", "license_key": "open-sesame"}))
    written = _written(tmp_path, path, "--var-file", str(values))
    secrets = ("plainword", "from-the-environment", "swordfish", "letmein", "open-sesame", "xyzzy", "someone-private")
    assert [secret for secret in secrets if secret in written] == []
    assert "aws_secret_key: a secret, its value is not copied" in written and "license_key: a secret" in written


@pytest.mark.parametrize(
    "name, text",
    [
        ("x.json", '{"variables": {"aws_secret_key": "SWORDFISH" "x"}}'),
        ("x.yml", "variables:\n  aws_secret_key: SWORDFISH\n bad: [SWORDFISH\n"),
        ("x.yml", "variables: {a: *SWORDFISH}\n"),
        ("x.pkr.hcl", 'variable "password" {\n  default = "SWORDFISH" SWORDFISH\n}\n'),
        ("x.pkr.hcl", 'variable "password" { default = SWORDFISH( }\n'),
    ],
)
def test_error_of_a_broken_template_shows_no_value(name: str, text: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text)
    written = _written(tmp_path, path)
    assert "SWORDFISH" not in written
    assert "line " in written


def test_secrets_of_hcl2_are_copied_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "al2023.pkr.hcl"
    path.write_text(
        """
variable "db_password" { default = "swordfish" }
variable "quiet" {
  default   = "xyzzy-xyzzy"
  sensitive = true
}
local "hidden" {
  expression = "abracadabra-1"
  sensitive  = true
}
source "amazon-ebs" "x" {
  instance_type = "g5.12xlarge"
  secret_key    = "letmein"
  ami_groups    = ["xyzzy-xyzzy", local.hidden]
  user_data     = <<-EOF
    #!/bin/sh
    echo swordfish-in-user-data
  EOF
  tags = { note = "is ${var.db_password}", Password = "opensesame" }
}
build {
  sources = ["source.amazon-ebs.x"]
  provisioner "shell" {
    environment_vars = ["TOKEN=moon-unit"]
    inline           = ["echo abracadabra-1 moon-unit"]
  }
}
"""
    )
    written = _written(tmp_path, path)
    secrets = ("swordfish", "xyzzy", "abracadabra", "letmein", "opensesame", "moon-unit")
    assert [secret for secret in secrets if secret in written] == []
    assert "db_password: a secret" in written and "builders[0].user_data" in written
