"""Webhooks, for code that blocks."""

from collections.abc import Iterable

from holdfast.subscribers import webhooks
from holdfast.subscribers.webhooks import DAY_SECONDS, Webhook
from holdfast.sync.loop import Face, blocking


@blocking(webhooks.Webhooks)
class Webhooks(Face[webhooks.Webhooks]):
    """The webhooks of the tenant."""

    def add(
        self,
        url: str,
        *,
        name: str,
        secret: str = "",
        kinds: Iterable[str] = (),
        agents: Iterable[str] = (),
        after: str | None = None,
        give_up_seconds: float = DAY_SECONDS,
    ) -> Webhook:
        return self._call(
            self._inner.add,
            url,
            name=name,
            secret=secret,
            kinds=kinds,
            agents=agents,
            after=after,
            give_up_seconds=give_up_seconds,
        )

    def list(self) -> "list[Webhook]":
        return self._call(self._inner.list)

    def get(self, name: str) -> Webhook:
        return self._call(self._inner.get, name)

    def remove(self, name: str, *, by: str = "") -> None:
        return self._call(self._inner.remove, name, by=by)

    def resume(self, name: str, *, by: str = "") -> Webhook:
        return self._call(self._inner.resume, name, by=by)
