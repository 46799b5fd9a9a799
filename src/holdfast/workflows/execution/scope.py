"""What expressions see: `inputs`, `blocks`, `each`, `secrets` and `now`."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from holdfast.workflows.access.secrets import SecretReference, Secrets
from holdfast.workflows.execution.state import BlockResult


class BlockScope:
    """A block that has ended, as expressions see it."""

    def __init__(self, result: BlockResult) -> None:
        self.status = result.status
        self.succeeded = result.status == "completed"
        self.failed = result.status == "failed"
        self.skipped = result.status == "skipped"
        self.error = result.error
        self.outputs = outputs_of(result)
        self.rounds: Any = None
        if result.rounds is not None:
            views = [BlockScope(each) for each in result.rounds]
            self.rounds = (
                views if result.keys is None else dict(zip(result.keys, views, strict=True))
            )

    def __holdfast_plain__(self) -> dict[str, Any]:
        return {"status": self.status, "outputs": self.outputs, "error": self.error}


def outputs_of(result: BlockResult) -> Any:
    """The outputs of a block; of a loop those of its rounds, by key if it went over a map."""
    if result.rounds is None:
        return result.outputs if result.outputs is not None else {}
    outputs = [outputs_of(each) for each in result.rounds]
    return outputs if result.keys is None else dict(zip(result.keys, outputs, strict=True))


class Now(datetime):
    """The moment at which a wave began. `now` and `now()` are the same."""

    def __call__(self) -> "Now":
        return self

    def __str__(self) -> str:
        return self.isoformat()


class _SecretNames:
    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets

    def __getitem__(self, name: str) -> SecretReference:
        return self._secrets.fresh_reference(name)


class Scope:
    """The names that expressions of one workflow know, as they are in one wave."""

    def __init__(
        self,
        inputs: Mapping[str, Any],
        results: Mapping[str, BlockResult],
        secrets: Secrets,
        now: datetime | None,
    ) -> None:
        self.names: dict[str, Any] = {
            "inputs": dict(inputs),
            "blocks": {name: BlockScope(result) for name, result in results.items()},
            "secrets": _SecretNames(secrets),
        }
        if now is not None:
            self.names["now"] = Now.fromtimestamp(now.timestamp(), now.tzinfo)

    def in_round(self, index: int, key: str, value: Any, count: int) -> dict[str, Any]:
        """The same within a loop."""
        each = {
            "index": index,
            "key": key,
            "value": value,
            "count": count,
            "first": index == 0,
            "last": index == count - 1,
        }
        return {**self.names, "each": each}
