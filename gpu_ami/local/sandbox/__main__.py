"""`python -m gpu_ami.local.sandbox BASE` holds a sandbox until Ctrl-C."""

from __future__ import annotations

import sys

from gpu_ami.local.sandbox.sandbox import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
