"""docs/tasks/add-a-role.md, applied literally in a copy of the repository: what it names is there, and runs."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from gpu_ami.process import run

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "tasks" / "add-a-role.md"
_FILE = re.compile(r"^```(?:yaml|python)\n# (\S+/\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_GENERATED = re.compile(r"^    \.venv/bin/python (-m gpu_ami\S+) (.+)$", re.MULTILINE)
# Tests of the repository that look at every component; those of recipes, and ansible-lint, take minutes.
TESTS = (
    "tests/validator/test_plan.py",
    "tests/validator/checks",
    "tests/faults/test_catalogue.py",
    "tests/roles/test_roles.py",
)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The tracked files, with those of the page."""
    listed = run(["git", "ls-files", "-z"], cwd=ROOT, timeout=60).stdout
    for name in listed.rstrip("\0").split("\0"):
        if (ROOT / name).is_file():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, tmp_path / name)
    files = dict(_FILE.findall(PAGE.read_text(encoding="utf-8")))
    assert len(files) == 8, "the page says how many files are written"
    for name, text in files.items():
        assert not (tmp_path / name).exists(), name
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    for command in (["git", "init", "-q"], ["git", "add", "-A"]):
        run(command, cwd=tmp_path, timeout=120)
    return tmp_path


def python(copy: Path, *words: str) -> str:
    """Output of our interpreter with the copy's code."""
    done = run([sys.executable, *words], cwd=copy, env={"PYTHONPATH": str(copy)}, timeout=900)
    return done.stdout


@pytest.mark.slow
def test_the_page_s_role_becomes_part_of_the_project(copy: Path, home: Path) -> None:
    generated = _GENERATED.findall(PAGE.read_text(encoding="utf-8"))
    assert len(generated) == 2
    for module, arguments in generated:
        words, _, into = arguments.partition(" > ")
        text = python(copy, *module.split(), *shlex.split(words))
        if into:
            (copy / into).write_text(text, encoding="utf-8")
    assert (
        "hugepages" in (copy / "docs/recipes.md").read_text()
        and "Hugepages" in (copy / "docs/schemas/plan.json").read_text()
    )
    plan = ["-m", "gpu_ami", "plan", "al2023-compute", "--set", "hugepages.count=512", "-o", "out", "-q"]
    assert "gpu-ami " + " ".join(plan[2:6]) in PAGE.read_text(encoding="utf-8")
    python(copy, *plan)
    faults = python(copy, "-m", "gpu_ami", "faults", "--list", "--only", "hugepages-not-reserved")
    assert "the kernel has reserved no huge pages" in faults
    tested = python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "hugepages or section or keys", *TESTS)
    assert re.search(r"\d+ passed", tested) and "failed" not in tested
    python(copy, "-m", "ruff", "check", "-q", *(str(path) for path in copy.rglob("*hugepages*.py")))


@pytest.mark.slow
def test_role_of_another_system_is_refused(copy: Path, home: Path) -> None:
    component = copy / "gpu_ami/recipes/components/hugepages.py"
    systems = re.search(r"systems=\(.+?\)", PAGE.read_text(encoding="utf-8"))
    assert systems
    component.write_text(component.read_text().replace("section=Hugepages", f"section=Hugepages, {systems[0]}"))
    code = "import sys; from gpu_ami.cli import main; sys.exit(0 if main(sys.argv[1:]) == 2 else 1)"
    words = ["plan", "al2023-compute", "--set", "hugepages.count=512", "-o", "out", "-q"]
    done = run([sys.executable, "-c", code, *words], cwd=copy, env={"PYTHONPATH": str(copy)}, timeout=120)
    assert "hugepages: role hugepages is for debian12, ubuntu*, the image is al2023" in done.stderr
