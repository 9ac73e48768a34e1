"""Our own checks read what only root may read."""

from typing import Any

import pytest

from validator.plugin import as_root


@pytest.fixture(scope="module")
def host(_testinfra_host: Any) -> Any:
    """The host, through one root shell."""
    return as_root(_testinfra_host)
