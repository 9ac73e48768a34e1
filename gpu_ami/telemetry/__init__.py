"""What is watched on running instances: alarms and their runbooks, CloudFormation templates, the dashboard.

alarms               the table of alarms, variables/alarms.yml, and the runbook of an alarm, an Xid or an SXid
measurements         what a plan measures; metrics of GPUs and Neuron devices in CloudWatch
instance_alarms      what the metrics of an instance are compared with; the template fleet-alarms.yml
stack                the templates telemetry.yml and instance-alarms.yml
dashboard            the body of the CloudWatch dashboard
templates            writes all of them; the templates of Neuron devices and of a site's own alarms, lab.yml
page                 what CloudWatch has of the last hours as one HTML page, written or served on the loopback
"""

from gpu_ami.telemetry.alarms import Alarm, Runbook, find_runbook, load_alarms

__all__ = ["Alarm", "Runbook", "find_runbook", "load_alarms"]
