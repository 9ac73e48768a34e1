#!/usr/bin/python3 -sSE
"""GPU event parser: captures Xid and SXid events live. The code is in hwevents/ beside this file; see `--help`."""

import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

from hwevents.main import main

if __name__ == "__main__":
    sys.exit(main())
