"""An operator's policy as the list of codes that it changes."""

from __future__ import annotations

import pytest

from validator.probes import event_policy


@pytest.mark.parametrize("text", ["", "{", "[]", '{"xid": []}', '{"xid": {"79": {"note": "x"}, "48": "fatal"}}'])
def test_no_policy_changes_nothing(text: str) -> None:
    assert event_policy.overrides(text) == []


def test_each_changed_code_is_listed() -> None:
    text = '{"xid": {"79": {"severity": "info", "action": "none"}, "48": {"action": "reset"}}}'
    assert event_policy.overrides(text) == ["xid 79: info, none", "xid 48: reset"]
