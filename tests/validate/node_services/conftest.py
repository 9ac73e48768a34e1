from tests.localregion.conftest import empty_moto, endpoint, world

__all__ = ["empty_moto", "endpoint", "world"]
