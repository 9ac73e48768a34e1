"""Which checks run, of --checks, --waivers, --golden and -k: what is wrong with them is said before a launch."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.plan import Plan
    from gpu_ami.validate import ProofOptions


def validator_options(args: argparse.Namespace) -> list[str]:
    """The validator's options that come from ours.

    UsageError, before anything is launched for it: a path that is not there, waivers that are none, checks that pytest
    cannot collect. -k: `Selection`.
    """
    paths = [path for path in (*args.checks, args.waivers, args.golden) if path is not None]
    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise UsageError(f"{', '.join(missing)}: no such file or folder")
    require_waivers(args.waivers)
    _require_checks(args.checks)
    options = [f"--waivers={args.waivers}"] if args.waivers else []
    options += golden_folders(args.golden)
    options += ["-k", args.select] if args.select else []
    return options + ["--provoke-xid"] * args.provoke_xid + ["--account-files"] * args.account_files


def golden_folders(folder: Path | None = None) -> list[str]:
    """The validator's --golden options: the folder that was named, else the user's and ours; empty: ours alone."""
    from gpu_ami.validate import golden

    folders = (folder,) if folder else golden.folders()
    return [f"--golden={path}" for path in folders] if folder or len(folders) > 1 else []


def require_waivers(file: Path | None) -> None:
    """UsageError: a file of waivers that is not there or has mistakes."""
    from validator import waivers

    try:
        if file is not None:
            waivers.load(file)
    except (OSError, ValueError) as error:
        raise UsageError(f"--waivers: {error}") from error


def _require_checks(folders: Sequence[Path]) -> None:
    if not folders:
        return
    from gpu_ami.validate import collect, why_not_collected

    done = collect([], folders)
    if done.returncode != 0:
        names = ", ".join(map(str, folders))
        hint = "--checks takes folders of testinfra files: test_*.py, with functions test_*"
        raise UsageError(f"pytest cannot collect the checks in {names}", details=why_not_collected(done), hint=hint)


# Exit status of pytest
_USAGE_ERROR = 4
_NO_CHECK_COLLECTED = 5


@dataclass(frozen=True)
class Selection:
    """What -k selects from. checks: folders of --checks. hosts: what is checked, of `validate.collect`'s addresses."""

    expression: str | None
    checks: Sequence[Path]
    hosts: Sequence[str]

    @staticmethod
    def of_image(args: argparse.Namespace) -> Selection:
        """Of an AMI's machines and, in the local region, its files."""
        from gpu_ami.validate import A_MACHINE, IMAGE_FILES_ALONE

        return Selection(args.select, args.checks, [A_MACHINE, *([] if args.where else [IMAGE_FILES_ALONE])])

    def narrow(self, proof: ProofOptions, folder: Path, plan: Plan | None) -> ProofOptions:
        """The options of a proof whose files or machines are left out where -k selects none of their checks.

        UsageError: as of `require_some`.
        """
        from gpu_ami.validate import A_MACHINE, IMAGE_FILES_ALONE

        selected = self.require_some(folder, plan)
        files, machines = (host not in selected for host in (IMAGE_FILES_ALONE, A_MACHINE))
        return replace(
            proof,
            no_files=f"-k {self.expression!r} selects none of their checks" if files and self.expression else "",
            no_machines=f"-k {self.expression!r} selects none of their checks" if machines and self.expression else "",
        )

    def require_some(self, folder: Path, plan: Plan | None) -> frozenset[str]:
        """The hosts of which -k selects checks. UsageError: an expression that pytest refuses, or none that it selects.

        folder: of the plan and its site. plan: None where the image's roles are not known yet.
        """
        from gpu_ami.plan import PLAN_FILE
        from gpu_ami.validate import IMAGE_FILES_ALONE, collect, site_checks, why_not_collected

        if not self.expression:
            return frozenset(self.hosts)
        if plan is not None:
            of_site, planned = site_checks(plan.document, folder / PLAN_FILE), [f"--plan={folder / PLAN_FILE}"]
        else:
            of_site, planned = sorted((folder / "site" / "checks").glob("test_*.py")), []
        checks = [_own_checks(), *of_site, *self.checks]
        selected = set()
        for host in self.hosts:
            options = ["-k", self.expression, *planned, *(["--tier=T0"] if host == IMAGE_FILES_ALONE else [])]
            done = collect(options, checks, [host])
            if done.returncode == _USAGE_ERROR:
                hint = "names, or parts of them, with and, or, not and parentheses; `gpu-ami checks` lists the names"
                message = f"-k {self.expression!r} is no expression of pytest's"
                raise UsageError(message, details=why_not_collected(done), hint=hint)
            if done.returncode != _NO_CHECK_COLLECTED:
                selected.add(host)
        if not selected:
            which = "; which of them run depends on the plan's roles" if plan is not None else ""
            message = f"-k {self.expression!r} selects no check{f' of {plan.image}' if plan else ''}"
            raise UsageError(message, hint=f"`gpu-ami checks` lists the names{which}")
        return frozenset(selected)


def _own_checks() -> Path:
    import validator

    return Path(validator.__file__).parent / "checks"
