"""Which images a commit affects, in a real git repository with a user's recipes."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.plan import affected, matrix, render_lock, write_lock

RECIPE = """\
description: a test
flag: {name}
os: debian12
instance_types: [g5.12xlarge, p4d.24xlarge]
nvidia_driver: {{version: 580.178.04}}
"""


def git(folder: Path, *words: str) -> str:
    names = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", "-C", folder, *names, *words], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's repository with two recipes, their locks, and one commit."""
    root = tmp_path / "company"
    (root / "recipes").mkdir(parents=True)
    for name in ("one", "two"):
        recipe = root / "recipes" / f"{name}.yml"
        recipe.write_text(RECIPE.format(name=name))
        write_lock(render_lock(recipe, root / "locks"), root / "locks")
    git(root, "init", "-q", "-b", "main")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    monkeypatch.chdir(root)
    return root


def images(project: Path, since: str = "HEAD") -> dict[str, tuple[bool, tuple[str, ...]]]:
    recipes = sorted((project / "recipes").glob("*.yml"))
    return {image.image: (image.build, image.reasons) for image in affected(recipes, since)}


def test_without_a_commit_every_image_is_listed(project: Path) -> None:
    (one, two) = affected(sorted((project / "recipes").glob("*.yml")))
    assert (one.image, one.recipe, one.build) == ("one", "recipes/one.yml", True)
    assert two.instance_types == ("g5.12xlarge", "p4d.24xlarge")


def test_no_change_affects_no_image(project: Path) -> None:
    assert images(project) == {}


def test_a_recipe_that_resolves_to_other_values_is_built(project: Path) -> None:
    recipe = project / "recipes" / "one.yml"
    recipe.write_text(recipe.read_text() + "telemetry: {interval_s: 30}\n")
    reason = "plan: the recipe resolves to other values (gpu-ami plan --diff shows them)"
    assert images(project) == {"one": (True, (reason,))}
    git(project, "commit", "-qam", "second")
    assert images(project) == {"one": (True, (reason,))}  # its lock was not written anew
    write_lock(render_lock(recipe, project / "locks"), project / "locks")
    git(project, "commit", "-qam", "third")
    assert images(project) == {} and images(project, "HEAD~2") == {"one": (True, (reason,))}


def test_values_that_change_are_those_of_the_lock_in_the_commit(project: Path) -> None:
    recipe = project / "recipes" / "one.yml"
    recipe.write_text(recipe.read_text() + "telemetry: {interval_s: 30}\n")
    write_lock(render_lock(recipe, project / "locks"), project / "locks")  # as a pull request does
    (image,) = affected(sorted((project / "recipes").glob("*.yml")), "HEAD")
    (interval,) = [change for change in image.changes if change.path == "telemetry.interval_s"]
    assert (interval.locked, interval.planned) == (60, 30)


def test_a_remark_in_a_recipe_changes_no_image(project: Path) -> None:
    recipe = project / "recipes" / "one.yml"
    recipe.write_text("# a remark\n" + recipe.read_text())
    assert images(project) == {}


def test_a_new_recipe_is_built(project: Path) -> None:
    (project / "recipes" / "three.yml").write_text(RECIPE.format(name="three"))
    ((image, (build, reasons)),) = images(project).items()
    assert (image, build) == ("three", True)
    assert reasons[0].startswith("new: ") and reasons[0].endswith("has no lock of it")


def test_changed_checks_are_proven_and_not_built(project: Path) -> None:
    (project / "checks").mkdir()
    (project / "checks" / "test_mine.py").write_text("def test_it(host): ...\n")
    reasons = (False, ("changed: checks/test_mine.py",))
    assert images(project) == {"one": reasons, "two": reasons}


def test_roles_of_the_plan_and_the_template_are_built(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project's own parts, where they are in the repository."""
    for name in ("nvidia_driver", "neuron"):
        (project / "roles" / name / "tasks").mkdir(parents=True)
        (project / "roles" / name / "tasks" / "main.yml").write_text("[]\n")
    monkeypatch.setattr(matrix, "data_root", lambda: project)
    build, reasons = images(project)["one"]
    assert (build, reasons) == (True, ("changed: roles/nvidia_driver/tasks/main.yml",))  # neuron: of no plan here


def test_what_others_committed_since_the_branch_began_is_no_change(project: Path) -> None:
    git(project, "checkout", "-qb", "branch")
    git(project, "commit", "-q", "--allow-empty", "-m", "branch")
    git(project, "checkout", "-q", "main")
    recipe = project / "recipes" / "one.yml"
    recipe.write_text(recipe.read_text() + "telemetry: {interval_s: 30}\n")
    write_lock(render_lock(recipe, project / "locks"), project / "locks")
    git(project, "commit", "-qam", "on main")
    git(project, "checkout", "-q", "branch")
    assert images(project, "main") == {}


def test_a_long_list_of_files_is_cut(project: Path) -> None:
    (project / "checks").mkdir()
    for number in range(5):
        (project / "checks" / f"test_{number}.py").write_text("")
    assert images(project)["one"][1] == ("changed: checks/test_0.py, checks/test_1.py, checks/test_2.py and 2 more",)


def test_an_unknown_commit_and_a_folder_without_git_are_refused(project: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no commit 'v99'") as refused:
        images(project, "v99")
    assert "fetch-depth: 0" in refused.value.hint
    (tmp_path / "recipes").mkdir()
    alone = tmp_path / "recipes" / "alone.yml"
    alone.write_text(RECIPE.format(name="alone"))
    with pytest.raises(UsageError, match="not in a git repository"):
        affected([alone], "HEAD")
