"""Alarms of the local region: CloudWatch's evaluation of them, which moto does not do.

metric_math          expressions: operators, IF, FILL
evaluation           an alarm at a moment: its datapoints, its state, also where some are missing, and the reason;
                     Metrics Insights queries
transitions          calls about alarms; changes of state: history, actions, messages; all alarms, once a minute
"""

from localregion.alarms.transitions import Change, install, run, step

__all__ = ["Change", "install", "run", "step"]
