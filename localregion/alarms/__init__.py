"""Alarms of the local region: CloudWatch's evaluation of them, which moto does not do.

metric_math          expressions: operators, IF, FILL
datapoints           statistics of a metric by period, in a sliding window; Metrics Insights queries
evaluation           an alarm at a moment: its state, also where datapoints are missing, and the reason
transitions          calls about alarms; changes of state: history, actions, messages; all alarms, once a minute
"""

from localregion.alarms.transitions import Change, install, run, step

__all__ = ["Change", "install", "run", "step"]
