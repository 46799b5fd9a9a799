"""The seed of chaos, as in tests/chaos."""

from tests.chaos.conftest import seed

__all__ = ["seed"]
