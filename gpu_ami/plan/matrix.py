"""Which images a change in a git repository affects, and whether each must be built again or only proven again.

What an image is made of shows in three places: what its recipe resolves to (compared with the lock that was committed,
so that a change of facts, layers or of this program counts too), the roles of its plan, and its site's own parts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpu_ami import process
from gpu_ami.errors import UsageError
from gpu_ami.files import data_root
from gpu_ami.plan.document import digest_of
from gpu_ami.plan.lock import Change, lock_file, locks_folder, resolved_recipe, resolved_values, value_differences
from gpu_ami.recipes import ResolvedPlan

_GIT_SECONDS = 60
_OF_THE_CALLER = ("system", "global")
_PROGRAMS = ("core.fsmonitor=false", "core.hooksPath=/dev/null")
_SHOWN = 3
_SITE = "site"


@dataclass(frozen=True)
class AffectedImage:
    """An image that a change affects. build: false where only what proves it has changed. reasons: at least one.

    changes: values of its plan that differ from those of the lock in the commit.
    """

    image: str
    recipe: str
    digest: str
    instance_types: tuple[str, ...]
    build: bool
    reasons: tuple[str, ...]
    changes: tuple[Change, ...] = ()


def affected(recipes: Sequence[Path], since: str = "") -> list[AffectedImage]:
    """The recipes whose images a change since a commit affects; all of them without one.

    UsageError: a recipe that does not resolve, no git repository, an unknown commit.
    """
    repositories: dict[Path, _Changes] = {}
    images = []
    for recipe in recipes:
        document = resolved_recipe(recipe)[1]
        values: tuple[Change, ...] = ()
        if since:
            root = _top_level(recipe)
            if root not in repositories:
                repositories[root] = _Changes(root, since)
            build, proof = _reasons(recipe, document, repositories[root])
            values = tuple(_value_changes(recipe, document, repositories[root]))
        else:
            build, proof = ["all images were asked for"], []
        if build or proof:
            names = tuple(row["name"] for row in document["instance_types"])
            digest = digest_of(resolved_values(document))
            reasons = (*build, *proof)
            images.append(AffectedImage(recipe.stem, _from_here(recipe), digest, names, bool(build), reasons, values))
    return images


def _value_changes(recipe: Path, document: ResolvedPlan, changes: _Changes) -> Iterator[Change]:
    """What the recipe resolves to, compared with its lock in the commit; nothing for a new image."""
    committed = changes.committed(lock_file(recipe.stem, locks_folder(recipe)))
    if committed is not None:
        for path, before, now in value_differences(dict(committed), resolved_values(document), ""):
            yield Change(path, before, now, "")


def _reasons(recipe: Path, document: ResolvedPlan, changes: _Changes) -> tuple[list[str], list[str]]:
    """Why the image must be built again, and why only proven again."""
    committed = changes.committed(lock_file(recipe.stem, locks_folder(recipe)))
    build = []
    if committed is None:
        build.append(f"new: {changes.commit[:12]} has no lock of it")
    elif _without_recipe(committed) != _without_recipe(resolved_values(document)):
        build.append("plan: the recipe resolves to other values (gpu-ami plan --diff shows them)")
    project, site = data_root(), recipe.parent.absolute().with_name(_SITE)
    folders = [project / "roles" / role for role in document["roles"]]
    folders += [site / "roles" / role for role in document["roles"]]
    folders += [project / "packer", project / "playbooks", project / "ansible.cfg"]
    build += changes.below(folders)
    proof = changes.below([project / "validator", site / "checks", recipe.parent.absolute().with_name("checks")])
    return build, proof


class _Changes:
    """What differs between a commit and the work tree of a git repository, uncommitted and new files included."""

    def __init__(self, root: Path, since: str) -> None:
        self.root = root
        shown = _git(root, "rev-parse", "--verify", "--quiet", f"{since}^{{commit}}", check=False)
        if shown.returncode:
            raise UsageError(
                f"{root}: no commit {since!r}",
                hint="in CI, fetch the whole history (actions/checkout: fetch-depth: 0; GitLab: GIT_DEPTH: 0)",
            )
        # The common ancestor: what others committed since a branch began is no change of the branch.
        base = _git(root, "merge-base", since, "HEAD", check=False)
        self.commit = (shown if base.returncode else base).stdout.strip()
        # Of a submodule, git would start another git, with the settings that lie there.
        how = ("--name-only", "-z", "--no-renames", "--no-ext-diff", "--ignore-submodules=dirty")
        changed = _git(root, "diff", *how, self.commit, "--").stdout
        untracked = _git(root, "ls-files", "--others", "--exclude-standard", "-z").stdout
        self.paths = sorted(root / name for name in f"{changed}\0{untracked}".split("\0") if name)

    def committed(self, lock: Path) -> Mapping[str, object] | None:
        """The resolved values in the commit's lock of an image; None without a lock."""
        lock = lock.resolve()
        if not lock.is_relative_to(self.root):
            return None
        shown = _git(self.root, "show", f"{self.commit}:{lock.relative_to(self.root)}", check=False)
        try:
            content = json.loads(shown.stdout) if shown.returncode == 0 else None
        except ValueError:
            return None
        plan = content.get("plan") if isinstance(content, dict) else None
        return plan if isinstance(plan, dict) else None

    def below(self, folders: Iterable[Path]) -> list[str]:
        """A line for each of these folders (or files) in which something changed."""
        lines = []
        for folder in folders:
            resolved = folder.resolve()
            names = [str(path.relative_to(self.root)) for path in self.paths if path.is_relative_to(resolved)]
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            lines += [f"changed: {', '.join(names[:_SHOWN])}{more}"] if names else []
        return lines


def _without_recipe(values: Mapping[str, object]) -> dict[str, object]:
    """Resolved values alone: a remark in the recipe's file changes nothing that is installed."""
    return {key: value for key, value in values.items() if key != "recipe"}


def _from_here(recipe: Path) -> str:
    """The recipe's path as another job can use it: relative to the working directory, where it is below that."""
    here = Path.cwd()
    return str(recipe.resolve().relative_to(here)) if recipe.resolve().is_relative_to(here) else str(recipe)


def _top_level(recipe: Path) -> Path:
    found = _git(recipe.resolve().parent, "rev-parse", "--show-toplevel", check=False)
    if found.returncode:
        raise UsageError(f"{recipe}: not in a git repository", hint="without --since, all recipes are listed")
    return Path(found.stdout.strip()).resolve()


def _git(folder: Path, *words: str, check: bool = True) -> process.Completed:
    """Runs git without the programs that the repository's own settings name: it may be one that somebody sent."""
    settings = [word for name in (*_PROGRAMS, *_filters(folder)) for word in ("-c", name)]
    return _plain_git([*settings, "-C", folder, *words], check=check)


@functools.cache
def _filters(folder: Path) -> tuple[str, ...]:
    """Settings that turn off the filters of a repository, which git would run on files; the caller's own stay."""
    how = ("config", "--includes", "--show-scope", "--name-only", "-z", "--get-regexp")
    words = _plain_git(["-C", folder, *how, r"^filter\."]).stdout.split("\0")
    scopes = zip(words[::2], words[1::2], strict=False)
    names = {name.rpartition(".")[0] for scope, name in scopes if scope not in _OF_THE_CALLER}
    return tuple(f"{name}.{key}" for name in sorted(names) for key in ("clean=", "process=", "required=false"))


def _plain_git(words: Sequence[str | Path], *, check: bool = False) -> process.Completed:
    git = process.find_tool("git", package="git")
    return process.run([git, *words], timeout=_GIT_SECONDS, check=check, error=UsageError)
