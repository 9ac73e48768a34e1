"""What the local region registers with gpu-ami: the builder it chooses, and what works without the extra."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from gpu_ami import region
from gpu_ami.errors import UsageError
from localregion import entry
from localregion.sandbox import builder

ROOT = Path(__file__).resolve().parents[2]
NO_ROOT = "it needs root"


@pytest.mark.parametrize(
    ("asked", "conditions", "reason", "sandbox", "said"),
    [
        ("auto", "", "", True, "the builder is a sandbox of this host"),
        ("sandbox", "", "", True, "the builder is a sandbox of this host"),
        ("machine", "", "", False, ""),
        ("machine", "aws-like:1", NO_ROOT, False, ""),
        ("auto", "", NO_ROOT, False, f"the builder is a booted machine, not a sandbox: {NO_ROOT}"),
        ("auto", "aws-like:1", "", False, "--conditions aws-like:1 needs a booted builder"),
    ],
)
def test_a_sandbox_is_taken_where_it_is_possible(
    monkeypatch: pytest.MonkeyPatch, asked: str, conditions: str, reason: str, sandbox: bool, said: str
) -> None:
    monkeypatch.setattr(builder, "unusable", lambda: reason)
    chosen, note = entry.choose_builder(asked, conditions)
    assert chosen is sandbox
    assert said in note and bool(said) == bool(note)


@pytest.mark.parametrize(("conditions", "reason"), [("", NO_ROOT), ("aws-like:1", "")])
def test_a_sandbox_that_was_asked_for_and_is_not_possible_is_an_error(
    monkeypatch: pytest.MonkeyPatch, conditions: str, reason: str
) -> None:
    monkeypatch.setattr(builder, "unusable", lambda: reason)
    with pytest.raises(UsageError, match="--builder sandbox: ") as caught:
        entry.choose_builder("sandbox", conditions)
    assert "--builder machine" in caught.value.hint


def test_it_is_found_by_its_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in a checkout that was installed before pyproject.toml had the entry point."""
    for registered in (metadata.entry_points(group=region.ENTRY_POINTS), ()):
        monkeypatch.setattr(metadata, "entry_points", lambda registered=registered, **_: registered)
        region.provider.cache_clear()
        assert region.provider() is entry.LOCAL
    monkeypatch.setattr(region, "__file__", str(ROOT / "docs" / "no_package" / "region.py"))
    region.provider.cache_clear()
    with pytest.raises(UsageError, match=r"no region is registered \(entry points gpu_ami\.regions\)"):
        region.provider()
    region.provider.cache_clear()


# A command of an installation without the extra `local`: there is no moto.
_WITHOUT_MOTO = """
import sys
sys.modules["moto"] = None
from gpu_ami import cli
sys.exit(cli.main(sys.argv[1:]))
"""


def without_moto(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT_MOTO, *words]
    environment = {"GPU_AMI_HOME": str(home), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=home)


@pytest.mark.slow  # starts gpu-ami
@pytest.mark.parametrize("words", [("prove", "debian12-gpu"), ("region", "up"), ("rehearse", "debian12-gpu")])
def test_without_the_extra_the_region_says_which_one_is_missing(home: Path, words: tuple[str, ...]) -> None:
    done = without_moto(home, *words, "-q")
    assert done.returncode == 2, done.stderr
    assert "needs the extra `local` of gpu-ami: moto is not installed" in done.stderr
    assert "pip install 'gpu-ami[local]'" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow  # starts gpu-ami
@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        (("plan", "debian12-gpu"), 0),
        (("plan", "debian12-gpu", "--where", "aws.yml"), 0),
        (("facts", "p5.48xlarge"), 0),
        (("region", "status"), 0),
        (("sweep",), 0),
        (("doctor", "--json"), 2),
    ],
)
def test_without_the_extra_everything_else_works(home: Path, words: tuple[str, ...], exit_code: int) -> None:
    home.mkdir(exist_ok=True)
    (home / "aws.yml").write_text("region: eu-central-1\n")
    done = without_moto(home, *words)
    assert done.returncode == exit_code, done.stderr
    if "--json" in words:
        missing = {row["name"] for row in json.loads(done.stdout) if not row["ok"]}
        assert "python: moto" in missing
