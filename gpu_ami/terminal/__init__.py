"""Progress on a terminal.

live                 running stages with step and time, by rich
stage_times          how long each stage took in its last run on this machine
"""

from gpu_ami.terminal.stage_times import StageTimes

__all__ = ["StageTimes"]
