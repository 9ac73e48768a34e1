"""Builds a plan's replicas into a folder and lists them: `python -m localregion.mirror PLAN [COMPONENT…]`.

For those who write replicas. PLAN: a plan.json or a lock (variables/locks/*.json). COMPONENT: keys of the plan; without
any, those of the roles that the plan runs. The tree is $GPU_AMI_HOME/mirror/current.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from gpu_ami.errors import GpuAmiError
from gpu_ami.files import home_dir
from gpu_ami.progress import Progress
from localregion.mirror import content as mirror_content
from localregion.mirror import mirror
from localregion.mirror.package_requests import sections


def main(argv: list[str]) -> int:
    """Exit status; what was built goes to stdout, errors to stderr."""
    if not argv or argv[0].startswith("-"):
        print(__doc__, file=sys.stderr)
        return 2
    document = json.loads(Path(argv[0]).read_text(encoding="utf-8"))
    plan = document.get("plan", document)
    started = time.monotonic()
    try:
        tree = mirror.ensure(home_dir(), plan=plan, only=argv[1:] or None, progress=Progress("plain"))
    except GpuAmiError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    content = mirror_content.resolve(sections(plan, argv[1:] or None))
    names = {name for packages in content.repositories.values() for name in packages}
    names |= {Path(path).name for path in content.files}
    for path in sorted(path for path in tree.root.rglob("*") if path.name in names):
        print(f"{path.stat().st_size:9} {path.relative_to(tree.root)}", file=sys.stdout)
    for where, commit in tree.commits.items():
        if where.partition("#")[0] in content.git:
            print(f"{commit[:9]} {where}", file=sys.stdout)
    print(f"{time.monotonic() - started:.2f} s → {tree.root}", file=sys.stdout)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
