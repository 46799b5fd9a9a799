"""What a serializer remembers of the values of each thread, for the threads used last."""

import threading
from typing import Final

from langgraph.checkpoint.serde.base import SerializerProtocol

from holdfast.integrations.langgraph.layout import Assemble
from holdfast.integrations.langgraph.values.values import Pool, Values

_KEPT: Final = 64


class ValueCache:
    """The values of threads; used from any thread of the process."""

    def __init__(self, serde: SerializerProtocol) -> None:
        self._serde = serde
        self._lock = threading.Lock()
        self._of: dict[str, Values] = {}

    def of(self, run_id: str) -> Values:
        with self._lock:
            values = self._of.pop(run_id, None) or Values(self._serde)
            self._of[run_id] = values
            while len(self._of) > _KEPT:
                del self._of[next(iter(self._of))]
            return values

    def reader(self, run_id: str, pool: Pool | None = None) -> Assemble:
        """What makes values of tokens; with a pool, the same objects of the same tokens."""
        values = self.of(run_id)
        return lambda part, form, tokens: values.assemble(form, tokens, channel=part, pool=pool)
