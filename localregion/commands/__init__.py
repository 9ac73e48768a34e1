"""Commands of gpu-ami that are of the local region: `region` and `rehearse`, registered by localregion/entry.py.

region_verbs  the region by hand: up, down, status, ssh, console, prune
rehearse      builds recipes in sandboxes of the region and judges them
json_types    the type of what each prints under `--json`
"""
