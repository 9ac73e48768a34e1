"""Makes the base image of Debian 12 before it is needed: `python3 -m gpu_ami.local.images.prepare`.

`make prove` runs this while pip installs what gpu-ami needs, so it has the standard library alone (Python 3.11 or
newer). Where the image is there, it does nothing. An error is reported here, and again by whoever needs the image.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

from gpu_ami.errors import GpuAmiError
from gpu_ami.files import home_dir
from gpu_ami.local.images import base_image
from gpu_ami.progress import Progress


def main() -> int:
    """Exit status: 0, an error's exit code, or 130 after Ctrl-C."""
    for signum in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:
            signal.signal(signum, _interrupt)
    try:
        base_image.ensure(home_dir(), Progress("plain"))
    except GpuAmiError as error:
        print(f"base image: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("base image: interrupted; everything it started was cleaned up", file=sys.stderr)
        return 130
    return 0


def _interrupt(_signum: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # as Ctrl-C: through every `finally` that cleans up


if __name__ == "__main__":
    raise SystemExit(main())
