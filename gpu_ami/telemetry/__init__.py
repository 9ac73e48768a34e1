"""What is watched on running instances: alarms and their runbooks, CloudFormation templates, the dashboard.

alarms               the table of alarms: variables/alarms.yml
runbook              what to do for an alarm, an Xid or an SXid
measurements         what a plan measures
instance_alarms      what the metrics of an instance are compared with
fleet_alarms         the template fleet-alarms.yml
neuron               the templates neuron-alarms.yml and neuron-instance-alarm.yml
neuron_metrics       what is shown of neuron-monitor's metrics
stack                the templates telemetry.yml and instance-alarms.yml
lab                  the template lab.yml
dashboard            the body of the CloudWatch dashboard
templates            writes all of them
devices              how GPUs and Neuron devices stand in CloudWatch
readings             what CloudWatch has of the last hours
page                 the same as one HTML page
watch                serves the page on the loopback
"""

from gpu_ami.telemetry.alarms import Alarm, load_alarms
from gpu_ami.telemetry.runbook import Runbook, find_runbook

__all__ = ["Alarm", "Runbook", "find_runbook", "load_alarms"]
