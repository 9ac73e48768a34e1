#!/usr/bin/python3 -sSE
"""GPU event parser: live Xid and SXid capture. The code is in hwevents/ beside this file; `--help` lists the verbs."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from hwevents.main import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
