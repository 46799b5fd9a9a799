"""Records: rows that follow their entries, words that are found, and what is final."""

from typing import Any
from uuid import UUID

import pytest

from holdfast import ids
from holdfast.kernel import checkpoints, records
from holdfast.kernel.journal import Draft, Kind
from holdfast.kernel.records import RecordRow, Revision
from holdfast.stores.contract import Applied
from holdfast.stores.reads import RecordFilter
from holdfast.testing.store_suite.backend import Backend, async_test
from holdfast.testing.store_suite.mark_commits import commit, commit_late, pruned, store_of


def _made(version: int, summary: str = "", *, is_told: bool = True) -> Draft:
    record = records.RecordSummary("qa", summary) if is_told else None
    facts = checkpoints.CheckpointCreated(
        ids.uuid7(), version, version - 1, 0, phase="testing", record=record
    )
    body = checkpoints.encode_body(checkpoints.Delta({}, {}, []))
    return Draft(Kind.CHECKPOINT_CREATED, facts, body)


def _id_of(draft: Draft) -> UUID:
    assert isinstance(draft.facts, checkpoints.CheckpointCreated)
    return draft.facts.checkpoint_id


def _revised(made: Draft, version: int, revision: int, summary: str) -> Draft:
    facts = records.Updated(_id_of(made), version, revision, [], "handoff", "qa", summary)
    return Draft(Kind.CHECKPOINT_UPDATED, facts, b"\x80")


def _final(made: Draft, version: int, revision: int = 1) -> Draft:
    facts = records.Finalized(_id_of(made), version, revision, "complete", "")
    return Draft(Kind.CHECKPOINT_FINALIZED, facts)


def _linked(made: Draft, version: int, parent: UUID) -> Draft:
    return Draft(Kind.CHECKPOINT_LINKED, records.LinkedTo(parent, _id_of(made), version))


def _row(version: int, **fields: Any) -> RecordRow:
    return RecordRow(tenant="default", run_id="a", version=version, **fields)


class RecordsSuite:
    """What a store guarantees about records."""

    @pytest.mark.parametrize("submit", [commit, commit_late])
    @async_test
    async def test_rows_of_records_follow_their_entries(
        self, backend: Backend, submit: Any
    ) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            one, two, three = _made(1, "First, words"), _made(2), _made(3, is_told=False)
            # What follows in one commit changes the row that the first adds.
            await submit(hf, "a", one, _revised(one, 1, 2, "Other words"), _final(one, 1, 2))
            await submit(hf, "a", two)
            await submit(hf, "a", _revised(two, 2, 2, ""), _revised(two, 2, 3, "x"))
            await submit(hf, "a", three)
            await submit(hf, "a", _linked(three, 3, _id_of(one)))
            await submit(hf, "a", _final(three, 3))
            store = store_of(hf)
            assert await store.records.of_run("a") == [
                _row(
                    1,
                    agent_type="qa",
                    phase="handoff",
                    status="complete",
                    summary="Other words",
                    words="other words",
                    revision=2,
                    revised_seq=3,
                    final_seq=4,
                ),
                _row(
                    2,
                    agent_type="qa",
                    phase="handoff",
                    summary="x",
                    words="x",
                    revision=3,
                    revised_seq=7,
                ),
                _row(3, status="complete", final_seq=10, linked=str(_id_of(one))),
            ]
            assert await store.records.revisions("a") == [
                Revision(tenant="default", run_id="a", version=1, revision=2, seq=3),
                Revision(tenant="default", run_id="a", version=2, revision=2, seq=6),
                Revision(tenant="default", run_id="a", version=2, revision=3, seq=7),
            ]
            assert await hf.journal.verify("a") == []

    @async_test
    async def test_words_are_found_as_long_as_they_are_there(self, backend: Backend) -> None:
        async with backend.open() as hf:
            store = store_of(hf)
            for run_id in ("a", "b"):
                await hf.runs.create(run_id)
            one, two = _made(1, "Rück-zug of b_2"), _made(1, "of another")
            assert await commit(hf, "a", one) == Applied()
            assert await commit(hf, "b", two) == Applied()

            async def found(text: str, **more: Any) -> list[str]:
                wanted = RecordFilter(words=records.words_of(text), **more)
                return [each.checkpoint.run_id for each in await store.records.search(wanted)]

            assert await found("OF") == ["b", "a"]
            assert await found("rück 2") == ["a"]
            assert await found("zug rück b", agent_type="qa", phase="testing") == ["a"]
            assert await found("of", run_id="b") == ["b"]
            assert await found("another rück") == []
            assert await found("of", before=_id_of(two), limit=1) == ["a"]
            await commit(hf, "a", _revised(one, 1, 2, "changed"))
            assert await found("rück") == []
            assert await found("changed", phase="handoff") == ["a"]
            await commit(hf, "a", _made(2), pruned((1, 1)))
            assert await found("changed") == []
            assert await store.records.revisions("a") == []
            await hf.reindex("b")
            assert await found("another") == ["b"]

    @async_test
    async def test_reindex_gives_the_records_that_were_there(self, backend: Backend) -> None:
        async with backend.open() as hf:
            await hf.runs.create("a")
            one, two = _made(1, "words"), _made(2, "words")
            await commit(hf, "a", one, _revised(one, 1, 2, "final words"), _final(one, 1, 2))
            await commit(hf, "a", two)
            await commit(hf, "a", _linked(two, 2, _id_of(one)))
            await commit(hf, "a", _made(3, is_told=False))
            store = store_of(hf)
            before = await store.records.of_run("a"), await store.records.revisions("a")
            await hf.reindex("a")
            after = await store.records.of_run("a"), await store.records.revisions("a")
            assert after == before
            assert [len(rows) for rows in after] == [2, 1]
            found = await store.records.by_id(_id_of(one))
            assert found is not None
            assert found.row == before[0][0]
            page = await store.records.page("a", before=3, limit=5)
            assert [each.row.version for each in page] == [2, 1]
            assert await hf.journal.verify("a") == []
