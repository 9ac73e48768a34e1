#!/usr/bin/python3 -sSE
"""Publishes what neuron-monitor reports. The code is in neuron_metrics/ beside this file; see `--help`."""

import os
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
# The event parser's package has the log file that survives rotation and full disks, and systemd's notifications.
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "nvidia")]

from neuron_metrics.service import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
