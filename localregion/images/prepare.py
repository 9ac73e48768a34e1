"""Makes the base image of Debian 12 before it is needed: `python3 -m localregion.images.prepare`.

`make prove` runs this while pip installs what gpu-ami needs, so it has the standard library alone (Python 3.11 or
newer). Where the image is there, it does nothing. An error is reported here, and again by whoever needs the image.
"""

from __future__ import annotations

import sys

from gpu_ami.errors import GpuAmiError, end_as_by_ctrl_c
from gpu_ami.files import home_dir
from gpu_ami.progress import Progress
from localregion.images import base_image


def main() -> int:
    """Exit status: 0, an error's exit code, or 130 after Ctrl-C."""
    end_as_by_ctrl_c()
    try:
        base_image.ensure(home_dir(), Progress("plain"))
    except GpuAmiError as error:
        print(f"base image: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("base image: interrupted; everything it started was cleaned up", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
