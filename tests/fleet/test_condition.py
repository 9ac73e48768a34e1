"""What the answer of a machine, and CloudWatch, say of it."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.cloud.fleet import Outcome
from gpu_ami.fleet import condition

GOOD = {
    "origin": "fleet", "plan": "sha256:1", "image": "x", "agent": "active", "parser": "active",
    "parser_status": {"heartbeat_age_s": 10, "heartbeat_period_s": 60},
}  # fmt: skip


@pytest.mark.parametrize(
    ("outcome", "answer", "state", "reason"),
    [
        (Outcome("Success"), GOOD, "ok", ""),
        (Outcome("Success"), {**GOOD, "origin": "image", "plan": ""}, "ok", ""),
        (Outcome("Silent", "its SSM Agent is silent"), {}, "silent", "its SSM Agent is silent"),
        (Outcome("Undeliverable", "Undeliverable"), {}, "silent", "Undeliverable"),
        (Outcome("TimedOut", "DeliveryTimedOut"), {}, "silent", "DeliveryTimedOut"),
        (Outcome("Cancelled", "Terminated"), {}, "unproven", "Terminated"),
        (Outcome("Failed", "python3: not found"), {}, "broken", "python3: not found"),
        (Outcome("Success", "no JSON"), {}, "broken", "no JSON"),
        (Outcome("Success"), {**GOOD, "origin": "", "plan": ""}, "other plan", "nothing is attached to it"),
        (Outcome("Success"), {**GOOD, "plan": "sha256:2"}, "other plan", "it runs sha256:2 (x), expected sha256:1"),
        (Outcome("Success"), {**GOOD, "agent": "failed"}, "broken", "agent is failed"),
        (Outcome("Success"), {**GOOD, "parser_status": {}}, "broken", "the event parser has written no status"),
        (
            Outcome("Success"), {**GOOD, "parser_status": {"heartbeat_age_s": 400.0}}, "behind",
            "the event parser's last heartbeat was 400 s ago, expected within 125 s",
        ),
    ],
)  # fmt: skip
def test_a_machine_is_judged_by_its_answer(outcome: Outcome, answer: Any, state: str, reason: str) -> None:
    assert condition._of_answer(outcome, answer, "sha256:1") == (state, reason)
