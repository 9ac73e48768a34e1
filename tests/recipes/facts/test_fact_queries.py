"""Answers to questions about the facts, with their sources."""

from __future__ import annotations

import datetime
import re
from typing import Any

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts import fact_queries
from gpu_ami.recipes.facts.tables import load_facts

FACTS = load_facts()


@pytest.mark.parametrize(
    "ask, name, holds",
    [
        (
            fact_queries.about_instance_type,
            "p5.48xlarge",
            ["NVIDIA H100 80GB HBM3", "count: 8", "driver branches: 525", "source:"],
        ),
        (fact_queries.about_instance_type, "p6-b200", ["model: B200", "instance types: p6-b200.48xlarge"]),
        (fact_queries.about_instance_type, "g4ad.xlarge", ["not built for: AMD"]),
        (fact_queries.about_instance_type, "inf1.xlarge", ["Neuron releases: 2.23.0"]),
        (fact_queries.about_driver, "580", ["end of support: 2028-06", "7.0: Volta", "580.178.04"]),
        (fact_queries.about_driver, "550.163.01", ["branch: 550"]),
        (fact_queries.about_cuda, "13.0", ["minimum driver: 580.95.05", "9.12.0"]),
        (fact_queries.about_efa, "1.49", ["libfabric: 2.4.0"]),
        (fact_queries.about_os, "al2", ["end of life: 2026-06-30", "node families: ec2, ecs"]),
    ],
)
def test_facts_answer_with_sources(ask: Any, name: str, holds: list[str]) -> None:
    text = fact_queries.as_text(ask(FACTS, name))
    assert "source: " in text
    for part in holds:
        assert part in text


@pytest.mark.parametrize(
    "ask, name, message",
    [
        (
            fact_queries.about_instance_type,
            "p5.49xlarge",
            "no instance type or family 'p5.49xlarge' in the facts; did you mean",
        ),
        (fact_queries.about_driver, "58", "no driver '58' in the facts"),
        (fact_queries.about_cuda, "14", "no CUDA '14' in the facts"),
        (fact_queries.about_efa, "2", "no EFA installer '2' in the facts"),
        (fact_queries.about_os, "debian", "no operating system 'debian' in the facts; did you mean debian13?"),
    ],
)
def test_unknown_names_are_errors(ask: Any, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        ask(FACTS, name)


def test_driver_tells_which_cuda_it_runs_and_how() -> None:
    answer = fact_queries.about_driver(FACTS, "580.65.06")
    assert answer["releases"] == ["580.65.06"]
    assert "12.9" in answer["cuda_made_for"]
    assert answer["cuda_minor_compatible"][0] == "13.0"  # its toolkit asks for 580.95.05
    assert not set(answer["cuda_made_for"]) & set(answer["cuda_minor_compatible"])


def test_instance_type_tells_what_fits_its_gpu() -> None:
    answer = fact_queries.about_instance_type(FACTS, "p3.2xlarge")
    assert answer["kernel_modules"] == ["proprietary"]
    assert (answer["driver_branches"][-1], answer["cuda"][-1]) == ("580", "12.9")


def test_unverified_row_is_marked_in_the_text() -> None:
    row = {"source": "a page", "date": "2026-11-21"}
    verified, not_verified = ({**row, "verified": value} for value in (True, False))
    text = fact_queries.as_text({"sources": [verified, not_verified]})
    assert text.splitlines() == ["source: a page (2026-11-21)", "source: a page (2026-11-21, not verified)"]


def test_text_has_a_line_a_value_and_mappings_below_their_key() -> None:
    answer = {"cudnn": ["9.1", "9.2"], "nothing": None, "none": [], "gpu": {"count": 8, "source": "x"}, "bundled": True}
    assert fact_queries.as_text(answer).splitlines() == ["cuDNN: 9.1, 9.2", "GPU:", "  count: 8", "bundled: yes"]


def test_a_plan_says_from_when_its_rows_are() -> None:
    today = datetime.date(2027, 1, 20)
    assert fact_queries.age(["2026-12-24", "2026-12-02"], today, 60) == "rows of 2026-12-02 to 2026-12-24"
    old = "rows of 2026-11-20 to 2026-12-24; 1 of 2 are older than 60 days: gpu-ami facts refresh"
    assert fact_queries.age(["2026-12-24", "2026-11-20"], today) == old
