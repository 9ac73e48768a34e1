"""`python -m localregion.sandbox BASE` holds a sandbox until Ctrl-C."""

from __future__ import annotations

import sys

from localregion.sandbox.sandbox import main

if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
