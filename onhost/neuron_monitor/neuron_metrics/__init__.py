"""neuron-monitor to CloudWatch. Python 3.9 or newer, standard library only.

documents   a report of neuron-monitor as embedded metric documents (pure functions)
service     runs neuron-monitor, and writes the documents to the file that the CloudWatch agent sends
"""
