"""How much chaos, as in tests/chaos: name that folder too for `--chaos` to be known."""

from tests.chaos.conftest import is_chaos, quiet_driver, seed

__all__ = ["is_chaos", "quiet_driver", "seed"]
