"""A pytest plugin that proves an image on a running host, or on its files.

Usable alone: `pytest -p validator.plugin --hosts=ssh://user@address FILES`.

plugin               the pytest plugin: hooks, fixtures, the results of a run
outcomes             the outcome that pytest reports becomes a verdict
selection            the plugin's options; which of the collected checks run; their ids, roles and promises
identity             ids, roles and promises of checks in the results
tiers                proof tiers: what their checks prove and do not prove
secret_shapes        what looks like a secret in a text, for evidence and imported templates
tried_on             what each check was tried on: real hardware, a transcript, replicas alone
plan                 plan.json as the checks read it: a missing key makes a check UNPROVEN
plan_document        the types of the content of plan.json, for gpu_ami and the checks
agent_document       the types of the CloudWatch agent's configuration in plan.json
observe              how a check ends, and what it records for the report beside its verdict
deadline             the alarm that ends a check past its deadline; a time limit for each request of a boto3 client
results              check records, verdicts and the file checks.json
waivers              named checks that may fail until a named day
inputs               what a user's file must be before it is read: a regular file of a bounded size
schema               the grammar of a user's files; reports all mistakes at once
pci                  commands that list PCI devices, and say whether the GPUs are real
measurement          the measurements of a GPU: one row each, from which their readers derive
evidence             logs, states and facts of a host, kept whatever the verdict
aws                  AWS's errors, one row each; answers that are checked as they are parsed
cloudwatch           reads datapoints and log events from CloudWatch and CloudWatch Logs
call_deadline        a time limit for each HTTP request of a boto3 client

Packages: checks (one file a role), probes, engine, transport and file_account.
"""
