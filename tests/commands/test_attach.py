"""`gpu-ami attach`: which roles, and what is said where nobody answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami import cli


@pytest.mark.slow
def test_attach_takes_roles_of_the_plan_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = Path(__file__).parents[2] / "variables" / "recipes" / "debian12-gpu.yml"
    assert cli.main(["plan", str(recipe), "-o", str(tmp_path), "-q"]) == 0
    attach = ["attach", str(tmp_path), "--host", "ssh://nobody@127.0.0.1:9", "-q"]
    for stranger in ("neuron", "hygiene"):  # not of this plan; of a builder alone
        assert cli.main([*attach, "--role", "nccl", "--role", stranger]) == 2
        assert f"--role {stranger}: the plan has kernel, " in capsys.readouterr().err
    assert cli.main([*attach, "--role", "nccl"]) == 4
    assert "nobody@127.0.0.1:9 could not be reached" in capsys.readouterr().err
