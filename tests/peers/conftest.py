"""The seed of chaos, as in tests/chaos."""

from tests.chaos.conftest import quiet_driver, seed

__all__ = ["quiet_driver", "seed"]
