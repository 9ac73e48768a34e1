"""Builds Kubernetes for the local region: `python -m localregion.kubernetes [VERSION…]`, which `make nodes` runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gpu_ami.errors import GpuAmiError, end_as_by_ctrl_c
from gpu_ami.files import home_dir
from gpu_ami.progress import Progress
from localregion.kubernetes import programs


def main(versions: Sequence[str]) -> int:
    """Exit status: 0, an error's exit code, or 130 after Ctrl-C."""
    end_as_by_ctrl_c()
    progress = Progress("plain")
    try:
        for version in versions or tuple(programs.RELEASES):
            made = programs.ensure(home_dir(), version, progress)
            progress.note(f"Kubernetes {made.release}: {made.folder}")
        programs.clean(home_dir())
    except GpuAmiError as error:
        print(f"nodes: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("nodes: interrupted; the same command goes on where it ended", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
