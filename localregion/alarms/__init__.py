"""Alarms of the local region: CloudWatch's evaluation of them, which moto does not do.

metric_math          expressions: operators, IF, FILL
datapoints           statistics of a metric by period, in a sliding window; Metrics Insights queries
evaluation           an alarm at a moment: its state, also where datapoints are missing, and the reason
notifications        the message to an SNS topic
transitions          changes of state: history and actions; all alarms, once a minute
api                  CloudWatch's calls about alarms
"""

from localregion.alarms.api import install
from localregion.alarms.notifications import Change
from localregion.alarms.transitions import run, step

__all__ = ["Change", "install", "run", "step"]
