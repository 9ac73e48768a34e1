"""The proof: a pytest plugin that judges a running host.

Usable alone: `pytest -p validator.plugin --hosts=ssh://user@address FILES`.

plugin               the pytest plugin: options, fixtures, the results of a run
selection            which of the collected checks run
identity             what a check is called in the results, and what it promises
tiers                how deep a check reaches into an image, and what it leaves open
plan                 plan.json as the checks read it: a missing key makes a check UNPROVEN
plan_document        the types of the content of plan.json, for gpu_ami and the checks
agent_document       the types of the CloudWatch agent's configuration in plan.json
observe              what a check records beside its verdict
deadline             the alarm that ends a check past its deadline
results              check records, verdicts and the file checks.json
waivers              named checks that may be red until a named day
schema               what a file of a user may hold; finds all mistakes at once
evidence             what is kept of a host whatever the verdict
cloudwatch           what has arrived in CloudWatch and CloudWatch Logs

Packages: checks (one file a role), probes, engine, transport and remote.
"""
