"""Effects: a key is taken in every status but not_done; nothing is ever blindly repeated."""

import asyncio

import pytest

from holdfast.engine.effects import EffectRequest
from holdfast.errors import EffectNotFound, IllegalMove, MisuseError, RunCancelled
from holdfast.ids import uuid7
from holdfast.kernel.effects import EffectStatus
from holdfast.testing.clocks import ManualClock
from holdfast.testing.store_suite.backend import Backend, async_test

CHARGE = EffectRequest(tool="charge", args={"customer": "c1", "cents": 500}, limit_seconds=30)


class EffectsSuite:
    """What a store guarantees about effects."""

    @async_test
    async def test_intent_is_on_record_before_and_the_result_after(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            (begun,) = await run.begin_effects([CHARGE])
            assert begun.answer == "fresh"
            assert (await hf.effects.of_run("a"))[0].status is EffectStatus.ISSUED
            await run.finish_effect(begun, {"receipt": 9})
            kinds = [entry.kind for entry in await hf.journal.read("a")]
            assert kinds[-2:] == ["EFFECT_ISSUED", "EFFECT_COMPLETED"]

    @async_test
    async def test_completed_effect_gives_its_stored_result_to_a_repeat(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            (begun,) = await run.begin_effects([CHARGE])
            await run.finish_effect(begun, {"receipt": 9})
            (again,) = await run.begin_effects([CHARGE])
            assert (again.answer, again.result) == ("done", {"receipt": 9})
            other = EffectRequest(tool="charge", args={"customer": "c1", "cents": 501})
            (fresh,) = await run.begin_effects([other])
            assert fresh.answer == "fresh"

    @async_test
    async def test_many_taken_keys_in_one_commit_are_all_answered(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            old = [EffectRequest(tool="t", args=n) for n in range(0, 200, 2)]
            for begun in await run.begin_effects(old):
                await run.finish_effect(begun, "old")
            both = [EffectRequest(tool="t", args=n) for n in range(200)]
            answers = await run.begin_effects(both)
            assert [begun.answer for begun in answers] == ["done", "fresh"] * 100

    @async_test
    async def test_order_of_arguments_does_not_matter(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            turned = EffectRequest(tool="charge", args={"cents": 500, "customer": "c1"})
            answers = await run.begin_effects([CHARGE, turned])
            assert [begun.answer for begun in answers] == ["fresh", "in_flight"]

    @async_test
    async def test_not_done_effect_frees_its_key(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            (begun,) = await run.begin_effects([CHARGE])
            await run.abandon_effect(begun, note="card declined")
            (again,) = await run.begin_effects([CHARGE])
            assert again.answer == "fresh"
            assert [e.status for e in await hf.effects.of_run("a")] == ["not_done", "issued"]

    @async_test
    async def test_forks_see_the_effects_of_their_lineage(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await run.checkpoint()
            (begun,) = await run.begin_effects([CHARGE])
            await run.finish_effect(begun, "paid")
            await hf.runs.fork("a", 1, new_run_id="b")
            fork = await hf.runs.open("b")
            (seen,) = await fork.begin_effects([CHARGE])
            assert (seen.answer, seen.result) == ("done", "paid")
            stranger = await hf.runs.open("c")
            (own,) = await stranger.begin_effects([CHARGE])
            assert own.answer == "fresh"

    @async_test
    async def test_effect_of_a_lost_worker_is_unknown_only_after_its_limit(
        self, backend: Backend
    ) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            lost = await hf.runs.open("a")
            await lost.begin_effects([CHARGE])
            second = await hf.another_worker().runs.open("a", takeover=True)
            (begun,) = await second.begin_effects([CHARGE])
            assert begun.answer == "in_flight"
            clock.advance(30)
            (begun,) = await second.begin_effects([CHARGE])
            assert begun.answer == "unknown"
            assert [e.key for e in await hf.effects.unsettled()] == [begun.effect.key]
            (still,) = await second.begin_effects([CHARGE])
            assert still.answer == "unknown"

    @async_test
    async def test_effect_of_another_run_with_an_equal_lease_number_becomes_unknown(
        self, backend: Backend
    ) -> None:
        clock = ManualClock()
        shared = EffectRequest(tool="charge", key="tenant-wide", limit_seconds=1)
        async with backend.open(clock=clock) as hf:
            one, two = await hf.runs.open("a"), await hf.runs.open("b")
            assert one.run.lease_seq == two.run.lease_seq
            await one.begin_effects([shared])
            clock.advance(1)
            (begun,) = await two.begin_effects([shared])
            assert begun.answer == "unknown"

    @async_test
    async def test_unknown_effect_is_settled_once_by_a_person(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            run = await hf.runs.open("a")
            (begun,) = await run.begin_effects([CHARGE])
            await run.doubt_effect(begun, note="connection lost")
            effect = await hf.effects.settle(
                begun.effect.effect_id, EffectStatus.COMPLETED, result="receipt", by="alice"
            )
            assert effect.status is EffectStatus.COMPLETED
            with pytest.raises(IllegalMove, match="completed already"):
                await hf.effects.settle(begun.effect.effect_id, EffectStatus.NOT_DONE, by="bob")
            (again,) = await run.begin_effects([CHARGE])
            assert (again.answer, again.result) == ("done", "receipt")
            entry = (await hf.journal.read("a"))[-1]
            assert (entry.kind, entry.actor) == ("EFFECT_COMPLETED", "alice")
            with pytest.raises(EffectNotFound):
                await hf.effects.settle(uuid7(), EffectStatus.NOT_DONE)

    @async_test
    async def test_effects_of_a_cancelled_run_can_still_be_settled(self, backend: Backend) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            (begun,) = await run.begin_effects([CHARGE])
            await hf.runs.cancel("a")
            with pytest.raises(RunCancelled):
                await run.begin_effects([EffectRequest(tool="other")])
            settled = await hf.effects.settle(
                begun.effect.effect_id, EffectStatus.NOT_DONE, by="alice"
            )
            assert settled.status is EffectStatus.NOT_DONE
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_of_concurrent_twins_in_a_lineage_one_is_fresh(self, backend: Backend) -> None:
        async with backend.open() as hf:
            root = await hf.runs.open("root")
            await root.checkpoint()
            for n in range(10):
                await hf.runs.fork("root", 1, new_run_id=f"fork-{n}")
            runs = [await hf.runs.open(f"fork-{n}") for n in range(10)]
            answers = await asyncio.gather(*(run.begin_effects([CHARGE]) for run in runs))
            assert sorted(begun.answer for (begun,) in answers) == ["fresh"] + ["in_flight"] * 9

    @async_test
    async def test_cancel_that_arrived_stops_an_effect_from_being_issued(
        self, backend: Backend
    ) -> None:
        async with backend.open() as hf:
            run = await hf.runs.open("a")
            await hf.runs.cancel("a")
            with pytest.raises(RunCancelled):
                await run.begin_effects([CHARGE])
            assert await hf.effects.of_run("a") == []

    @async_test
    async def test_effects_in_doubt_are_listed_by_run_and_owner(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            for run_id, owner in (("a", "ann"), ("b", "bob"), ("c", "")):
                await hf.runs.create(run_id, owner=owner)
                run = await hf.runs.open(run_id)
                late, lost = await run.begin_effects([CHARGE, EffectRequest(tool="mail")])
                await run.doubt_effect(lost, note="connection lost")
                assert late.effect.limit_at < lost.effect.limit_at

            async def doubted(**wanted: str | int | None) -> list[tuple[str, str]]:
                found = await hf.effects.in_doubt(**wanted)  # pyright: ignore[reportArgumentType] - by name
                return [(each.run_id, each.tool) for each in found]

            assert await doubted(owner="ann") == [("a", "mail")], "one may be running"
            clock.advance(30)
            assert await doubted(owner="ann") == [("a", "charge"), ("a", "mail")]
            assert await doubted(owner="ann", limit=1) == [("a", "charge")]
            assert await doubted(run_id="b") == [("b", "charge"), ("b", "mail")]
            assert await doubted(run_id="b", owner="ann") == await doubted(owner="eve") == []
            assert len(await doubted()) == 6

    @async_test
    async def test_same_word_on_an_effect_again_changes_nothing(self, backend: Backend) -> None:
        clock = ManualClock()
        async with backend.open(clock=clock) as hf:
            run = await hf.runs.open("a")
            (begun,) = await run.begin_effects([CHARGE])
            effect_id = begun.effect.effect_id
            with pytest.raises(IllegalMove, match="may be running until"):
                await hf.effects.resolve(effect_id, "retry", by="ann")
            with pytest.raises(MisuseError, match="no outcome"):
                await hf.effects.resolve(effect_id, "maybe", by="ann")
            clock.advance(30)
            said = {"receipt": 1, "at": "noon"}
            first = await hf.effects.resolve(effect_id, "happened", result=said, by="ann")
            head = await hf.journal.head("a")
            same = dict(reversed(said.items()))
            assert await hf.effects.resolve(effect_id, "happened", result=same, by="bob") == first
            for outcome, result in (("happened", {"receipt": 2}), ("retry", None)):
                with pytest.raises(IllegalMove, match="is completed since"):
                    await hf.effects.resolve(effect_id, outcome, result=result, by="ann")
            assert await hf.journal.head("a") == head
            (mail,) = await run.begin_effects([EffectRequest(tool="mail")])
            for _ in range(2):
                settled = await hf.effects.resolve(mail.effect.effect_id, "retry", force=True)
                assert settled.status is EffectStatus.NOT_DONE
            with pytest.raises(IllegalMove, match="is not_done since"):
                await hf.effects.resolve(mail.effect.effect_id, "did_not_happen")
            assert await hf.journal.head("a") == head + 2
