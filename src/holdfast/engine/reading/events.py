"""The feed of events in a store: read it from a position on, and follow it.

The store keeps nothing for a follower: the follower gives its position. Entries of the runs that
deliver events are not events, or each delivery would cause the next one.
"""

import difflib
from collections.abc import AsyncIterator, Iterable
from typing import Final, NamedTuple

from holdfast import names
from holdfast.engine.context import Context
from holdfast.errors import MisuseError
from holdfast.kernel import events
from holdfast.kernel.events import TYPE, Event, EventFilter, FeedPosition
from holdfast.kernel.journal import Kind
from holdfast.stores.contract import JOURNAL

START: Final = "start"
SUBSCRIBER: Final = "holdfast.subscriber"
"""The agent of runs that deliver events."""
_PAGE: Final = 500


class Page(NamedTuple):
    """Events, and the position to continue from after all entries that were read."""

    events: list[Event]
    position: FeedPosition
    is_last: bool


class Feed:
    """The events of one store and tenant."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._store_id = ""

    async def position(self, after: str | None) -> FeedPosition:
        """Return the position that a text names, by default the end. Raises MisuseError."""
        store = self._context.store
        self._store_id = self._store_id or await store.store_id()
        if after == START:
            return FeedPosition(0)
        end = await store.journal.feed_end()
        if after is None:
            return end
        if not isinstance(after, str):  # pyright: ignore[reportUnnecessaryIsInstance] - checked for users without a type checker
            raise MisuseError(f"a position is a text, not {after!r}")
        found = events.from_text(after, self._store_id)
        if found.at > end.at:
            raise MisuseError(
                f"the events of this store end before {after!r}: it is an older copy of the one "
                "that gave this position. Go on from 'start', or from now"
            )
        return found

    def text_of(self, position: FeedPosition) -> str:
        """Return a position as text, for a follower to continue from later."""
        return events.to_text(position, self._store_id)

    async def read(self, after: FeedPosition, wanted: EventFilter, limit: int = _PAGE) -> Page:
        """Return what comes next: of `limit` entries, those that are wanted."""
        journal = self._context.store.journal
        end = await journal.feed_end()
        fed = await journal.feed(after, limit)
        last = fed[-1].position if fed else after
        is_last = len(fed) < limit
        found = [
            events.event_of(each, tenant=self._context.tenant, store_id=self._store_id)
            for each in fed
            if each.agent != SUBSCRIBER and wanted.has(each)
        ]
        # Entries of other tenants are skipped as well, and not read again.
        return Page(found, max(last, end) if is_last else last, is_last)

    async def follow(self, after: FeedPosition, wanted: EventFilter) -> AsyncIterator[Page]:
        """Yield page after page, as entries are committed; without end, and pages may be empty."""
        async for _ in self._context.changes(JOURNAL):
            is_last = False
            while not is_last:
                page = await self.read(after, wanted)
                yield page
                _, after, is_last = page


def wanted_of(
    run_id: str | None = None,
    kinds: Iterable[str] | None = None,
    agents: Iterable[str] | None = None,
) -> EventFilter:
    """Check the filter of a caller; raises MisuseError for an unknown kind."""
    if run_id is not None:
        names.check(run_id, what="run id")
    for each in (kinds, agents):
        if isinstance(each, str):
            raise MisuseError(f"give kinds and agents as lists of names, not {each!r}")
    return EventFilter(run_id or "", tuple(map(_kind, kinds or ())), tuple(agents or ()))


def _kind(given: object) -> str:
    """Return a kind of entry by its name; a follower would wait for a mistyped one forever."""
    if isinstance(given, str) and given in Kind.__members__:
        return str(given)
    typed = str(given)[:80]
    spoken = typed.removeprefix(TYPE).upper().replace("-", "_")
    near = difflib.get_close_matches(spoken, Kind.__members__, n=3)
    hint = f"did you mean {' or '.join(near)}? " if near else ""
    raise MisuseError(
        f"{typed!r} is no kind of entry, so no event of it would ever come; {hint}"
        "docs/reference/entries.md lists the kinds there are"
    )


async def follow(context: Context, after: str | None, wanted: EventFilter) -> AsyncIterator[Event]:
    """Yield events as they happen, after a position; without end."""
    feed = Feed(context)
    async for page in feed.follow(await feed.position(after), wanted):
        for event in page.events:
            yield event
