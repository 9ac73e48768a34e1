"""A pytest plugin that proves an image on a running host, or on its files.

Usable alone: `pytest -p validator.plugin --hosts=ssh://user@address FILES`.

A run, from the command line to the results:
plugin               the pytest plugin: hooks, fixtures, the results of a run
selection            the plugin's options; which of the collected checks run; their ids, roles and promises
isolation            which plugins, conftest files and checks took part in a run; --isolated
observe              how a check ends, and what it records for the report beside its verdict
deadline             the alarm that ends a check past its deadline; a time limit for each request of a boto3 client
results              check records, verdicts and the file checks.json
evidence             logs, states and facts of a host, kept whatever the verdict
waivers              named checks that may fail until a named day
tiers                proof tiers: what their checks prove and do not prove
tried_on             what each check was tried on: real hardware, a transcript, replicas alone

Files that it reads:
plan                 plan.json as the checks read it: a missing key makes a check UNPROVEN
plan_document        the types of the content of plan.json, for gpu_ami and the checks
agent_document       the types of the CloudWatch agent's configuration in plan.json
schema               the grammar of a user's files; reports all mistakes at once
inputs               what a user's file must be before it is read: a regular file of a bounded size
foreign_names        names that others chose, as files below a folder of ours
secret_shapes        what looks like a secret in a text, for evidence and imported templates

Machines and AWS:
remote               programs of onhost/ as commands for a host
pci                  commands that list PCI devices, and say whether the GPUs are real
measurement          the measurements of a GPU: one row each, from which their readers derive
cloudwatch           reads datapoints and log events from CloudWatch and CloudWatch Logs
aws                  AWS's errors, one row each; answers that are checked as they are parsed

Packages:
checks               what an image promises, one file a role
probes               what a machine reports about itself; the checks read a machine through them
transport            connections to hosts, and image files: commands in batches
engine               runs checks concurrently to save round trips
file_account         explains every file of an image
"""
