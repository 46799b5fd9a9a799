"""The names in `_meta` that Holdfasts, and clients that know them, use for more details."""

from typing import Final

KEY: Final = "io.holdfast/idempotency-key"
"""Of a request: what its sender calls the operation, however often it asks for it."""
RUN_ID: Final = "io.holdfast/run-id"
"""Of a request: the run that asks. Of a result: the run that it reports."""
CALL_ID: Final = "io.holdfast/call-id"
"""Of a request: the call in that run."""
