"""Alarms of the local region: CloudWatch's evaluation of them, which moto does not do.

missing_data         an alarm's state from its datapoints, where some may be missing
metric_math          expressions: operators, IF, FILL
insights             Metrics Insights queries, whose groups are contributors
datapoints           statistics of a metric by period, in a sliding window
evaluation           an alarm at a moment: its state and the reason
notifications        the message to an SNS topic
transitions          changes of state: history and actions
evaluator            all alarms, once a minute or step by step
api                  CloudWatch's calls about alarms
"""

from gpu_ami.local.alarms.api import install
from gpu_ami.local.alarms.evaluator import run, step
from gpu_ami.local.alarms.notifications import Change

__all__ = ["Change", "install", "run", "step"]
