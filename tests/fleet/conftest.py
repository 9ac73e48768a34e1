from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fleet.service_machines import Fleet, fleet
from tests.localregion.conftest import World, empty_moto, endpoint, world

__all__ = ["empty_moto", "endpoint", "in_service", "world"]


@pytest.fixture
def in_service(world: World, endpoint: str, tmp_path: Path) -> Iterator[Fleet]:
    with fleet(world, endpoint, tmp_path) as made:
        yield made
