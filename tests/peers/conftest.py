"""The seed of chaos, as in tests/chaos; and what lies between two stores, and beyond."""

from pathlib import Path

import pytest

from tests.chaos.conftest import seed

__all__ = ["seed"]


@pytest.fixture
def transport(tmp_path: Path) -> str:
    """A transport that two stores share."""
    return f"sqlite:///{tmp_path}/between.db"


@pytest.fixture
def elsewhere(tmp_path: Path) -> str:
    """The store of somebody else."""
    return str(tmp_path / "elsewhere.db")
