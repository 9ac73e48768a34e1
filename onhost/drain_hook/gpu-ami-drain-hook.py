#!/usr/bin/python3 -sSE
"""Runs the scripts of /etc/gpu-ami/drain.d at a notice of interruption. The code is in drain_hook/; see `--help`."""

import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
# The event parser's package has the log file that survives rotation and full disks, and systemd's notifications.
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "nvidia")]

from drain_hook.service import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
