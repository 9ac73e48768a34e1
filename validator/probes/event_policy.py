"""An operator's policy, which overrides the event parser's catalogue of Xids."""

from __future__ import annotations

import json

PATH = "/etc/gpu-ami/xid-policy.json"


def overrides(text: str) -> list[str]:
    """ "xid 79: info, none" for each code that the policy overrides; empty if the policy has none or is not JSON."""
    try:
        document = json.loads(text)
    except ValueError:
        return []
    kinds = document.items() if isinstance(document, dict) else []
    return [
        f"{kind} {code}: {', '.join(str(entry[key]) for key in ('severity', 'action') if key in entry)}"
        for kind, entries in kinds
        for code, entry in (entries.items() if isinstance(entries, dict) else [])
        if isinstance(entry, dict) and entry.keys() & {"severity", "action"}
    ]
