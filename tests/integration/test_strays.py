"""What was committed while its answer was lost is found again by whoever asked for it."""

from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import holdfast
from holdfast import LeasedRun, WaitSpec
from holdfast.errors import OutcomeUnknown, UnavailableError
from holdfast.settings import Settings
from holdfast.testing.store_suite import async_test
from tests.proxy import Group, Proxy


@async_test
async def test_run_that_was_leased_while_the_store_went_away_is_given_out_again(
    postgres_url: str,
) -> None:
    with Proxy(postgres_url) as proxy:
        settings = Settings(busy_timeout_seconds=0.3)
        async with holdfast.open(proxy.url(postgres_url), settings=settings) as hf:
            await hf.runs.create("r")
            is_away = has_looked = False

            def lost_reply(group: Group) -> bool:
                nonlocal is_away
                is_away |= has_looked and any(word.startswith("COMMIT") for word in group.words)
                return False

            def lost_request(group: Group) -> bool:
                nonlocal has_looked
                has_looked |= any("SKIP LOCKED" in w and "'ready'" in w for w in group.words)
                return is_away

            proxy.cut_replies(lost_reply)
            proxy.cut_requests(lost_request)
            with pytest.raises(UnavailableError):
                await hf.leases.next()
            assert is_away
            async with holdfast.open(postgres_url) as other:
                assert (await other.runs.get("r")).worker == hf.worker
                assert await other.leases.next() is None
            proxy.cut_requests(lambda _: False)
            found = await hf.leases.next(timeout_seconds=10)
            assert found is not None
            assert await hf.leases.next() is None, "what is held is not given back"
            await found.complete()
            assert await hf.journal.verify("r") == []


async def release(run: LeasedRun) -> None:
    await run.release(delay_seconds=0.001, note="later")


async def suspend(run: LeasedRun) -> None:
    await run.open_waits([WaitSpec(wait_id="w", timeout_seconds=60)], suspend=True)


async def complete(run: LeasedRun) -> None:
    await run.complete("done")


@pytest.mark.parametrize(
    ("leave", "entries"),
    [(release, 3), (suspend, 4), (complete, 3)],
    ids=lambda value: getattr(value, "__name__", None),
)
@async_test
async def test_leaving_a_run_can_be_repeated_when_nobody_knows_whether_it_is_stored(
    leave: Callable[[LeasedRun], Coroutine[Any, Any, None]], entries: int, postgres_url: str
) -> None:
    with Proxy(postgres_url) as proxy:
        settings = Settings(busy_timeout_seconds=0.3)
        async with holdfast.open(proxy.url(postgres_url), settings=settings) as hf:
            run = await hf.runs.open("r")
            is_lost = False

            def lost_reply(group: Group) -> bool:
                nonlocal is_lost
                is_lost |= group.commits
                return is_lost

            proxy.cut_replies(lost_reply)
            with pytest.raises(OutcomeUnknown):
                await leave(run)
            proxy.cut_replies(lambda _: False)
            await leave(run)
            assert len(await hf.journal.read("r")) == entries
            assert await hf.journal.verify("r") == []
